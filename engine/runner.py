"""The asyncio driver of one program's lifecycle: it feeds in events, carries out commands and reports."""

import asyncio
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from engine import events, program_lifecycle
from engine.diagnosis.log_cause import ENOUGH_OF_A_LINE, diagnose
from engine.diagnosis.look import corroborated
from engine.diagnosis.serving import BEFORE_THE_END
from engine.diagnosis.sign import Diagnosis
from engine.judgement import judge
from engine.memory_ladder import MOST_TRIES
from engine.phases import Progress, StartPhase, StartProgress
from engine.process import READY, GuardedProcess, LaunchError
from engine.program import Program
from engine.program_lifecycle import Lifecycle, State
from engine.start_times import StartTimes, Stopwatch

Probe = Callable[[str], Awaitable[bool]]
"""Returns whether a URL answers 200."""

_PROBE_INTERVAL = 0.25
_TURN_INTERVAL = 0.5
_LOG_LINES = 2_000
_OVER = frozenset({State.STOPPED, State.FAILED})


class Runner:
    """Keeps one program running until it is stopped or given up. Only `run` writes to its lifecycle."""

    def __init__(
        self,
        program: Program,
        on_event: Callable[[events.SupervisorEvent], None],
        probe: Probe,
        on_news: Callable[[str], None] = lambda _news: None,
        *,
        was_ready: bool = False,
    ) -> None:
        self.program = program
        self._on_news = on_news
        self._tell = on_event
        self._probe = probe
        self._lifecycle = Lifecycle(program.policy, was_ready=was_ready)
        self._inbox: asyncio.Queue[program_lifecycle.Event] = asyncio.Queue()
        self._due: float | None = None
        self._process: GuardedProcess | None = None
        self._launched_at = 0.0
        self._ready = asyncio.Event()
        self._ending = signal.SIGTERM
        self._hung = ""
        self._killed = False
        self._diagnosis: Diagnosis | None = None

    @property
    def state(self) -> State:
        """The program's state."""
        return self._lifecycle.state

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask the program to end, with this signal. `run` returns when it has. A later call may send another signal."""
        self._ending = by
        if self.state is State.DRAINING and self._process is not None:
            self._process.send(by)
        self._inbox.put_nowait(program_lifecycle.Stop())

    def hung(self, reason: str) -> None:
        """End a hung program, as if it had crashed for that reason."""
        if self.state is State.READY and self._process is not None:
            self._hung = reason
            self._process.kill()

    def become(self, program: Program, line: bytes) -> bool:
        """Go on as another program with the same command line, told by this line; False if no process runs.

        The next start will be the new program's.
        """
        self.program = program
        self._lifecycle.policy = program.policy
        return self.tell(line)

    def tell(self, line: bytes) -> bool:
        """Tell the program a line; False if no process runs."""
        return self.state is State.READY and self._process is not None and self._process.tell(line)

    async def run(self) -> State:
        """Run the program until it is `STOPPED` or `FAILED`. When cancelled, kill it with all its children."""
        for choice in self.program.choices:
            self._tell(events.Chosen(self.program.name, choice))
        self._inbox.put_nowait(program_lifecycle.Start())
        async with asyncio.TaskGroup() as tasks:
            while True:
                event = await self._next()
                before = self.state
                commands = self._lifecycle.handle(event, _now())
                self._announce(before)
                for command in commands:
                    self._carry_out(command, tasks)
                if self.state in _OVER:
                    return self.state

    async def _next(self) -> program_lifecycle.Event:
        try:
            async with asyncio.timeout_at(self._due):
                return await self._inbox.get()
        except TimeoutError:
            self._due = None
            return program_lifecycle.Tick()

    def _carry_out(self, command: program_lifecycle.Command, tasks: asyncio.TaskGroup) -> None:
        match command:
            case program_lifecycle.Launch():
                tasks.create_task(self._run_once(tasks))
            case program_lifecycle.Terminate():
                if self._process is not None:
                    self._process.send(self._ending)
            case program_lifecycle.Kill(overdue):
                if overdue:
                    self._tell(events.Overdue(self.program.name))
                self._killed = True
                if self._process is not None:
                    self._process.kill()
            case program_lifecycle.WakeAt(at):
                self._due = at

    def _announce(self, before: State) -> None:
        name, now = self.program.name, self.state
        if now is before:
            return
        why = self._diagnosis or Diagnosis("It has not run.")
        if now in {State.BACKOFF, State.FAILED}:
            self._tell(events.Crashed(name, why))
        match now:
            case State.STARTING:
                self._tell(events.Launched(name, self._lifecycle.failures + 1))
            case State.READY:
                self._tell(events.BecameReady(name, _now() - self._launched_at))
            case State.BACKOFF:
                self._tell(events.Retrying(name, self._lifecycle.delay()))
            case State.FAILED:
                self._tell(events.GaveUp(name, why))
            case State.DRAINING:
                self._tell(events.Stopping(name))
            case State.STOPPED:
                self._tell(events.Stopped(name))

    async def _run_once(self, tasks: asyncio.TaskGroup) -> None:
        """Run the process once, from launch to its end."""
        program, progress = self.program, StartProgress(self.program.phases)
        log = deque[tuple[float, str]](maxlen=_LOG_LINES)

        def on_line(line: str) -> None:
            self._tell(events.LinePrinted(program.name, line))
            line = line[:ENOUGH_OF_A_LINE]
            log.append((_now(), line))
            if self.state is State.STARTING and (further := progress.read(line)):
                self._tell_progress(further, before, new=watch.enter(further.phase, _now()))
                if further.phase >= StartPhase.LOADING:
                    self._give_back()

        self._launched_at = _now()
        self._ready.clear()
        self._hung = ""
        self._killed = False
        if not await self._turn_to_download():
            if self._killed:
                self._diagnosis = Diagnosis(
                    f"Another launch was still downloading its model after {program.policy.start_timeout:g} s.",
                    "Wait for that one, or end it; a slow download needs a higher engine.start_timeout.",
                )
            self._inbox.put_nowait(program_lifecycle.Exited())
            return
        before, watch = program.history.read() if program.history is not None else StartTimes(), Stopwatch(_now())
        if before.of(progress.current.phase) is not None:
            self._tell_progress(progress.current, before, new=True)
        try:
            self._process = await GuardedProcess.launch(
                program.argv,
                env=program.env,
                stdin=program.stdin,
                on_line=on_line if program.follows_log else None,
                fds=program.fds,
                on_news=self._hear if program.tells else None,
            )
        except LaunchError as error:
            self._give_back()
            self._diagnosis = Diagnosis(f"It cannot be started: {error}", permanent=True)
            self._inbox.put_nowait(program_lifecycle.Exited(permanent=True))
            return
        # It was asked to end, or ran out of time, during its launch.
        if self._killed:
            self._process.kill()
        elif self.state is State.DRAINING:
            self._process.send(self._ending)
        probing = tasks.create_task(self._report_ready(log, watch))
        try:
            code = await self._process.wait()
        finally:
            probing.cancel()
            self._process = None
            self._give_back()
        self._conclude(await self._why(log, code, progress), code)

    def _tell_progress(self, progress: Progress, before: StartTimes, *, new: bool) -> None:
        takes, left = (before.of(progress.phase), before.left(progress.phase)) if new else (None, None)
        self._tell(events.Progressed(self.program.name, progress, takes, left))

    async def _turn_to_download(self) -> bool:
        """Wait while another launch downloads the same model; False if asked to end, or out of time, meanwhile."""
        download, told = self.program.download, False
        while download is not None and not await asyncio.to_thread(download.take):
            if self._killed or self.state is State.DRAINING:
                return False
            if not told:
                self._tell(events.Waiting(self.program.name, f"another launch downloads {download.model}"))
                told = True
            await asyncio.sleep(_TURN_INTERVAL)
        return True

    def _give_back(self) -> None:
        if self.program.download is not None:
            self.program.download.give_back()

    async def _why(self, log: deque[tuple[float, str]], code: int, progress: StartProgress) -> Diagnosis:
        if self._hung:
            return Diagnosis(self._hung)
        if self._killed and self.state is State.STARTING:
            return Diagnosis(
                f"It was not ready {self.program.policy.start_timeout:g} s after its launch, and was killed while "
                f"{progress.current}.",
                "Give it longer with engine.start_timeout, or see in its log what it waited for.",
            )
        served = self.state is not State.STARTING
        since = _now() - BEFORE_THE_END if served else 0.0
        lines = [line for at, line in log if at >= since]
        # Thousands of long lines take it a second, in which the other programs' lines must be read.
        return await asyncio.to_thread(lambda: corroborated(diagnose(lines, code, served=served)))

    def _conclude(self, diagnosis: Diagnosis, code: int) -> None:
        """Judge why the process ended, and what that means for the next start."""
        starting = self.state is State.STARTING and not self._lifecycle.was_ready
        judgement = judge(self.program, diagnosis, code, self._diagnosis, starting=starting)
        self._diagnosis = judgement.diagnosis
        if (refit := judgement.refit) is not None:
            name = self.program.name
            self._tell(events.Crashed(name, judgement.diagnosis))
            self._tell(events.Refitted(name, refit.attempt, MOST_TRIES, refit.why))
            self.program = replace(refit.program, download=self.program.download)
        self._inbox.put_nowait(program_lifecycle.Exited(judgement.permanent, refitted=refit is not None))

    def _hear(self, news: str) -> None:
        if news == READY:
            self._ready.set()
        else:
            self._on_news(news)

    async def _report_ready(self, log: deque[tuple[float, str]], watch: Stopwatch) -> None:
        url = self.program.ready_url
        while url is not None and not await self._probe(url):  # noqa: ASYNC110 - nobody else would set an event
            await asyncio.sleep(_PROBE_INTERVAL)
        if self.program.tells:
            await self._ready.wait()
        if self.program.history is not None:
            self.program.history.write(watch.ready(_now()))
        log.clear()  # errors before it ran do not explain a later end
        self._inbox.put_nowait(program_lifecycle.BecameReady())


def _now() -> float:
    return asyncio.get_running_loop().time()
