"""OpenAI's Node SDK with nothing changed but its base URL."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.vllm import FakeVllm, Fault, FaultKind
from tests.integration.relaying import CHAT, gateway

pytestmark = pytest.mark.network
SCRIPT = Path(__file__).with_name("openai_node.mjs")
TEXT = "".join(f" {number}" for number in range(20))


async def run(node_modules, base_url, model, prompt):
    argv = ("node", str(SCRIPT), str(node_modules), base_url, model, prompt)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    return json.loads(output)


class BreaksOnDemand(FakeVllm):
    """Tears the streams of the user called "break"."""

    def _on_request(self, connection, seen):
        if b'"user":"break"' in seen.body and seen.path == CHAT:
            self.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=CHAT))
        super()._on_request(connection, seen)


async def test_answers_errors_and_retries(node_modules):
    async with BreaksOnDemand() as fake, gateway(fake) as kvgate:
        fake.faults.add(Fault(FaultKind.CLOSE_BEFORE_ANSWER, path=CHAT, times=2))
        seen = await run(node_modules, f"http://127.0.0.1:{kvgate.port}/v1", "fake", "one two")
        assert seen["whole"] == TEXT
        assert seen["requestId"]
        assert "".join(seen["pieces"]) == TEXT
        assert len(seen["pieces"]) > 20
        assert seen["completion"] == " 0 1 2 3"
        assert seen["unknown"] == {"kind": "NotFoundError", "status": 404, "code": "model_not_found"}
        assert seen["tooLong"] == {"kind": "BadRequestError", "status": 400, "code": "context_length_exceeded"}
        assert seen["torn"] == " 0 1 2"
        assert seen["broken"] == {"kind": "APIError", "status": None, "code": "upstream_error"}
        ended = await kvgate.outcomes()
        assert ended.pop("completed") == 3
        # The first request failed and was tried again by the SDK, the last one broke.
        assert ended == {"upstream_error": 2, "model_not_found": 1, "context_length_exceeded": 1}


@pytest.mark.engine
async def test_a_real_model_answers(node_modules, kvgate):
    question = "What is the capital of France?"
    seen = await run(node_modules, f"{kvgate.url}/v1", "smollm2", question)
    assert "Paris" in seen["whole"]
    assert "".join(seen["pieces"]) == seen["whole"]
    assert len(seen["pieces"]) > 3
    assert seen["tooLong"]["code"] == "context_length_exceeded"
    assert seen["broken"] is None
