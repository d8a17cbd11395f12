"""Engines that come and go with demand: three real llama-servers, of which one runs at a time."""

from collections.abc import Iterator

import httpx
import pytest

from tests.integration.kvgate import Kvgate
from tests.integration.one_slot import MODELS, ask, body, mixed, one_slot, starts, states
from tests.unit.engine.processes import eventually

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp", reason="there is no build of it for this machine", exc_type=ImportError)


@pytest.fixture(scope="module")
def kvgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    with one_slot(tmp_path_factory.mktemp("card"), idle_stop=2) as running:
        yield running


def test_an_engine_starts_with_its_first_request_and_stops_when_idle(kvgate: Kvgate) -> None:
    assert eventually(lambda: set(states(kvgate).values()) == {"stopped"})
    listed = httpx.get(f"{kvgate.url}/v1/models", trust_env=False).json()["data"]
    assert [model["id"] for model in listed] == list(MODELS)
    assert ask(kvgate, "red").status_code == 200
    assert states(kvgate) == {"red": "up", "green": "stopped", "blue": "stopped"}
    assert ask(kvgate, "pink").status_code == 404
    assert eventually(lambda: states(kvgate)["red"] == "stopped")


def test_who_streams_hears_that_it_waits_and_when_the_engine_is_expected(kvgate: Kvgate) -> None:
    assert eventually(lambda: set(states(kvgate).values()) == {"stopped"})
    assert 0 < kvgate.state()["endpoints"][0]["ready_in_seconds"] < 30
    with httpx.stream(
        "POST", f"{kvgate.url}/v1/chat/completions", json=body("red", stream=True), timeout=60, trust_env=False
    ) as answer:
        lines = list(answer.iter_lines())
    assert ": kvgate position=1 eta=" in lines[0]
    assert lines[-2] == "data: [DONE]"


async def test_three_models_on_one_slot_serve_mixed_requests_without_a_failure(kvgate: Kvgate) -> None:
    before = starts(kvgate)
    ended = await mixed(kvgate, 200, within=10)
    assert {(one.status, one.whole) for one in ended} == {(200, True)}
    assert starts(kvgate) - before < 40
