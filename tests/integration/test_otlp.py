"""What a collector of OpenTelemetry gets of a gateway that serves."""

import asyncio
import contextlib
import subprocess
import sys

import httpx
import pytest

from gateway.app.application import Application
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.relay.traced_wait import LINED_UP
from tests.fakes.collector import collecting
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.kvgate import serving
from tests.integration.relaying import CHAT, body, fake_processes, gateway, until
from tests.integration.workers import configure
from tests.ports import free_port

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture
def collector(monkeypatch):
    """A collector that the environment names."""
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        for name, value in {"BSP_SCHEDULE_DELAY": "20", "BLRP_SCHEDULE_DELAY": "20"}.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        yield collector


async def of_one_request(collector):
    """The spans of the first request that has ended: that of the whole, then its parts by name."""
    await until(lambda: any(span.kind == "SERVER" for span in collector.spans()))
    spans = collector.spans()
    (server,) = [span for span in spans if span.kind == "SERVER"]
    return server, [span for span in spans if span is not server]


async def test_a_request_is_a_server_span_with_its_count_its_wait_and_its_try_below(collector):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.post(stream=True)
        server, parts = await of_one_request(collector)
        port = int(fake.url.rpartition(":")[2])
        (sent,) = [request for request in fake.seen if request.path == CHAT]
    assert server.name == "chat fake"
    assert (server.parent, server.failed) == ("", False)
    assert server.schema_url == "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
    assert (
        server.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.max_tokens": 5,
            "gen_ai.request.model": "fake",
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ["length"],
            "gen_ai.usage.input_tokens": 2,
            "gen_ai.usage.output_tokens": 5,
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "http.route": CHAT,
            "server.address": "127.0.0.1",
            "server.port": kvgate.port,
            "kvgate.counted": "engine",
            "kvgate.endpoint": f"127.0.0.1:{port}",
            "kvgate.outcome": "completed",
            "kvgate.request_id": answer.headers["x-request-id"],
        }.items()
    )
    assert server.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert [(part.name, part.kind) for part in parts] == [
        ("kvgate.count", "INTERNAL"),
        ("kvgate.queue", "INTERNAL"),
        ("chat fake", "CLIENT"),
    ]
    for part in parts:
        assert (part.trace, part.parent) == (server.trace, server.id)
        assert server.began <= part.began <= part.ended <= server.ended
    client = parts[-1]
    assert (client.attributes["server.address"], client.attributes["server.port"]) == ("127.0.0.1", port)
    assert sent.header("traceparent") == f"00-{server.trace}-{client.id}-01"
    assert server.resource["service.name"] == "kvgate"
    assert server.resource["service.instance.id"]
    assert "one two" not in str(collector.bodies)  # the prompt


async def test_a_clients_trace_goes_on_and_one_that_is_not_recorded_is_not(collector):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for parent in (UNSAMPLED, PARENT):
            headers = {"traceparent": parent, "tracestate": "v=1"}
            await kvgate.client.post(CHAT, json=body(), headers=headers)
        server, parts = await of_one_request(collector)
        unrecorded, recorded = [request for request in fake.seen if request.path == CHAT]
    assert (server.trace, server.parent, server.state) == (PARENT[3:35], PARENT[36:52], "v=1")
    assert recorded.header("traceparent") == f"00-{server.trace}-{parts[-1].id}-01"
    assert recorded.header("tracestate") == unrecorded.header("tracestate") == "v=1"
    assert unrecorded.header("traceparent").startswith(UNSAMPLED[:36])
    assert unrecorded.header("traceparent").endswith("-00")


async def test_each_try_is_a_span_and_the_endpoint_that_failed_has_the_error(collector):
    async with FakeVllm() as one, FakeVllm() as other, gateway(one, other) as kvgate:
        for fake in (one, other):
            fake.faults.add(Fault(FaultKind.STATUS, path=CHAT, status=500, times=1))
        failed = await kvgate.post()
        server, parts = await of_one_request(collector)
    tries = [part for part in parts if part.kind == "CLIENT"]
    assert failed.status_code == 502
    assert (server.failed, server.attributes["error.type"]) == (True, "upstream_error")
    assert [(part.failed, part.attributes["error.type"]) for part in tries] == [(True, "failed")] * 2
    assert server.attributes["kvgate.failures"] == 2


async def test_a_refusal_is_no_failure_and_has_its_outcome(collector):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await kvgate.client.post(CHAT, content=b"[")
        server, parts = await of_one_request(collector)
    assert (server.name, server.failed, parts) == ("chat", False, [])
    assert server.attributes.items() >= {"kvgate.outcome": "invalid_request", "http.response.status_code": 400}.items()
    assert "error.type" not in server.attributes


