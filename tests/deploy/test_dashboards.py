"""Grafana's dashboards: their form, and each query on a real Prometheus that scrapes a kvgate under load."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from docs.dashboards import DASHBOARDS, dashboards
from tests.deploy.prometheus import scraping
from tests.fakes.vllm import FakeSettings, FakeVllm
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
