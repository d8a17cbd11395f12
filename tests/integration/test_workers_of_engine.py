"""`kvgate serve --workers 2` in front of a real vLLM: each front streams its answers and counts as the engine does."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from loadtests.sse import EventReader
from tests.conftest import Vllm
from tests.integration.kvgate import PATIENT, serving
from tests.integration.relaying import CHAT
from tests.ports import free_port
from tests.unit.engine.processes import eventually

pytestmark = pytest.mark.engine

EACH = 3
"""Streams through each front at once."""
TOKENS = 24
"""Of each answer."""


async def connected(url: str, stack: AsyncExitStack) -> dict[str, list[httpx.AsyncClient]]:
    """Clients with a connection to each front, by the front."""
    found: dict[str, list[httpx.AsyncClient]] = {}
    async with asyncio.timeout(60):
        while len(found) < 2 or any(len(clients) < EACH for clients in found.values()):
            client = httpx.AsyncClient(base_url=url, timeout=600, trust_env=False)
            await stack.enter_async_context(client)
            tier = (await client.get("/kvgate/state")).json()["tier"]
            assert tier["role"] == "front"
            found.setdefault(tier["id"], []).append(client)
    return {front: clients[:EACH] for front, clients in found.items()}


async def streamed(client: httpx.AsyncClient, model: str, words: int) -> tuple[int, dict[str, Any]]:
    """The prompt's tokens as kvgate counted them, and what `usage` says, of a stream that came whole."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me of the sea. " + "wave " * words}],
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reader, payloads = EventReader(), list[bytes]()
    async with client.stream("POST", CHAT, json=asked) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["x-kvgate-counted"] == "local"
        async for data in answer.aiter_raw():
            payloads += reader.feed(data)
    assert payloads[-1] == b"[DONE]"
    return int(answer.headers["x-kvgate-prompt-tokens"]), msgspec.json.decode(payloads[-2])["usage"]


async def test_both_fronts_stream_whole_answers_and_count_as_the_engine_does(chat_vllm: Vllm, tmp_path: Path) -> None:
    options = ("--endpoint", chat_vllm.url, "--workers", "2")
    with serving(tmp_path / "log", free_port(), *options, environ=PATIENT) as kvgate:
        await asyncio.to_thread(kvgate.wait_healthy, 1)
        same = "prompts are counted as the endpoint counts them"
        assert await asyncio.to_thread(eventually, lambda: kvgate.log.read_text().count(same) == 2)
        async with AsyncExitStack() as stack:
            fronts = await connected(kvgate.url, stack)
            every = [client for clients in fronts.values() for client in clients]
            streams = await asyncio.gather(
                *(streamed(client, chat_vllm.model, 7 * number) for number, client in enumerate(every))
            )
        assert [counted for counted, _ in streams] == [usage["prompt_tokens"] for _, usage in streams]
        assert {usage["completion_tokens"] for _, usage in streams} == {TOKENS}
        assert len({counted for counted, _ in streams}) == 2 * EACH

        def shown() -> dict[str, str]:
            lines = httpx.get(f"{kvgate.url}/metrics", trust_env=False).text.splitlines()
            return dict(line.rsplit(" ", 1) for line in lines if line.startswith("kvgate_"))

        label = f'model="{chat_vllm.model}"'
        done = f'kvgate_requests_total{{{label},outcome="completed"}}'
        assert await asyncio.to_thread(eventually, lambda: float(shown().get(done, 0)) == 2 * EACH)
        assert float(shown()[f"kvgate_prompt_token_drift_total{{{label}}}"]) == 0
        (endpoint,) = kvgate.state()["endpoints"]
        assert (endpoint["in_flight"], endpoint["kv"]["ledger"]) == (0, 0)
