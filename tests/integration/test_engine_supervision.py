"""The supervisor over a real vLLM: it starts, dies in every way, comes back, and leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from engine import events
from engine.assembly import assembled
from engine.events import SupervisorEvent
from engine.phases import StartPhase
from engine.program import Program
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.supervisor import Supervisor
from engine.vllm.kind import VLLM
from tests.ports import free_port
from tests.unit.engine.processes import eventually, is_alive

pytestmark = pytest.mark.engine

START = 900.0
ARGS = ("--max-model-len", "2048", "--block-size", "32", "--dtype", "float32", "--enforce-eager")
POLICY = Policy(start_timeout=START, stop_timeout=30, max_restarts=2, backoff=0.5)

Event = TypeVar("Event", bound=SupervisorEvent)


class Running:
    """A supervisor over one engine, and all it has told."""

    def __init__(self, program: Program) -> None:
        self.told: list[SupervisorEvent] = []
        self.stop = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(Supervisor([program], self._hear).run(self.stop))

    def _hear(self, event: SupervisorEvent) -> None:
        self.told.append(event)
        self._news.set()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.told if isinstance(event, kind)]

    async def until(self, kind: type[SupervisorEvent], times: int = 1) -> None:
        async with asyncio.timeout(START):
            while len(self.of(kind)) < times:
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def running(program: Program) -> AsyncIterator[Running]:
    at_work = Running(program)
    try:
        yield at_work
    finally:
        at_work.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await at_work.task


def spec(python: Path, model: Path | str, *args: str, port: int = 0) -> EngineSpec:
    return EngineSpec(VLLM, "random/0", str(model), "random", port or free_port(), python, args=(*ARGS, *args))


def family(guard_parent: int) -> dict[str, int]:
    """The engine's processes below this process, by what they call themselves."""
    found: dict[str, int] = {}
    todo = [guard_parent]
    while todo:
        parent = todo.pop()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                head, _, tail = stat.read_text().rpartition(")")
                if int(tail.split()[1]) == parent and tail.split()[0] != "Z":
                    pid = int(head.split(" ")[0])
                    title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[title] = pid
                    todo.append(pid)
    return found


def family_of(engine: EngineSpec) -> dict[str, int]:
    """This engine's guard and all below it; other tests may have engines that run beside it."""
    guard = next(pid for title, pid in family(os.getpid()).items() if "guard.py" in title and str(engine.port) in title)
    return {"guard.py": guard, **family(guard)}


def one(processes: dict[str, int], part: str, *, but: str = "guard.py") -> int:
    (pid,) = (pid for title, pid in processes.items() if part in title and but not in title)
    return pid


def shared_memory(pid: int) -> set[Path]:
    """The files in memory that the process shares with others."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split()[-1]) for line in maps if "/dev/shm/psm_" in line}  # noqa: S108


async def healthy(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        return (await client.get(f"{url}/health")).status_code == httpx.codes.OK


async def test_a_real_engine_starts_dies_and_stops(engine_python: Path, random_model: Path) -> None:
    engine = spec(engine_python, random_model, "--num-gpu-blocks-override", "256")
    async with running(assembled(engine, POLICY)) as at_work:
        await at_work.until(events.BecameReady)
        assert await healthy(engine.url)
        told = [event.progress for event in at_work.of(events.Progressed)]
        assert [progress.phase for progress in told] == sorted(progress.phase for progress in told)
        assert {StartPhase.CONFIGURING, StartPhase.LOADING, StartPhase.PROFILING, StartPhase.SERVING} <= {
            p.phase for p in told
        }
        assert "8,192 tokens" in [progress.detail for progress in told]

        processes = family_of(engine)
        assert len(processes) >= 3
        os.kill(one(processes, "EngineCore"), signal.SIGKILL)
        await at_work.until(events.Retrying)
        (crash,) = at_work.of(events.Crashed)
        assert "died without a word" in crash.diagnosis.cause
        assert not any(map(is_alive, processes.values()))

        at_work.stop.set()
        assert await asyncio.wait_for(at_work.task, 60) == 0


PARENT = """
import asyncio, sys
from pathlib import Path
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM
from engine.program_lifecycle import Policy
from engine.assembly import assembled
from engine.supervisor import Supervisor
spec = EngineSpec(VLLM, "e", sys.argv[2], "e", int(sys.argv[3]), Path(sys.argv[1]), args=tuple(sys.argv[4:]))
tell = lambda event: print(event, flush=True)
asyncio.run(Supervisor([assembled(spec, Policy())], tell).run(asyncio.Event()))
"""


def test_a_parent_killed_with_sigkill_leaves_no_engine(engine_python: Path, random_model: Path) -> None:
    args = [*ARGS, "--num-gpu-blocks-override=256", "--distributed-executor-backend=mp"]  # with a worker of its own
    engine = [str(engine_python), str(random_model), str(free_port()), *args]
    # One engine of the suite has the processes that a user's has, with no quick start: spawned, and a tracker more.
    as_a_user = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PARENT, *engine]
    with subprocess.Popen(command, env=as_a_user, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            assert any("ready after" in line for line in parent.stdout if " | " not in line)
            processes = family(parent.pid)
            one(processes, "EngineCore")
            one(processes, "resource_tracker")
            shared = {path for pid in processes.values() for path in shared_memory(pid)}
        finally:
            parent.kill()
    assert eventually(lambda: not any(map(is_alive, processes.values())))
    assert shared
    assert not [path for path in shared if path.exists()]


async def test_a_missing_folder_is_given_up_at_once_and_readably(quick_python: Path, tmp_path: Path) -> None:
    await _fails_at_once(spec(quick_python, tmp_path / "no"), f"The model folder {tmp_path}/no does not exist.")


async def test_a_taken_port_is_given_up_at_once_and_readably(quick_python: Path, random_model: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        engine = spec(quick_python, random_model, port=other.getsockname()[1])
        await _fails_at_once(engine, "The engine's port is taken by another process.")


async def _fails_at_once(engine: EngineSpec, cause: str) -> None:
    async with running(assembled(engine, POLICY)) as at_work:
        assert await asyncio.wait_for(at_work.task, START) == 1
        assert [event.diagnosis.cause for event in at_work.of(events.GaveUp)] == [cause]
        assert len(at_work.of(events.Launched)) == 1