async def test_one_that_waited_says_what_held_it_back_and_one_that_was_refused_what_refused_it(collector):
    async with FakeVllm() as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        queue = {"ttft_target": None, "queue": {"max_requests": 2}}
        async with gateway(fake, models=models, admission=queue) as kvgate:
            requests = [asyncio.create_task(kvgate.post(tokens=5))]
            await until(lambda: fake.scheduler.running)
            fake.freeze()
            for number in (1, 2):
                requests.append(asyncio.create_task(kvgate.post(tokens=5)))
                await until(lambda number=number: waits(kvgate, number))
                await asyncio.sleep(2 * LINED_UP)  # until it has its place
            assert (await kvgate.post(tokens=5)).status_code == 429
            fake.thaw()
            await asyncio.gather(*requests)
            await until(lambda: len(decided(collector)) == 4)
    assert decided(collector) == {
        ("completed", None, None),
        ("completed", "sequences", 1),
        ("completed", "sequences", 2),
        ("queue_full", "queue_full", None),
    }


def decided(collector):
    """The outcome of each request, what held it back, and its place."""
    names = ("kvgate.outcome", "kvgate.rule", "kvgate.position")
    return {tuple(span.attributes.get(name) for name in names) for span in collector.spans() if span.kind == "SERVER"}


async def waits(kvgate, number):
    return (await kvgate.state())["queues"][0]["depth"] == number


async def test_a_client_that_leaves_is_no_failure(collector):
    async with FakeVllm(FakeSettings(step_seconds=0.05)) as fake, gateway(fake) as kvgate:
        with contextlib.suppress(asyncio.CancelledError):
            asked = asyncio.create_task(kvgate.post(tokens=60))
            await until(lambda: fake.scheduler.running)
            asked.cancel()
            await asked
        server, parts = await of_one_request(collector)
    assert server.attributes["kvgate.outcome"] == "client_closed"
    assert not any(span.failed for span in (server, *parts))


async def test_metrics_go_out_too_with_the_figures_of_the_page(collector, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await kvgate.post(stream=True)
        await until(lambda: "kvgate_requests" in collector.metrics() and collector.spans())
        await until(
            lambda: [point for point in collector.metrics()["kvgate_requests"].sum.data_points if point.as_double]
        )
        page = (await kvgate.client.get("/metrics")).text
    metrics = collector.metrics()
    ended = [point for point in metrics["kvgate_requests"].sum.data_points if point.as_double]
    assert metrics["kvgate_requests"].sum.is_monotonic
    assert [point.as_double for point in ended] == [1.0]
    assert {pair.key: pair.value.string_value for pair in ended[0].attributes} == {
        "model": "fake",
        "outcome": "completed",
    }
    (ttft,) = metrics["kvgate_ttft_seconds"].histogram.data_points
    assert (ttft.count, sum(ttft.bucket_counts), len(ttft.bucket_counts)) == (1, 1, len(ttft.explicit_bounds) + 1)
    assert metrics["kvgate_ttft_seconds"].unit == "s"
    assert [point.as_double for point in metrics["kvgate_endpoint_healthy"].gauge.data_points] == [1.0]
    exposed = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE kvgate_")}
    assert {name.removesuffix("_total") for name in exposed if not name.endswith("_created")} <= metrics.keys()
    assert {instance["service.instance.id"] for instance in collector.resources()} == {
        span.resource["service.instance.id"] for span in collector.spans()
    }


@pytest.mark.parametrize("way", ["slow", "away", "refuses"])
async def test_a_collector_that_does_not_take_it_costs_no_request_anything(collector, monkeypatch, way, capfd):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    match way:
        case "slow":
            collector.free.clear()
        case "away":
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        case "refuses":
            collector.status = 400
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        async with asyncio.timeout(10):
            for _ in range(20):
                assert (await kvgate.post(tokens=1)).status_code == 200

        async def lost():
            page = (await kvgate.client.get("/metrics")).text
            lines = [line for line in page.splitlines() if line.startswith('kvgate_telemetry_dropped_total{signal="tr')]
            return lines and float(lines[0].split()[1]) > 0

        await until(lost)


@pytest.mark.slow
async def test_of_several_processes_each_exports_its_own(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    file = tmp_path / "kvgate.yaml"
    with fake_processes(1) as [(url, _)]:
        configure(file, [url])
        with serving(tmp_path / "kvgate.log", free_port(), "--config", str(file)) as kvgate:
            await asyncio.to_thread(kvgate.wait_healthy, 1)
            async with httpx.AsyncClient(base_url=kvgate.url, timeout=60) as client:
                assert (await client.post(CHAT, json=body())).status_code == 200
            await until(lambda: len({one["service.instance.id"] for one in collector.resources()}) == 3)
            await until(lambda: "kvgate_endpoint_healthy" in collector.metrics())
    server = next(span for span in collector.spans() if span.kind == "SERVER")
    assert server.attributes["kvgate.outcome"] == "completed"
    assert [said for severity, said, _ in collector.lines() if severity == "info"].count("listening") == 2


async def test_off_a_clients_trace_passes_through():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await kvgate.client.post(CHAT, json=body(), headers={"traceparent": PARENT})
        (sent,) = [request for request in fake.seen if request.path == CHAT]
    assert sent.header("traceparent") == PARENT


def test_off_loads_nothing():
    code = "import sys, gateway.app.application; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_variable_is_an_error_at_start(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_ENDPOINT = 'collector:4317': it must be a URL"):
        Application(Settings.model_validate({"server": {"host": "127.0.0.1", "port": 0}}))
