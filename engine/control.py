"""How another process asks a running kvgate for something: one request, lines of progress, and how it ended.

    client:  {"config":"/etc/kvgate.yaml","changes":{"admission":{"mode":"observe"}}}
    kvgate:  {"line":"engine chat #2: starting"}            as often as there is something to say
    kvgate:  {"exit":0}                                     the last line

Over a Unix socket in kvgate's run folder, named after the port that kvgate serves. Folder and socket are its user's
alone, and that is all the authentication there is.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.cache import cache_folder

_SUFFIX = ".sock"
_LONGEST = 65_536
"""Bytes of a request."""


class ControlError(Exception):
    """There is no kvgate to ask, or not one that can be told from others. The message says what to do."""


class Reload(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change over to new settings.

    Attributes:
        config: an absolute path; None is the file that kvgate was started with.
        changes: nested settings that are laid over all others, until the next reload.
    """

    config: str | None = None
    changes: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of progress for a human, or the end: the exit code for the process that asked."""

    line: str | None = None
    exit: int | None = None


Say = Callable[[str], None]
"""Takes a line for whoever asked."""
Act = Callable[[Reload, Say], Awaitable[int]]
"""Does what was asked and returns the exit code."""


def run_folder() -> Path:
    """Where the sockets are."""
    return cache_folder() / "run"


@contextlib.asynccontextmanager
async def control(port: int, act: Act) -> AsyncIterator[None]:
    """Answer requests while the block runs; `port` is that of the clients, which names the socket.

    A client that leaves stops nothing that it asked for; the end of the block does.

    Raises:
        OSError: the socket cannot be made.
    """
    path = run_folder() / f"{port}{_SUFFIX}"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # who has the port has the name
    conversations: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_converse(act, reader, writer))
        conversations.add(task)
        task.add_done_callback(conversations.discard)

    with _bound(path) as listening:
        server = await asyncio.start_unix_server(begin, sock=listening, limit=_LONGEST)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)
            for task in conversations:
                task.cancel()
            await asyncio.gather(*conversations, return_exceptions=True)


def ask(request: Reload, port: int | None, on_line: Say) -> int:
    """Ask the kvgate that serves `port`, or the only one there is; returns its exit code.

    Raises:
        ControlError: there is none, there are several, or it ended before it had answered.
    """
    with _reached(port) as connection, connection.makefile("rb") as answers:
        connection.sendall(msgspec.json.encode(request) + b"\n")
        for text in answers:
            answer = msgspec.json.decode(text, type=Answer)
            if answer.exit is not None:
                return answer.exit
            on_line(answer.line or "")
    raise ControlError("kvgate ended before it had answered; its log says why")


async def _converse(act: Act, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    def send(answer: Answer) -> None:
        if not writer.is_closing():
            writer.write(msgspec.json.encode(answer) + b"\n")

    try:
        try:
            if not (line := await reader.readline()):
                return  # it only looked who is there
            request = msgspec.json.decode(line, type=Reload)
        except (msgspec.DecodeError, ValueError) as error:  # the latter for a line without an end
            send(Answer(line=f"kvgate did not understand the request: {error}"))
            send(Answer(exit=2))
            return
        send(Answer(exit=await act(request, lambda line: send(Answer(line=line)))))
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            before = os.umask(0o177)
            try:
                listening.bind(address)
            finally:
                os.umask(before)
        yield listening
    finally:
        listening.close()


@contextlib.contextmanager
def _reached(port: int | None) -> Iterator[socket.socket]:
    paths = sorted(run_folder().glob(f"*{_SUFFIX}")) if port is None else [run_folder() / f"{port}{_SUFFIX}"]
    with contextlib.ExitStack() as opened:
        reached = {path.stem: connection for path in paths if (connection := _connected(path, opened)) is not None}
        if not reached:
            where = f" on port {port}" if port is not None else ""
            raise ControlError(
                f"no kvgate runs here{where}: none answers in {run_folder()} (it is reloaded as the user, and with the "
                "KVGATE_CACHE, that it was started with)"
            )
        if len(reached) > 1:
            raise ControlError(f"several kvgates run here; say which with --port: {', '.join(reached)}")
        yield next(iter(reached.values()))


def _connected(path: Path, opened: contextlib.ExitStack) -> socket.socket | None:
    """A connection, or None where nobody listens: the socket of one that was killed stays behind."""
    connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        return None
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the path that fits a socket's address, which has 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
