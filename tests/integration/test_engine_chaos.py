"""kill -9 at random of what a real vLLM is made of, under load; and a surge from one real engine to another."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Self

import httpx
import pytest

from engine.control import Reload
from engine.events import BecameReady, Crashed, Launched, LinePrinted, SupervisorEvent
from engine.program_lifecycle import Policy
from gateway.config.settings import Settings
from gateway.serve.discovery import Discovery
from gateway.serve.reload import Deployment
from tests.integration.relaying import until
from tests.ports import free_port
from tests.unit.engine.processes import is_alive

pytestmark = pytest.mark.engine

START = 900.0
CLIENTS = 4
PAUSE = 0.3
"""Seconds between two requests of a client: an engine that starts beside the one in use needs a core, too."""
PARTS = {"API server": b"api_server", "engine core": b"EngineCore", "worker": b"VLLM::Worker"}
SIZES = ("--max-model-len=2048", "--block-size=32", "--num-gpu-blocks-override=256")
ARGS = (*SIZES, "--enforce-eager", "--distributed-executor-backend=mp")


class Load:
    """A few clients that stream over kept connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = False
        self.whole = [0] * CLIENTS
        self.refused: list[str] = []
        self.torn: list[str] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def more(self, answers: int) -> None:
        """Until each client had so many more whole."""
        wanted = [had + answers for had in self.whole]
        await until(lambda: all(map(int.__ge__, self.whole, wanted)), timeout=START)

    async def _client(self, number: int) -> None:
        request = {
            "model": "random",
            "prompt": [101 + number, 102, 103],
            "max_tokens": 60,
            "min_tokens": 60,
            "ignore_eos": True,
            "stream": True,
        }
        async with httpx.AsyncClient(base_url=self._url, timeout=START) as client:
            while not self._stop:
                try:
                    async with client.stream("POST", "/v1/completions", json=request) as answer:
                        text = await answer.aread()
                        if answer.status_code != httpx.codes.OK:
                            self.refused.append(f"{answer.status_code} {text[:200]!r}")
                        elif text.endswith(b"data: [DONE]\n\n"):
                            self.whole[number] += 1
                        else:
                            self.torn.append(f"{text[-200:]!r}")
                except httpx.TransportError as error:
                    self.refused.append(repr(error))
                await asyncio.sleep(PAUSE)


def descendants(pid: int) -> dict[int, bytes]:
    """The processes below one, with their command lines."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, tail = process.read_text().rpartition(")")
            children.setdefault(int(tail.split()[1]), []).append(int(head.split(" ")[0]))
    found, todo = {}, [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes()
                todo.append(child)
    return found


def parts(port: int) -> dict[str, int]:
    """The process id of each part of the engine on that port, whose guard may be one of many of this process."""
    number = str(port).encode()
    ours = descendants(os.getpid())
    guards = [pid for pid, line in ours.items() if b"guard.py" in line and number in line.split(b"\0")]
    below = {pid: line for guard in guards for pid, line in descendants(guard).items()}
    named = {part: [pid for pid, line in below.items() if sign in line] for part, sign in PARTS.items()}
    return {part: pids[0] for part, pids in named.items() if pids}


async def killed(alive: dict[str, int], chance: random.Random) -> None:
    """Kill one of the parts, and see the others gone."""
    os.kill(alive[chance.choice(sorted(alive))], signal.SIGKILL)
    await until(lambda: not any(map(is_alive, alive.values())))


def settings(model: Path, python: Path, port: int, *args: str) -> Settings:
    engine = {
        "model": str(model),
        "python": str(python),
        "args": [*ARGS, *args],
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        "start_timeout": START,
    }
    return Settings.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": port},
            # An engine that is started again is waited for.
            "health": {"hung_after": 600},
            "admission": {"ttft_target": "none", "queue": {"no_endpoint_ttl": START}},
            "models": [{"name": "random", "engine": engine}],
        }
    )


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.proof)])
async def test_a_surge_and_kills_at_random_hurt_only_the_streams_on_the_engine(
    kills: int, engine_python: Path, random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    # Each kill stands for itself: as if a minute had passed since the one before.
    patient = Policy(start_timeout=START, max_restarts=2, backoff=0.1, steady_after=0)
    monkeypatch.setattr("gateway.serve.launch._policy", lambda _: patient)
    port, told, said = free_port(), list[SupervisorEvent](), list[str]()
    changed = settings(random_model, engine_python, port, "--max-num-seqs=16")

    def tell(event: SupervisorEvent) -> None:
        if not isinstance(event, LinePrinted):
            told.append(event)

    deployment = Deployment(
        Discovery(settings(random_model, engine_python, port)), lambda *_: changed, tell, said.append
    )
    stop = asyncio.Event()
    running = asyncio.create_task(deployment.run(stop))

    def ready() -> bool:
        """Whether the engine that started last is."""
        starts = [event for event in told if isinstance(event, Launched | BecameReady) and "engine" in event.program]
        return bool(starts) and isinstance(starts[-1], BecameReady)

    def engine() -> int:
        """The port of the engine that started last."""
        launched = [event.program for event in told if isinstance(event, Launched) and "engine" in event.program]
        return next(one.spec.port for one in deployment.engines.running if one.name == launched[-1])

    try:
        await until(ready, timeout=START)
        before = parts(engine())
        assert set(before) == set(PARTS)
        async with Load(f"http://127.0.0.1:{port}") as load:
            await load.more(2)
            assert await deployment.reload(Reload(), said.append) == 0, said
            await load.more(2)
        assert (load.refused, load.torn) == ([], [])
        assert any(": surge: " in line for line in said), "there is memory for both"
        assert not any(map(is_alive, before.values()))

        chance = random.Random(5)  # noqa: S311 - which kills a worker first: nothing else here does
        async with Load(f"http://127.0.0.1:{port}") as load:
            for number in range(kills):
                if number % 2:  # while it starts, at any moment of the first half of that
                    await until(lambda: parts(engine()))
                    await asyncio.sleep(chance.uniform(0, 8))
                if ready() or not number % 2:
                    await until(ready, timeout=START)
                    await load.more(1)  # no request meets two kills: its second one would end it
                await killed(parts(engine()), chance)
            await until(ready, timeout=START)
            await load.more(1)
        assert load.refused == [], "who was not on the engine waits for it"
        assert len(load.torn) <= kills * CLIENTS, "only what was on it is hurt"
        assert sum(isinstance(event, Crashed) for event in told) == kills
    finally:
        left = [*descendants(os.getpid()).items()]
        stop.set()
        assert await asyncio.wait_for(running, 60) == 0
    wanted = str(port).encode()
    assert not [line for pid, line in left if wanted in line and is_alive(pid)]
