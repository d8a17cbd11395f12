"""The asyncio handle of a guarded program: start it, read its lines, signal it, kill its whole group.

When it is told to end, and when it is killed, `program_lifecycle.py` decides.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

OnLine = Callable[[str], None]

NEWS = "KVGATE_NEWS_FD"
"""The variable that names the descriptor on which a program talks with its supervisor, if it was promised one."""
READY = "ready"
"""A program's line to its supervisor when it is ready."""
_GUARD = Path(__file__).with_name("guard.py")
_LINE_END = re.compile(rb"[\r\n]")  # progress bars end a line with a carriage return
_LONGEST_LINE = 65_536
"""Most bytes of a line to tell. The rest is lost: without its beginning, nobody could say what it is."""
_OUTPUT_GRACE = 2.0
"""Seconds from one look at a killed group to the next."""
_LOOKS = 15
"""Looks until what is left of it is no longer waited for."""


class LaunchError(Exception):
    """The program could not be started at all. The text gives the reason."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class GuardedProcess:
    """One run of a program under a guard (see `engine.guard`). `launch` makes it; it is over when `wait` returns.

    Attributes:
        pid: The program's own process id.
        group: Process group of the program, its children and their guard.
    """

    def __init__(self, guard: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = 0
        self.group = guard.pid
        self._guard = guard
        self._reader = reader
        self._writer = writer
        self._readers: list[asyncio.Task[None]] = []
        self._told: asyncio.StreamWriter | None = None

    @classmethod
    async def launch(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes | None = None,
        on_line: OnLine | None = None,
        fds: Sequence[int] = (),
        on_news: OnLine | None = None,
    ) -> Self:
        """Start `argv` with exactly the environment `env`.

        Args:
            argv: The program and its arguments.
            env: Its whole environment.
            stdin: Its whole standard input.
            on_line: Gets each line of its stdout and stderr, cut to 64 KiB. Without it, both go to this process's own.
            fds: Descriptors of this process that it inherits, under the same numbers.
            on_news: Gets each line that it writes to the descriptor that `NEWS` names in its environment. `tell` writes
                to the same descriptor.

        Raises:
            LaunchError: The program does not exist or may not be executed, or the machine has no room for a process.
        """
        ours, theirs = socket.socketpair()
        news, tells = socket.socketpair()
        with theirs, tells:
            promised = {NEWS: str(tells.fileno())} if on_news else {}
            try:
                guard = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(_GUARD), str(theirs.fileno()), *argv),
                    env={**env, **promised},
                    stdin=DEVNULL if stdin is None else PIPE,
                    stdout=PIPE if on_line else None,
                    stderr=STDOUT if on_line else None,
                    pass_fds=(theirs.fileno(), *fds, *([tells.fileno()] if on_news else [])),
                    process_group=0,  # not a session: see `guard`
                )
            except BaseException as error:
                ours.close()
                news.close()
                if isinstance(error, OSError):  # no memory or process ids left
                    raise LaunchError(f"{argv[0]}: {error.strerror}") from error
                raise
        process = cls(guard, *await asyncio.open_connection(sock=ours))
        if on_news is not None:
            reader, process._told = await asyncio.open_connection(sock=news)
            process._follow(reader, on_news)
        else:
            news.close()
        try:
            await process._begin(stdin, on_line)
        except BaseException:
            await process._end()
            raise
        return process

    def send(self, number: signal.Signals) -> None:
        """Send the program, and only it, SIGTERM, SIGINT or SIGUSR1."""
        with contextlib.suppress(ProcessLookupError):
            self._guard.send_signal(number)

    def tell(self, line: bytes) -> bool:
        """Write a line to the descriptor that `NEWS` names; False if the program was promised none."""
        if self._told is None:
            return False
        self._told.write(line + b"\n")
        return True

    def kill(self) -> None:
        """Kill the program, its children and their guard at once."""
        # The id stays taken while a member of the group lives, and the guard lives until it is killed here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the program's end, kill the rest of its group, and return its exit code (negative: the signal)."""
        try:
            said = (await self._reader.readline()).split()
        finally:
            await self._end()
        return int(said[1]) if said else -signal.SIGKILL

    async def _begin(self, stdin: bytes | None, on_line: OnLine | None) -> None:
        if on_line is not None and self._guard.stdout is not None:
            self._follow(self._guard.stdout, on_line)
        if stdin is not None and self._guard.stdin is not None:
            self._guard.stdin.write(stdin)
            self._guard.stdin.close()
        said, _, rest = (await self._reader.readline()).decode().strip().partition(" ")
        if said != "started":
            raise LaunchError(rest or "its guard died before it started")
        self.pid = int(rest)

    async def _end(self) -> None:
        self.kill()
        await self._read_rest()
        await self._guard.wait()
        for writer in (self._writer, self._told):
            if writer is not None:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    async def _read_rest(self) -> None:
        """Read what is left of the output: until its end, or a while longer than the group lives.

        Only a process outside the group can hold a pipe then. One inside may take long to die, with a GPU's memory.
        """
        if not self._readers:
            return
        for _ in range(_LOOKS):
            _, left = await asyncio.wait(self._readers, timeout=_OUTPUT_GRACE)
            if not left:
                return
            if not self._lives():
                break
        for reader in left:
            reader.cancel()
        # Before Python 3.12.4 the guard's `wait` waits for the end of its output, too.
        self._guard._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way to it

    def _lives(self) -> bool:
        """Whether a process of the group is left, dead ones that nobody has asked after included."""
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        return True

    def _follow(self, pipe: asyncio.StreamReader, on_line: OnLine) -> None:
        self._readers.append(asyncio.get_running_loop().create_task(_read_lines(pipe, on_line)))


async def _read_lines(pipe: asyncio.StreamReader, on_line: OnLine) -> None:
    line = bytearray()

    def end() -> None:
        if line.strip():
            on_line(line.decode(errors="replace"))
        line.clear()

    with contextlib.suppress(ConnectionResetError):  # it ended without reading what it was told
        while chunk := await pipe.read(65_536):
            for number, part in enumerate(_LINE_END.split(chunk)):
                if number:
                    end()
                line += part[: _LONGEST_LINE - len(line)]
    end()
