"""The app's own OpenAPI, and requests made from it by the hundred."""

import time
from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from gateway.relay.routes import ROUTES
from tests.integration.kvgate import serving
from tests.integration.relaying import fake_processes
from tests.ports import free_port

pytestmark = pytest.mark.slow

NOT_A_FAULT = [
    schemathesis.checks.positive_data_acceptance,
    schemathesis.checks.negative_data_rejection,
    schemathesis.checks.missing_required_header,
]
"""Checks that hold the schema to be all there is: what the engine takes is the engine's to say."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("kvgate") / "log"
    options = ("--step-seconds=0", "--output-tokens=3")
    with fake_processes(1, *options) as [(url, _)]:
        arguments = ("--endpoint", url, "--tokenizer", "/nonexistent")
        with serving(log, port, *arguments) as kvgate:
            kvgate.wait_healthy(1)
            yield kvgate.url


@pytest.fixture(scope="module")
def schema(served: str) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{served}/openapi.json")


def test_every_route_is_described(served):
    document = httpx.get(f"{served}/openapi.json").json()
    for route in ROUTES:
        path = route.path.replace("*", "{rest}")
        assert route.method.lower() in document["paths"][path], path
    assert "/kvgate/state" in document["paths"]
    assert httpx.get(f"{served}/docs").status_code == 200


def described() -> list[tuple[str, str]]:
    routes = [(route.path.replace("*", "{rest}"), route.method) for route in ROUTES]
    return [*routes, *((path, "GET") for path in ("/livez", "/readyz", "/health", "/version", "/kvgate/state"))]


@pytest.mark.parametrize(("path", "method"), described())
def test_no_request_brings_out_a_defect(schema, path, method):
    operation = schema[path][method]
    right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE) if operation.body else right

    @given(case=st.one_of(right, wrong))
    @settings(
        max_examples=20,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    def answered_as_described(case):
        case.call_and_validate(excluded_checks=NOT_A_FAULT, timeout=5)

    answered_as_described()


def test_after_all_that_nothing_is_left_behind(served):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        state = httpx.get(f"{served}/kvgate/state").json()
        if all(e["healthy"] and not e["in_flight"] and not e["kv"]["ledger"] for e in state["endpoints"]):
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"still held: {state}")
    metrics = httpx.get(f"{served}/metrics").text
    assert 'outcome="completed"' in metrics
    defects = [line for line in metrics.splitlines() if "total{" in line and "internal_error" in line]
    assert all(line.endswith(" 0.0") for line in defects), defects
