"""A request's trace through kvgate and a real vLLM, which exports its own spans."""

from pathlib import Path

import httpx
import pytest

from tests.conftest import VllmFactory
from tests.fakes.collector import collecting
from tests.integration.kvgate import PATIENT, serving
from tests.integration.relaying import until
from tests.ports import free_port

pytestmark = pytest.mark.engine


async def test_the_span_of_the_engine_hangs_below_that_of_the_try(vllm: VllmFactory, tmp_path: Path) -> None:
    with collecting() as collector:
        engine = vllm(
            args={"--otlp-traces-endpoint": f"{collector.url}/v1/traces"},
            env={"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        )
        environ = {**PATIENT, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        log = tmp_path / "kvgate.log"
        try:
            with serving(log, free_port(), "--endpoint", engine.url, environ=environ) as kvgate:
                kvgate.wait_healthy(1)
                async with httpx.AsyncClient(base_url=kvgate.url, timeout=600) as client:
                    asked = {"model": "random", "prompt": [101, 102, 103], "max_tokens": 4, "stream": True}
                    answer = await client.post("/v1/completions", json=asked)
                    assert answer.status_code == 200
                    request = answer.headers["x-request-id"]

                    def ours():
                        return [s for s in collector.spans() if s.attributes.get("kvgate.request_id") == request]

                    def theirs():
                        trace = [span.trace for span in ours()]
                        return [s for s in collector.spans() if s.name == "llm_request" and s.trace in trace]

                    await until(lambda: ours() and theirs())
        finally:
            engine.stop()
        (server,), (engines,) = ours(), theirs()
        (tried,) = [span for span in collector.spans() if span.trace == server.trace and span.kind == "CLIENT"]
    assert engines.parent == tried.id
    assert tried.parent == server.id
    assert tried.began <= engines.began <= engines.ended <= tried.ended
    assert engines.attributes["gen_ai.usage.prompt_tokens"] == server.attributes["gen_ai.usage.input_tokens"] == 3
