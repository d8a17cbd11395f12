"""LoRA adapters come and go, by the settings and by the admin routes."""

import asyncio

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import CHAT, gateway, until
from tests.unit.engine.adapters import adapter

pytestmark = pytest.mark.slow

WITH_LORA = FakeSettings(loras=())


def models(*fakes, **fields):
    return [{"endpoints": [{"url": fake.url} for fake in fakes], "tokenizer": "/nonexistent", **fields}]


async def test_each_engine_gets_the_adapters_of_the_settings_before_its_first_request(tmp_path):
    lora = [{"name": "sql", "path": str(adapter(tmp_path / "sql"))}]
    async with (
        FakeVllm(WITH_LORA) as one,
        FakeVllm(FakeSettings(loras=("sql",))) as other,
        gateway(one, other, models=models(one, other, lora=lora)) as running,
    ):
        await until(lambda: "sql" in one.loras)

        async def listed():
            cards = (await running.client.get("/v1/models")).json()["data"]
            return {card["id"]: card["parent"] for card in cards} == {"fake": None, "sql": "fake"}

        await until(listed)
        assert [(await running.post(model="sql")).status_code for _ in range(4)] == [200] * 4
        assert 'model="fake"' in (await running.client.get("/metrics")).text, "an adapter counts by its base"
        assert [request.path for request in other.seen if "lora" in request.path] == []
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            assert (await running.client.post(path, json={"lora_name": "sql"})).status_code == 404, "not for clients"


async def test_what_is_wrong_with_an_adapter_is_told_before_a_request_asks_for_it(tmp_path):
    lora = [
        {"name": "missing", "path": str(tmp_path / "none")},
        {"name": "high", "path": str(adapter(tmp_path / "high", rank=64))},
    ]
    async with FakeVllm(WITH_LORA) as fake, gateway(fake, models=models(fake, lora=lora)) as running:
        (endpoint,) = (await running.state())["endpoints"]
        assert endpoint["adapters"] == {
            "missing": f"Loading lora missing failed: No adapter found for {tmp_path}/none",
            "high": "Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16.",
        }
        assert (await running.post()).status_code == 200
        assert (await running.post(model="high")).status_code == 404
    async with FakeVllm() as fake, gateway(fake, models=models(fake, lora=lora[:1])) as running:
        (endpoint,) = (await running.state())["endpoints"]
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in endpoint["adapters"]["missing"]


async def test_an_operator_loads_and_unloads_while_it_serves(tmp_path):
    path = str(adapter(tmp_path / "sql"))
    async with (
        FakeVllm(WITH_LORA) as one,
        FakeVllm(WITH_LORA) as other,
        gateway(one, other, models=models(one, other)) as running,
    ):

        async def change(what, **adapter):
            answer = await running.client.post(f"/kvgate/adapters/{what}", json={"model": "fake", **adapter})
            return answer.status_code, list(answer.json().get("endpoints", {}).values())

        assert await change("load", name="sql", path=path) == (200, ["loaded", "loaded"])
        assert (await running.post(model="sql")).status_code == 200
        other_path = str(adapter(tmp_path / "better"))
        assert await change("load", name="sql", path=other_path) == (200, ["loaded", "loaded"])
        assert (one.loras, other.loras) == ({"sql": other_path}, {"sql": other_path})
        assert await change("load", name="no", path="/none") == (
            200,
            ["Loading lora no failed: No adapter found for /none"] * 2,
        )
        assert (await change("load", model="other", name="sql", path=path))[0] == 404
        assert (await change("load", name="sql"))[0] == 400
        assert await change("unload", name="sql") == (200, ["unloaded", "unloaded"])
        assert (one.loras, other.loras) == ({}, {})
        assert (await running.post(model="sql")).status_code == 404


@pytest.mark.parametrize("name", [None, "fake"])
async def test_an_endpoint_that_comes_later_gets_what_an_operator_loaded(tmp_path, name):
    """Where a pod has another address after each start, all are such endpoints in the end."""
    asked = {"model": "fake", "name": "sql", "path": str(adapter(tmp_path / "sql"))}
    named = {} if name is None else {"name": name}
    async with (
        FakeVllm(WITH_LORA) as one,
        FakeVllm(WITH_LORA) as other,
        gateway(one, models=models(one, **named)) as running,
    ):
        await running.client.post("/kvgate/adapters/load", json=asked)
        settings = running.application.settings
        changed = settings.model_validate({**settings.model_dump(), "models": models(other, **named)})
        await running.application.change(changed)
        await until(lambda: list(other.loras) == ["sql"])


async def test_a_reload_changes_the_adapters(tmp_path):
    first, second = ({"name": name, "path": str(adapter(tmp_path / name))} for name in ("first", "second"))
    async with FakeVllm(WITH_LORA) as fake, gateway(fake, models=models(fake, lora=[first])) as running:
        settings = running.application.settings
        changed = settings.model_validate({**settings.model_dump(), "models": models(fake, lora=[second])})
        change = await running.application.change(changed)
        assert (change.live, change.later) == (("models[].lora",), {})
        await until(lambda: list(fake.loras) == ["second"])


async def test_adapters_are_flows_of_their_own_where_asked(tmp_path):
    settings = FakeSettings(loras=("a", "b"), max_num_seqs=1, step_seconds=0.01)
    async with (
        FakeVllm(settings) as fake,
        gateway(fake, models=models(fake, lora_flows=True), admission={"ttft_target": 60}) as running,
    ):
        running.application.endpoints[0]
        busy = [asyncio.create_task(running.post(model="a", tokens=30)) for _ in range(6)]
        await until(lambda: sum(request.path == CHAT for request in fake.seen) >= 1)
        explained = await running.client.post(
            "/kvgate/explain", json={"model": "b", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
        )
        assert explained.json()["flow"] == "adapter b"
        assert [(await one).status_code for one in busy] == [200] * 6
