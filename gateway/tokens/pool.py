"""The counting pool: runs counting off the event loop, large bodies in other processes.

It is fair by flow, and bounds the bytes that wait and the memory of each process. `interruption.py` ends what takes too
long. Jinja and Python hold the GIL: a large body in a thread would stall the loop, and every stream with it.
"""

import asyncio
import contextlib
import functools
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import queue
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from gateway.runtime.shares import Shares
from gateway.tokens import interruption
from gateway.tokens.count import CountingOverloadedError
from gateway.tokens.fair_queue import FairQueue

P = ParamSpec("P")
R = TypeVar("R")

_JOB_BYTES = 1024
"""Cost of a job besides its body, in bytes: many small bodies of one flow are work too."""

_BYTES_PER_SECOND = 2**20
"""Bytes that a job costs for each second that it occupied a worker, if that is more than its body: some chat templates
take the square of a conversation's length. Ordinary bodies take less."""

_LAST_JOBS = 2.0
"""Seconds that jobs may still run once the pool closes: one may be loading a tokenizer from a silent hub."""


_ENDING = signal.SIGUSR1
"""Ends the job of a process."""

LONGEST = 30.0
"""CPU seconds that a process may take for a job, or a thread where there are no processes. A prompt of a million tokens
takes a few."""


_NICENESS = 5
"""Added to that of a process: where it shares a core with the gateway, streams go first."""


def _in_thread(size: int) -> float:
    """CPU seconds that a thread may take for a body before it goes to a process: four times an ordinary one's.

    A template may bring 40 KB of its own, by `encoding_time`.
    """
    return 0.04 + 4 * size / _BYTES_PER_SECOND


def _in_process(size: int) -> float:
    """CPU seconds that a process may take for a body: fifty times an ordinary one's, for tokenizers in Python."""
    return min(LONGEST, 2.0 + 50 * size / _BYTES_PER_SECOND)


_MOST_MEMORY = 8 * 2**30
"""Bytes of memory that a process may have: twice what encoding 32 MiB of text takes."""

_HEEDED_WITHIN = 2.0
"""Seconds in which a job ends that is told to, or its process does: compiled code hears no signal, and some tokenizers
take the square of a run of digits, half an hour for a megabyte."""

_AGAIN = 0.25
"""Seconds until a job that still runs is told again to end: it may just have begun, or be loading a tokenizer."""


QUICK = "quick"
"""The result of work so cheap that a process may do it right before its first job, instead of in advance."""


class WorkerDiedError(Exception):
    """The process that counted a body died, of the body or not. Its successor is already there."""


