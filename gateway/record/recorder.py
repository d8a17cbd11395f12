"""The recorder of the event log. It never makes the event loop wait for the disk."""

import asyncio
import fcntl
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from gateway.admission.commands import Command
from gateway.admission.events import Event
from gateway.record.lines import Changed, Dropped, Line, Opened, Started, encode, happened
from gateway.runtime.private_file import open_private

Record = Callable[[Event, float, Sequence[Command]], None]
"""Called with each event, its time and the core's commands."""

FLUSH_INTERVAL = 0.25
"""Seconds between two writes: a killed process loses that much."""
MAX_PENDING = 64 * 2**20
"""Most bytes that wait for the disk. Further lines are dropped, and their number is noted in the file."""

_log = structlog.get_logger("kvgate.record")


class Recorder:
    """Appends one run to a file. Call `start` once, and `close` at the end.

    Runs follow each other in the file: lines wait while another process writes to it, as an old gateway does until it
    has handed over.

    Args:
        file: created if missing.
        started: the first line.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, file: Path, started: Started) -> None:
        self._path = file
        self._file = open_private(file, "ab+", buffering=0)
        self._lines: list[bytes] = []
        self._pending = 0
        """Bytes not written yet."""
        self._dropped = 0
        self._pools = 0
        self._stopped = False
        self._locked = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._put(started)

    def start(self) -> None:
        """Write from now on."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write what is left and close the file."""
        self._closing.set()
        if self._task is not None:
            await self._task
        self._stopped = True
        fcntl.flock(self._file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open too
        self._file.close()

    def pool(self, model: str) -> Record:
        """The function that records the core of a model."""
        self._pools += 1
        number = self._pools
        self._put(Opened(number, model))

        def record(event: Event, now: float, commands: Sequence[Command]) -> None:
            if not self._stopped:
                self._put(happened(now, number, event, commands))

        return record

    def changed(self, settings: Changed) -> None:
        """Record changed settings; call it before the cores are told."""
        self._put(settings)

    def _turn(self) -> bool:
        """Whether it is this run's turn to write to the file."""
        if not self._locked:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._locked = True
            if self._torn():
                self._lines.insert(0, b"\n")
                self._pending += 1
        return True

    def _torn(self) -> bool:
        """Whether an earlier run was killed in the middle of a line."""
        if self._file.seek(0, 2) == 0:
            return False
        self._file.seek(-1, 2)
        return self._file.read(1) != b"\n"

    def _put(self, line: Line) -> None:
        if self._pending > MAX_PENDING:
            self._dropped += 1
            return
        self._tell_dropped()
        self._take(encode(line))

    def _take(self, text: bytes) -> None:
        self._lines.append(text)
        self._pending += len(text)

    def _tell_dropped(self) -> None:
        if self._dropped:
            _log.warning("events were not recorded: the disk is too slow", file=str(self._path), lines=self._dropped)
            self._take(encode(Dropped(self._dropped)))
            self._dropped = 0

    async def _run(self) -> None:
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(FLUSH_INTERVAL):
                    await self._closing.wait()
            except TimeoutError:
                pass
            await self._flush()
        self._tell_dropped()
        await self._flush()

    async def _flush(self) -> None:
        if self._stopped or not self._lines or not self._turn():
            return
        lines, self._lines = self._lines, []
        try:
            await asyncio.to_thread(self._write, lines)
        except OSError as error:
            self._stopped = True
            self._lines.clear()
            reason = error.strerror or type(error).__name__
            _log.error("the event log cannot be written: recording stops here", file=str(self._path), reason=reason)
        self._pending -= sum(map(len, lines))

    def _write(self, lines: list[bytes]) -> None:
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[self._file.write(rest) :]
