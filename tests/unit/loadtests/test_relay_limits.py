"""What the measurement of the relay's limits measures, on the engine's stand-in alone."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadtests import relay_limits
from loadtests.relay_cost import Bench, Load, Proxy
from loadtests.relay_limits import AIMS, Found, departures, endurance, graph, long_prompt, main, streams, ttft
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind

BENCH = Bench(kvgate="", tokenizer=None, seconds=1.0)
CHAT = "/v1/chat/completions"


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeVllm]:
    """The stand-in in the test's own process, for the proxy too, and loads of a moment."""
    settings = FakeSettings(num_blocks=20_000, max_num_seqs=512, max_model_len=100_000, step_seconds=0.02)
    async with FakeVllm(settings) as fake:
        proxy = Proxy(os.getpid(), fake.port)

        @contextlib.asynccontextmanager
        async def instead(*_: object) -> AsyncIterator[Proxy]:
            yield proxy

        monkeypatch.setattr(relay_limits, "running", instead)
        monkeypatch.setattr(relay_limits, "SETTLE_SECONDS", 0.05)
        monkeypatch.setattr(relay_limits, "BESIDE", Load(5))
        monkeypatch.setattr(relay_limits, "MANY", Load(30))
        monkeypatch.setattr(relay_limits, "MANY_TOKENS", 20)
        monkeypatch.setattr(relay_limits, "LEAVING", 3)
        yield fake


@contextlib.asynccontextmanager
async def direct(_bench: Bench, _name: str, engine: Proxy, _folder: Path) -> AsyncIterator[Proxy]:
    yield engine


class SlowToBegin(asyncio.Protocol):
    """A proxy that keeps what a client sends for a while."""

    def __init__(self, engine: int, seconds: float) -> None:
        self._engine, self._seconds = engine, seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._back = transport
        self._there = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", self._engine))
        self._passing = asyncio.ensure_future(self._pass_back())

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._seconds, self._send, data)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._passing.cancel()

    def _send(self, data: bytes) -> None:
        self._there.result()[1].write(data)

    async def _pass_back(self) -> None:
        reader, writer = await self._there
        with contextlib.closing(writer):
            while data := await reader.read(2**16):
                self._back.write(data)


async def test_what_a_proxy_adds_to_a_ttft_is_told_without_what_the_engine_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.asynccontextmanager
    async def slow(_bench: Bench, name: str, engine: Proxy, _folder: Path) -> AsyncIterator[Proxy]:
        if name != "kvgate":
            yield engine
            return
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: SlowToBegin(engine.port, 0.3), "127.0.0.1", 0)
        async with server:
            yield Proxy(os.getpid(), server.sockets[0].getsockname()[1])

    monkeypatch.setattr(Bench, "proxy", slow)
    monkeypatch.setattr(relay_limits, "RATE", 20.0)
    found = Found()
    await ttft(BENCH, found)
    assert found.figures["added TTFT p50, ms"] >= 250
    assert found.figures["  to the engine through kvgate, p50, ms"] >= 299
    assert found.figures["  back through kvgate, p50, ms"] < 250
    assert found.figures["  added by nginx, p50, ms"] < 250


async def test_gaps_are_those_of_streams_with_long_prompts_and_without(engine: FakeVllm) -> None:
    found = Found()
    await long_prompt(BENCH, found)
    assert found.figures["  p99 gap without, ms"] > 15, "events are 20 ms apart"
    assert found.figures["p99 gap with long prompts / without"] > 0
    assert max(len(seen.body) for seen in engine.seen) > len(relay_limits.LONG_TEXT)


@pytest.mark.parametrize("torn", [0, 1])
async def test_streams_are_checked_to_their_end(engine: FakeVllm, torn: int) -> None:
    for _ in range(torn):
        engine.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=CHAT))
    found = Found()
    await streams(BENCH, found)
    assert found.figures["streams torn or reordered"] == torn
    assert found.figures["  streams"] == 30


@pytest.mark.usefixtures("engine")
async def test_departures_are_seen_in_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "proxy", direct)
    ended: list[bool] = []
    departed = relay_limits._departure

    async def noting(fake: FakeVllm, port: int, request: bytes, *, begun: bool) -> float:
        seconds = await departed(fake, port, request, begun=begun)
        ended.append(b'"stream":true' in request and begun)
        return seconds

    monkeypatch.setattr(relay_limits, "_departure", noting)
    found = Found()
    await departures(BENCH, found)
    assert ended == [False] * 3 + [True] * 3 + [False] * 3
    assert {name for name in found.figures if name in AIMS} == {name for name in AIMS if name.startswith("departure")}


@pytest.mark.usefixtures("engine")
async def test_endurance_leaves_nothing_and_draws_what_it_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_limits, "SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr(relay_limits, "HELD", "vllm:num_requests_running")
    found = Found()
    await endurance(BENCH, found, 200)
    assert found.figures["  requests"] >= 200
    assert found.figures["reservations left"] == 0
    assert len(found.series[relay_limits.MEMORY]) == len(found.times) > 0
    assert graph(found).count("<figure>") >= 2


def test_the_command_prints_and_writes_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def found(_bench: Bench, found: Found) -> None:
        found.figures["KB per stream"] = 20.5

    monkeypatch.setattr(relay_limits, "LOAD_CORE", min(os.sched_getaffinity(0)))
    monkeypatch.setitem(relay_limits.LIMITS, "streams", found)
    monkeypatch.setattr(sys, "argv", ["relay_limits", "--only", "streams", "--out", str(tmp_path)])
    before = os.sched_getaffinity(0)
    try:
        main()
    finally:
        os.sched_setaffinity(0, before)
    shown = capsys.readouterr().out
    assert "20.5" in shown
    assert "24" in shown
    assert '"KB per stream": 20.5' in (tmp_path / "relay_limits.json").read_text()
