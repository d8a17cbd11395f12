"""Engines that say nothing to requests that are only passed on: the rows of docs/adr/0017 hold for these, too."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from tests.clock import unhindered
from tests.integration.relaying import gateway, until

pytestmark = pytest.mark.slow

EMBED = "/v1/embeddings"
HUNG_AFTER = 1.0
METRICS = """
vllm:kv_cache_usage_perc{engine="0"} 0.0
vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} 0
vllm:prompt_tokens_total{engine="0"} %d
vllm:generation_tokens_total{engine="0"} 0
vllm:num_preemptions_total{engine="0"} 0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0"} 1
"""
"""As a vLLM with a pooling model counts: prompts alone."""


class Embedder:
    """A vLLM with a pooling model. Its core may stand still, while its server answers."""

    def __init__(self):
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.asked = 0
        self.running = 0
        self.tokens = 0
        self.connections = set()

    async def answer(self, path):
        match path:
            case "/health":
                return 200, b""
            case "/metrics":
                return 200, (METRICS % (self.running, self.tokens)).encode()
            case "/v1/models":
                return 200, b'{"object":"list","data":[{"id":"bge","root":"/nonexistent","max_model_len":512}]}'
            case "/v1/embeddings":
                self.asked += 1
                self.running += 1
                await asyncio.sleep(0.01)
                await self.goes_on.wait()
                self.running -= 1
                self.tokens += 5
                return 200, b'{"object":"list","data":[]}'
        return 404, b"{}"

    async def serve(self, reader, writer):
        self.connections.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length:")[2].partition("\r")[0] or 0))
                status, body = await self.answer(head.split()[1])
                writer.write(b"HTTP/1.1 %d -\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                await writer.drain()


@pytest.fixture(autouse=True)
def unseen(monkeypatch):
    """The engines run in this process, which computes much else."""

    async def look(_activity):
        return False

    monkeypatch.setattr("gateway.app.activity.Activity.look", look)


@pytest.fixture
async def embedders():
    """Two engines, and a gateway in front of them."""
    engines = [Embedder(), Embedder()]
    async with contextlib.AsyncExitStack() as stack:
        fakes = []
        for engine in engines:
            server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            fakes.append(SimpleNamespace(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen=[]))
        health = {"interval": 0.1, "hung_after": HUNG_AFTER}
        yield *engines, await stack.enter_async_context(gateway(*fakes, health=health))
    for engine in engines:
        engine.goes_on.set()
        await asyncio.gather(*engine.connections)


async def embed(kvgate):
    return (await kvgate.client.post(EMBED, json={"model": "bge", "input": "hi"}, timeout=120)).status_code


async def state_of(kvgate, number):
    return (await kvgate.state())["endpoints"][number]["state"]


async def test_several_that_are_silent_go_elsewhere_and_the_engine_counts_as_hung(embedders):
    """Row 4."""
    hangs, well, kvgate = embedders
    hangs.goes_on.clear()
    began = unhindered()
    assert await asyncio.gather(*(embed(kvgate) for _ in range(12))) == [200] * 12
    assert unhindered() - began < 5 * HUNG_AFTER
    assert hangs.asked >= 2, "of so many some were on it"
    assert await state_of(kvgate, 0) == "hung"
    assert await state_of(kvgate, 1) == "up"
    hung = hangs.asked
    for _ in range(20):
        assert await embed(kvgate) == 200
    assert (hangs.asked, well.asked) == (hung, 12 + 20)


async def test_one_that_is_silent_alone_ends_and_no_other_endpoint_hears_of_it(embedders):
    """Row 3; then the engine gets one request at a time until it answers."""
    hangs, well, kvgate = embedders
    hangs.goes_on.clear()
    well.goes_on.clear()
    assert await embed(kvgate) == 504
    assert sorted([hangs.asked, well.asked]) == [0, 1]
    silent = [hangs.asked, well.asked].index(1)
    assert await state_of(kvgate, silent) == "suspect"
    assert await state_of(kvgate, 1 - silent) == "up"
    hangs.goes_on.set()
    well.goes_on.set()

    async def is_back():
        return await embed(kvgate) == 200 and await state_of(kvgate, silent) == "up"

    await until(is_back)
