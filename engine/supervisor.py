"""The small parent of everything: keeps a set of programs running, changes it, and ends them in the right order.

When a program that crashed starts again, and when it is given up, is decided in `program_lifecycle.py`.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence

import httpx

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, GaveUp, Retrying, Stopped, SupervisorEvent
from engine.program import Program, Role
from engine.program_lifecycle import State
from engine.runner import Probe, Runner

_PROBE_TIMEOUT = 5.0

News = Callable[[Program, str], None]
"""Takes a line from a program to its supervisor."""


class Supervisor:
    """Runs programs, each with a lifecycle of its own, so that a crash of one leaves the others running.

    Args:
        programs: What to run from the start.
        on_event: Gets every event. `str(event)` is a line for a human.
        on_news: Gets what programs report, except that they are ready.
        on_ended: Told at the end of each role all of whose programs have ended.
        coming: Whether programs of a role come and go: then none of them may be there.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        on_event: Callable[[SupervisorEvent], None],
        on_news: News = lambda _program, _news: None,
        on_ended: Callable[[Role], None] = lambda _role: None,
        coming: Callable[[Role], bool] = lambda _role: False,
    ) -> None:
        self._programs = tuple(programs)
        self._on_event = on_event
        self._on_news = on_news
        self._on_ended = on_ended
        self._coming = coming
        self._running: dict[Runner, asyncio.Task[State]] = {}
        """The programs to run, including those given up."""
        self._leaving: dict[Runner, asyncio.Task[State]] = {}
        self._ending: set[Role] = set()
        """Roles whose programs end for good."""
        self._changed = asyncio.Event()
        self._changing = False
        self._tasks: asyncio.TaskGroup
        self._probe: Probe

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set (exit code 0), or until nothing useful can run any more (exit code 1).

        They end in the order of their roles, within their policies' time limits. When cancelled, it kills everything.
        """
        async with httpx.AsyncClient(timeout=_PROBE_TIMEOUT, trust_env=False) as client:

            async def probe(url: str) -> bool:
                try:
                    return (await client.get(url)).status_code == httpx.codes.OK
                except (httpx.TransportError, httpx.InvalidURL):
                    return False

            async with asyncio.TaskGroup() as tasks:
                self._tasks, self._probe = tasks, probe
                for program in self._programs:
                    self._launch(program, self._on_event)
                useless = await self._of_no_use(stop)
                for role in Role:
                    self._ending.add(role)
                    there = {**self._running, **self._leaving}
                    ending = {runner: task for runner, task in there.items() if runner.program.role is role}
                    for runner in ending:
                        runner.stop()
                    if ending:
                        await asyncio.wait(ending.values())
                        self._on_ended(role)
        return 1 if useless else 0

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """While the block runs, a role without a program is about to get one and is no reason to end."""
        self._changing = True
        try:
            yield
        finally:
            self._changing = False
            self._changed.set()

    async def add(self, program: Program) -> Diagnosis | None:
        """Run one more program. Returns None when it is ready. If its first start fails, drop it and return why.

        Call it only while `run` runs. When cancelled, the program stays. While all of its role end, it is not run:
        nobody would end it.
        """
        if program.role in self._ending:
            return Diagnosis("kvgate is stopping.")
        outcome: asyncio.Future[Diagnosis | None] = asyncio.get_running_loop().create_future()
        crash = Diagnosis("It was stopped before it was ready.")

        def tell(event: SupervisorEvent) -> None:
            nonlocal crash
            self._on_event(event)
            match event:
                case Crashed(diagnosis=diagnosis):
                    crash = diagnosis
                case BecameReady() | Retrying() | GaveUp() | Stopped() if not outcome.done():
                    outcome.set_result(None if isinstance(event, BecameReady) else crash)

        self._launch(program, tell)
        failure = await outcome
        if failure is not None:
            await self.remove(program.name)
        return failure

    def launch(self, program: Program) -> None:
        """Run a program that ran before. Should it not start, it is tried again as after a crash."""
        self._launch(program, self._on_event, was_ready=True)

    def interrupt(self, name: str) -> None:
        """End a program that starts; its `add` returns."""
        for runner in self._running:
            if runner.program.name == name:
                runner.stop()

    async def remove(self, name: str, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask a program to end, with this signal, and wait for its end."""
        runner = self._find(name)
        self._leaving[runner] = task = self._running.pop(runner)
        runner.stop(by)
        await asyncio.wait([task])
        del self._leaving[runner]

    def become(self, name: str, program: Program, line: bytes) -> bool:
        """Turn a program into another one of the same name, see `Runner.become`."""
        return self._find(name).become(program, line)

    def tell(self, name: str, line: bytes) -> bool:
        """Tell a program a line; False if it does not run."""
        return any(runner.tell(line) for runner in self._running if runner.program.name == name)

    def program(self, name: str) -> Program:
        """A program as it runs now, with changes made to fit it."""
        return self._find(name).program

    def gave_up(self, name: str) -> bool:
        """Whether a program will not be started again."""
        return self._find(name).state is State.FAILED

    def hung(self, name: str, reason: str) -> None:
        """Kill a hung program. It starts again as after a crash."""
        self._find(name).hung(reason)

    def _find(self, name: str) -> Runner:
        (runner,) = (runner for runner in self._running if runner.program.name == name)
        return runner

    def _launch(
        self, program: Program, on_event: Callable[[SupervisorEvent], None], *, was_ready: bool = False
    ) -> Runner:
        runner = Runner(program, on_event, self._probe, lambda news: self._on_news(program, news), was_ready=was_ready)
        self._running[runner] = task = self._tasks.create_task(runner.run())
        task.add_done_callback(lambda _: self._changed.set())
        return runner

    async def _of_no_use(self, stop: asyncio.Event) -> bool:
        """Wait until a stop is asked for (False), or until the remaining programs are of no use (True)."""
        stopping = self._tasks.create_task(stop.wait())
        stopping.add_done_callback(lambda _: self._changed.set())
        try:
            while not stop.is_set():
                if not self._changing and self._unfilled():
                    return True
                self._changed.clear()
                await self._changed.wait()
        finally:
            stopping.cancel()
        return False

    def _unfilled(self) -> bool:
        """Whether a role that had a program has none left."""
        filled = {runner.program.role for runner, task in self._running.items() if not task.done()}
        return any(not self._coming(role) for role in {runner.program.role for runner in self._running} - filled)
