"""What the gateway shows of itself, as its state and as metrics."""

import asyncio
import json

from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import gateway, until


async def test_the_state_shows_every_endpoint_and_queue():
    settings = FakeSettings(step_seconds=0.02, num_blocks=101, block_size=16, max_model_len=1000)
    async with FakeVllm(settings) as fake, gateway(fake) as kvgate:
        running = asyncio.create_task(kvgate.post(tokens=40, stream=True))
        await until(lambda: fake.scheduler.running and fake.scheduler.running[0].generated > 20)
        state = await kvgate.state()
        (endpoint,) = state["endpoints"]
        assert (state["ready"], state["draining"], state["mode"]) == (True, False, "enforce")
        assert (endpoint["id"], endpoint["healthy"], endpoint["state"]) == (f"127.0.0.1:{fake.port}", True, "up")
        assert (endpoint["in_flight"], endpoint["sequences"], endpoint["max_model_len"]) == (1, 1, 1000)
        assert (endpoint["kv"]["blocks"], endpoint["kv"]["block_size"]) == (100, 16)
        assert 0.01 <= endpoint["kv"]["ledger"] <= 0.03
        assert endpoint["gate"] == {"open": True, "reason": None}
        assert endpoint["models"] == ["fake"]
        (queue,) = state["queues"]
        assert (queue["model"], queue["depth"], queue["bytes"], queue["oldest_seconds"]) == ("fake", 0, 0, None)
        assert 0.01 <= queue["saturation"] <= 0.1
        assert (queue["backlog_seconds"], queue["waiting_without_endpoint"]) == (0.0, 0)
        assert state["counting"][0]["mode"] == "engine"
        metrics = (await kvgate.client.get("/metrics")).text
        for line in ("kvgate_in_flight", "kvgate_gate_open", "kvgate_endpoint_healthy"):
            assert f'{line}{{endpoint="127.0.0.1:{fake.port}"}} 1.0' in metrics
        assert f'kvgate_kv_usage{{endpoint="127.0.0.1:{fake.port}",source="ledger"}}' in metrics
        await running


async def test_an_engine_that_hides_the_size_of_its_cache_is_shown_all_the_same():
    class Secretive(FakeVllm):
        def metrics(self):
            return b"".join(line for line in super().metrics().splitlines(keepends=True) if b"cache_config" not in line)

    async with Secretive() as fake, gateway(fake) as kvgate:
        assert (await kvgate.post()).status_code == 200
        kv = (await kvgate.state())["endpoints"][0]["kv"]
        assert (kv["ledger"], kv["blocks"]) == (None, None)
        metrics = await kvgate.client.get("/metrics")
        assert metrics.status_code == 200
        assert 'source="ledger"' not in metrics.text
        assert "kvgate_endpoint_healthy" in metrics.text


async def test_each_histogram_has_the_requests_it_is_about():
    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models, admission={"queue": {"max_requests": 1, "ttl": 0.2}}) as kvgate:
            await kvgate.client.post("/tokenize", json={"prompt": "a"})
            await kvgate.post(model="other")
            running = asyncio.create_task(kvgate.post(tokens=60))
            await until(lambda: fake.scheduler.running)
            assert (await kvgate.post()).status_code == 429
            await running
            await kvgate.post(stream=True)
            metrics = (await kvgate.client.get("/metrics")).text
            assert "kvgate_queue_wait_seconds_count 3.0" in metrics, "two admitted and one that waited in vain"
            assert "kvgate_ttft_seconds_count 1.0" in metrics, "one stream"
            assert "kvgate_overhead_seconds_count 3.0" in metrics, "two admitted and one relayed"


async def test_the_access_line_says_who_counted(capsys):
    async with FakeVllm() as fake, gateway(fake, log={"access": True, "format": "json"}) as kvgate:
        await kvgate.post()
        await kvgate.client.post("/tokenize", json={"prompt": "a"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"event":"request"' in line]
    counted = {line["path"]: line["counted"] for line in lines}
    assert counted == {"/v1/chat/completions": "engine", "/tokenize": None}


async def test_lengths_are_those_of_one_sequence_and_only_of_who_was_answered_to_the_end():
    def told(metrics):
        wanted = ("prompt", "output", "total")
        name = "kvgate_request_tokens"
        count = f'{name}_count{{kind="total",model="fake"}}'
        sums = [f'{name}_sum{{kind="{kind}",model="fake"}}' for kind in wanted]
        values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith(name))
        return [float(values[sample]) for sample in (count, *sums)]

    async with FakeVllm(FakeSettings(step_seconds=0.01)) as fake, gateway(fake) as kvgate:
        usage = (await kvgate.post("/v1/completions", prompt=["a b c", "a"], n=2, tokens=5)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 20)
        assert told((await kvgate.client.get("/metrics")).text) == [1, 3, 5, 8]
        running = asyncio.create_task(kvgate.post(tokens=400, stream=True))
        await until(lambda: fake.scheduler.running)
        running.cancel()
        await kvgate.until_idle()
        assert (await kvgate.post(messages=[{"role": "user", "content": "a " * 3000}])).status_code == 400
        assert told((await kvgate.client.get("/metrics")).text) == [1, 3, 5, 8]


async def test_how_full_it_was_is_kept_while_it_runs():
    async with FakeVllm(FakeSettings(step_seconds=0.02)) as fake, gateway(fake) as kvgate:
        running = [asyncio.create_task(kvgate.post(tokens=60, stream=True)) for _ in range(3)]

        async def sampled():
            metrics = (await kvgate.client.get("/metrics")).text
            lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
            return float(lines.get('kvgate_sequences_over_time_sum{model="fake"}', 0)) >= 3 and any(
                name.startswith("kvgate_kv_usage_over_time_bucket") for name in lines
            )

        await until(sampled)
        await asyncio.gather(*running)
        (endpoint,) = (await kvgate.state())["endpoints"]
        assert (endpoint["model"], endpoint["sequences"], endpoint["peak_sequences"]) == ("fake", 0, 3)

        async def told():
            engine = (await kvgate.state())["endpoints"][0]["engine"]
            return (engine["generated_tokens"], engine["preemptions"]) == (180, 0)

        await until(told)
