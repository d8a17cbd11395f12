"""Grafana's dashboards: their form, and each query on a real Prometheus that scrapes a kvgate under load."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from docs.dashboards import DASHBOARDS, dashboards
from tests.deploy.prometheus import scraping
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.frozen import frozen
from tests.integration.relaying import CHAT, body, gateway
from tests.until import until

FILES = {path.stem: json.loads(text) for path, text in dashboards()}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ADMIN = "admin-key-1234567890"
KEYS: list[dict[str, Any]] = [
    {"name": "app", "key": "app-key-1234567890"},
    {"name": "trial", "key": "trial-key-1234567890", "limits": {"requests_per_minute": 2}},
]


@contextlib.asynccontextmanager
async def under_load() -> AsyncIterator[str]:
    """A kvgate that serves two keys, one of which is over its limit; its host and port."""
    async with (
        FakeVllm(FakeSettings(step_seconds=0.005)) as fake,
        gateway(fake, ready=False, auth={"keys": KEYS, "admin_key": ADMIN}) as kvgate,
    ):

        async def load() -> None:
            for number in itertools.count():
                headers = {"authorization": f"Bearer {KEYS[number % 4 == 0]['key']}"}
                headers["traceparent"] = f"00-{TRACE}-00f067aa0ba902b7-01"
                await kvgate.client.post(CHAT, json=body(stream=number % 2 == 0, tokens=20), headers=headers)

        clients = [asyncio.create_task(load()) for _ in range(3)]
        yield kvgate.client.base_url.netloc.decode()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@pytest.mark.network
async def test_prometheus_has_data_for_each_query_and_keeps_the_traces(tmp_path: Path) -> None:
    queries = {
        re.sub(r"\$(model|endpoint|tenant)\b", ".*", query.expression).replace("$__rate_interval", "10s")
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
        if "kvgate_gpu_" not in query.expression  # there may be no GPU
    }
    async with under_load() as target:
        with scraping(tmp_path, target, ADMIN) as prometheus:

            async def all_found() -> bool:
                for expression in list(queries):
                    if await asyncio.to_thread(prometheus.query, expression):
                        queries.discard(expression)
                return not queries

            async def traced() -> bool:
                found = await asyncio.to_thread(prometheus.exemplars, "kvgate_ttft_seconds_bucket")
                return TRACE in {shown["labels"]["trace_id"] for series in found for shown in series["exemplars"]}

            with contextlib.suppress(TimeoutError, AssertionError):
                await until(all_found, 60)
            assert queries == set(), (tmp_path / "prometheus.log").read_text()[-2000:]
            await until(traced)


@pytest.mark.network
async def test_what_panels_show_is_what_the_state_says(tmp_path: Path) -> None:
    gauges: dict[tuple[str, str], list[str]] = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                if not re.search(
                    r"\[|kvgate_gpu_|process_|_age_", query.expression
                ):  # the state has no rates; ages grow
                    gauges.setdefault((dashboard.name, panel.title), []).append(query.expression)
    async with frozen(engines=2) as kvgate:
        with scraping(tmp_path, kvgate.client.base_url.netloc.decode(), ADMIN) as prometheus:

            async def shown(expression: str) -> dict[tuple[str, ...], float]:
                filled = re.sub(r"\$(model|endpoint)\b", ".*", expression)
                found = await asyncio.to_thread(prometheus.query, filled)
                return {_labels(one["metric"]): float(one["value"][1]) for one in found}

            await until(lambda: shown("kvgate_queue_depth"))
            seen = {place: [await shown(one) for one in queries] for place, queries in gauges.items()}
            state = await kvgate.state()
    assert state["queues"][0]["depth"] == 3
    assert seen == {place: [pytest.approx(one) for one in figures] for place, figures in _told(state).items()}


def _labels(metric: dict[str, str]) -> tuple[str, ...]:
    return tuple(metric[label] for label in sorted(metric))


def _told(state: dict[str, Any]) -> dict[tuple[str, str], list[dict[tuple[str, ...], float]]]:
    """What the gauge panels are to show, by dashboard and title: of each query the figures by its labels."""
    endpoints, (queue,) = state["endpoints"], state["queues"]
    model = queue["model"]

    def of_each(figure: Callable[[Any], float]) -> dict[tuple[str, ...], float]:
        return {(one["id"],): float(figure(one)) for one in endpoints}

    healthy, gates = of_each(lambda one: one["healthy"]), of_each(lambda one: one["gate"]["open"])
    running = of_each(lambda one: one["in_flight"])
    sources = ("ledger", "observed", "effective", "forecast")
    return {
        ("overview", "Waiting"): [{(): queue["depth"]}],
        ("overview", "Saturation"): [{(): queue["saturation"]}, {(model,): queue["saturation"]}],
        ("overview", "Backlog"): [{} if queue["backlog_seconds"] is None else {(): queue["backlog_seconds"]}],
        ("overview", "Endpoints up"): [{(): sum(healthy.values())}],
        ("overview", "Waiting for a first endpoint"): [{(): queue["waiting_without_endpoint"]}],
        ("overview", "Queue"): [{(model,): queue["depth"]}],
        ("overview", "KV cache"): [
            of_each(lambda one: one["kv"]["effective"]),
            of_each(lambda one: one["kv"]["forecast"]),
        ],
        ("endpoint", "Up"): [{(): sum(healthy.values())}],
        ("endpoint", "Gate"): [{(): sum(gates.values())}],
        ("endpoint", "In flight"): [{(): sum(running.values())}],
        ("endpoint", "Most sequences"): [{(): max(one["peak_sequences"] for one in endpoints)}],
        ("endpoint", "KV cache"): [{(one["id"], source): one["kv"][source] for one in endpoints for source in sources}],
        ("endpoint", "Requests in flight"): [running],
        ("endpoint", "Up, and gate open"): [healthy, gates],
    }


@pytest.mark.parametrize("name", FILES)
def test_each_has_the_form_that_grafana_imports(name: str) -> None:
    made = FILES[name]
    assert made["uid"] == f"kvgate-{name}"
    assert "id" not in made, "Grafana gives it"
    panels, variables = made["panels"], {one["name"]: one for one in made["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in {"stat", "timeseries", "heatmap"}
        assert {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])} == {
            "${datasource}"
        }
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        used = re.findall(r"\$(?!__)(\w+)", " ".join(target["expr"] for target in panel["targets"]))
        assert set(used) <= set(variables)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