class CountingPool:
    """Threads for ordinary bodies, processes for large ones, each kind behind a queue that is fair by flow.

    A job whose caller has left is dropped while it waits, and ended while it runs: in a process at once, or with it
    after two seconds, in a thread where it looks for that. What takes a thread too long begins anew in a process. A
    process that dies is replaced.
    """

    def __init__(self, *, threads: int, processes: int, process_bytes: int, max_pending_bytes: int) -> None:
        """Bounds of the pool.

        Args:
            threads: number that count ordinary bodies.
            processes: number that count large bodies; with 0, the threads do.
            process_bytes: size from which a body counts as large.
            max_pending_bytes: most bytes of bodies waiting or being counted. One flow gets at most half of what the
                others leave.
        """
        thread = functools.partial(_Thread, foresees=processes > 0)
        self._small = _Lane(thread, threads, _in_thread if processes else _in_process)
        self._large = _Lane(_Process, processes, _in_process) if processes else self._small
        self.process_bytes = process_bytes
        self.max_pending_bytes = max_pending_bytes
        self._pending = Shares(lambda: self.max_pending_bytes)

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies whose callers wait."""
        return self._pending.held

    async def run(self, flow: str, size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do work for a flow; return what it returns, raise what it raises.

        Args:
            flow: of the work.
            size: of the body, in bytes.
            work: a module-level function: a process finds it by name.
            *args: its arguments, picklable.
            **kwargs: likewise.

        Raises:
            CountingOverloadedError: too many bytes already wait, in all or of this flow.
            InvalidRequestError: it took too much time or memory.
            WorkerDiedError: the process died.
        """
        pending = self._pending
        if pending.held and not pending.takes(flow, size):
            raise CountingOverloadedError(f"{pending.held} bytes of prompts wait to be counted")
        lane = self._large if size >= self.process_bytes else self._small
        pending.add(flow, size)
        try:
            # No name for the job: with its exception it would keep this frame, and the body, until the next collection.
            return cast("R", await lane.submit(flow, size, functools.partial(work, *args, **kwargs)))
        except interruption.TooMuchHereError:
            if lane is self._large:
                raise interruption.too_much(_in_process(size)) from None
            return cast("R", await self._large.submit(flow, size, functools.partial(work, *args, **kwargs)))
        finally:
            pending.add(flow, -size)

    async def run_everywhere(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do the same work once here and then once in each process, to load what later work needs.

        Here a thread of its own does it, which may take its time: it may have to download. The processes come second,
        and go by what is on disk. If the work says `QUICK` here, they do it when they need it: a process takes 40 MB,
        and many a gateway never gets a large body.

        Raises:
            Exception: whatever the work raises.
            WorkerDiedError: a process died.
        """
        call = functools.partial(work, *args, **kwargs)
        here: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        thread = _Thread()
        thread.submit(call, functools.partial(_settle, here), math.inf)
        thread.end()
        if await here is not QUICK and self._large is not self._small:
            await asyncio.gather(*(self._large.submit("", 0, call) for _ in range(self._large.workers)))

    async def close(self) -> None:
        """Drop waiting jobs, give running ones 2 s to end, and stop. Kills processes; leaves a stuck thread behind."""
        await asyncio.gather(*(lane.close() for lane in {self._small, self._large}))


@dataclass(slots=True, eq=False)
class _Job:
    flow: str
    size: int
    call: Callable[[], Any] | None
    """None once its caller is gone: the body must not stay in memory while others have their turn."""
    done: asyncio.Future[Any]
    began: float = 0.0


_Ended = Callable[[Any, BaseException | None], None]
"""Called on the event loop with what a job returned or raised."""


class _Worker(Protocol):
    """Does one job at a time."""

    def submit(self, call: Callable[[], Any], ended: _Ended, longest: float, /) -> None:
        """Begin a job that may take so many CPU seconds.

        Raises:
            BrokenProcessPool: the worker has died.
            OSError, RuntimeError: it could not start.
        """
        ...

    def interrupt(self) -> None:
        """End the present job as soon as it can be ended, and stay for the next."""
        ...

    def end(self) -> None:
        """Stop at once, whatever it is doing. Blocks briefly."""
        ...


class _Lane:
    """Workers of one kind, each with at most one job, and the queue before them.

    `longest`: CPU seconds that they may take for a body of so many bytes.
    """

    def __init__(self, make: Callable[[], _Worker], workers: int, longest: Callable[[int], float]) -> None:
        self.workers = workers
        self._make = make
        self._longest = longest
        self._idle = [make() for _ in range(workers)]
        self._queue: FairQueue[_Job] = FairQueue()
        self._running: dict[_Job, _Worker] = {}
        self._at_rest: asyncio.Future[None] | None = None

    def submit(self, flow: str, size: int, call: Callable[[], Any]) -> asyncio.Future[Any]:
        job = _Job(flow, size, call, asyncio.get_running_loop().create_future())
        job.done.add_done_callback(functools.partial(self._left, job))
        self._queue.push(flow, size + _JOB_BYTES, job)
        self._dispatch()
        return job.done

    async def close(self) -> None:
        while self._queue:
            self._queue.pop().done.cancel()
        if self._running:
            self._at_rest = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._at_rest], timeout=_LAST_JOBS)
        workers = [*self._idle, *self._running.values()]
        for job in self._running:
            job.done.cancel()
        self._running.clear()
        await asyncio.gather(*(asyncio.to_thread(worker.end) for worker in workers))

    def _dispatch(self) -> None:
        while self._idle and self._queue:
            job = self._queue.pop()
            if job.call is None or job.done.cancelled():
                continue
            worker = self._idle.pop()
            job.began = time.monotonic()
            ended, longest = functools.partial(self._ended, job), self._longest(job.size)
            try:
                try:
                    worker.submit(job.call, ended, longest)
                except BrokenProcessPool:  # it died while idle: not because of this job
                    worker = self._make()
                    worker.submit(job.call, ended, longest)
            except (OSError, RuntimeError) as error:  # starting a process takes descriptors, and a thread
                self._idle.append(self._make())
                _end(worker)
                job.done.set_exception(error if isinstance(error, OSError) else WorkerDiedError(str(error)))
            else:
                self._running[job] = worker

    def _left(self, job: _Job, done: asyncio.Future[Any]) -> None:
        """Let go of a job whose caller no longer waits for it."""
        if done.cancelled():
            job.call = None
            self._interrupt(job)

    def _interrupt(self, job: _Job) -> None:
        worker = self._running.get(job)
        if worker is not None:
            worker.interrupt()
            asyncio.get_running_loop().call_later(_AGAIN, self._interrupt, job)

    def _ended(self, job: _Job, result: Any, error: BaseException | None) -> None:
        worker = self._running.pop(job, None)
        if worker is None:  # given up by `close`
            return
        occupied, longest = time.monotonic() - job.began, self._longest(job.size)
        self._queue.charge(job.flow, max(0.0, occupied * _BYTES_PER_SECOND - job.size))
        if isinstance(error, BrokenProcessPool):
            _end(worker)
            worker = self._make()
            died = WorkerDiedError("the process that counted a prompt died")
            error = interruption.too_much(longest) if occupied >= longest else died
        self._idle.append(worker)
        _settle(job.done, result, error)
        self._dispatch()
        if self._at_rest is not None and not self._running and not self._at_rest.done():
            self._at_rest.set_result(None)


def _end(worker: _Worker) -> None:
    """End a worker that is replaced, in a thread if one can start."""
    try:
        asyncio.get_running_loop().run_in_executor(None, worker.end)
    except RuntimeError:
        worker.end()


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)


class _Thread:
    """A daemon thread: unlike those of the library's pool, the interpreter does not wait for it at exit.

    It calls the loop directly: a future of `concurrent.futures` and its path to the loop cost as much as a short count.
    `foresees`: see `interruption.limited`; not where there are no processes to do what will take too long.
    """

    def __init__(self, *, foresees: bool = True) -> None:
        self._foresees = foresees
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.AbstractEventLoop, _Ended, float] | None] = (
            queue.SimpleQueue()
        )
        self._left = threading.Event()
        threading.Thread(target=self._work, name="counting", daemon=True).start()

    def submit(self, call: Callable[[], Any], ended: _Ended, longest: float, /) -> None:
        self._left.clear()
        self._jobs.put((call, asyncio.get_running_loop(), ended, longest))

    def interrupt(self) -> None:
        self._left.set()

    def end(self) -> None:
        """Stop when the present job has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        interruption.follow(self._left)
        while (job := self._jobs.get()) is not None:
            call, loop, ended, longest = job
            result, error = None, None
            try:
                with interruption.limited(longest, foresees=self._foresees):
                    result = call()
            except BaseException as raised:  # noqa: BLE001  # whatever it is, its caller shall have it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(ended, result, error)
            del job, call, ended, result, error  # a body may be large, and the next job may come late


class _Process:
    """A process of its own, which starts with the first job and then stays."""

    def __init__(self) -> None:
        # If this process is killed, its leftover semaphores are cleaned up without a warning.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
        self._executor: ProcessPoolExecutor | None = None

    def submit(self, call: Callable[[], Any], ended: _Ended, longest: float, /) -> None:
        if self._executor is None:
            # Spawned, not forked: this process has threads.
            self._executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_settle_in)
        # The child inherits the mask, so from its first moment Ctrl-C goes to this process alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self._executor.submit(interruption.interruptible, call, longest)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        asyncio.wrap_future(future).add_done_callback(functools.partial(_tell, ended))

    def interrupt(self) -> None:
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(cast("int", process.pid), _ENDING)

    def end(self) -> None:
        if self._executor is None:
            return
        # As `kill_workers` of Python 3.14 does.
        for process in self._processes():
            process.kill()
        with contextlib.suppress(RuntimeError):  # it waits for its thread, which may never have started
            self._executor.shutdown(cancel_futures=True)

    def _processes(self) -> list[multiprocessing.process.BaseProcess]:
        return [*((self._executor and self._executor._processes) or {}).values()]  # noqa: SLF001


def _tell(ended: _Ended, future: asyncio.Future[Any]) -> None:
    if not future.cancelled():  # dropped by `end`
        error = future.exception()
        ended(None if error is not None else future.result(), error)


def _settle_in() -> None:
    """The first act of a new process: make sure that it ends when its parent is gone, and never waits for a hub.

    What its jobs need is on disk: the parent has it.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.nice(_NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY if hard < 0 else min(_MOST_MEMORY, hard), hard))
    signals = interruption.listen(_ENDING)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel, signals), daemon=True).start()


def _watch(parent: int, signals: int) -> None:
    """End this process when its parent is gone, or if its job does not heed a signal.

    Args:
        parent: readable once that is gone.
        signals: readable when a signal came.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {_ENDING})  # it is for the thread that counts
    wait = multiprocessing.connection.wait
    while parent not in wait([parent, signals]):
        job = interruption.present()  # first: what comes then is for this job or a later one
        told = interruption.signals()
        if (
            job is not None
            and (_ENDING in told or interruption.overdue())
            and (wait([parent], _HEEDED_WITHIN) or interruption.present() == job)
        ):
            break
    os._exit(1)
