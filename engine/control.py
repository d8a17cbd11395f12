"""The control socket of a running kvgate: another process sends one request and gets progress lines and an exit code.

    client:  {"config":"/etc/kvgate.yaml","changes":{"admission":{"mode":"observe"}}}
    kvgate:  {"line":"engine chat #2: starting"}            any number of times
    kvgate:  {"exit":0}                                     the last line

The Unix socket lies in kvgate's run folder and is named after the port, or the socket, that kvgate serves. Only
kvgate's user can open folder and socket; there is no other authentication.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.cache import cache_folder

_SUFFIX = ".sock"
_SLASH = "%2F"
"""In place of `/` in the name of a unix socket."""
_LONGEST_NAME = 80
"""Characters of a socket's name, which must fit its address; of a longer one the beginning is a digest."""
_LONGEST = 65_536
"""Bytes of a request."""


class ControlError(Exception):
    """No kvgate runs here, several do, or the one asked ended first. The message says what to do."""


class Reload(msgspec.Struct, frozen=True, omit_defaults=True):
    """Change over to new settings.

    Attributes:
        config: An absolute path; None for the file that kvgate was started with.
        changes: Nested settings that override all others until the next reload.
    """

    config: str | None = None
    changes: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A progress line for a human, or the end: the exit code for the client."""

    line: str | None = None
    exit: int | None = None


Say = Callable[[str], None]
"""Takes a line for the client."""
Act = Callable[[Reload, Say], Awaitable[int]]
"""Carries out the request and returns the exit code."""


def run_folder() -> Path:
    """The folder of the sockets."""
    return cache_folder() / "run"


@contextlib.asynccontextmanager
async def control(where: int | str, act: Act) -> AsyncIterator[None]:
    """Answer requests while the block runs. The port or unix socket that kvgate's clients use names this socket.

    The work goes on when its client leaves, and stops when the block ends.

    Raises:
        OSError: The socket cannot be made.
    """
    path = _at(where)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # the owner of the port owns the name
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
            await _turns()  # what was accepted just now becomes a conversation, or nobody would close its socket
            server.close()
            with contextlib.suppress(OSError):  # what is left says nothing: nobody answers there
                path.unlink()
            for task in conversations:
                task.cancel()
            await asyncio.gather(*conversations, return_exceptions=True)
            await _turns()


async def _turns() -> None:
    """Let a few turns of the event loop pass: asyncio takes so many to make or end a connection."""
    for _ in range(4):
        await asyncio.sleep(0)


def ask(request: Reload, where: int | str | None, on_line: Say) -> int:
    """Send a request to the kvgate on this port or unix socket, or to the only one. Returns its exit code.

    Raises:
        ControlError: There is none, there are several, or it ended before it had answered.
    """
    with _reached(where) as connection, connection.makefile("rb") as answers:
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
                return  # it only checked that somebody listens
            request = msgspec.json.decode(line, type=Reload)
        except (msgspec.DecodeError, ValueError) as error:  # ValueError: a line without an end
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
def _reached(where: int | str | None) -> Iterator[socket.socket]:
    paths = sorted(run_folder().glob(f"*{_SUFFIX}")) if where is None else [_at(where)]
    with contextlib.ExitStack() as opened:
        reached = {_where(path): there for path in paths if (there := _connected(path, opened)) is not None}
        if not reached:
            at = "" if where is None else f" on port {where}" if isinstance(where, int) else f" on {where}"
            raise ControlError(
                f"no kvgate runs here{at}: none answers in {run_folder()} (it is reloaded as the user, and with the "
                "KVGATE_CACHE, that it was started with)"
            )
        if len(reached) > 1:
            options = (f"--port {name}" if name.isdecimal() else f"--host {name}" for name in reached)
            raise ControlError(f"several kvgates run here; say which: {', '.join(options)}")
        yield next(iter(reached.values()))


def _at(where: int | str) -> Path:
    name = str(where).replace("/", _SLASH)
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(name.encode()).hexdigest()[:16] + name[16 - _LONGEST_NAME :]
    return run_folder() / f"{name}{_SUFFIX}"


def _where(path: Path) -> str:
    return path.stem.replace(_SLASH, "/")


def _connected(path: Path, opened: contextlib.ExitStack) -> socket.socket | None:
    """A connection, or None if nobody listens: a killed kvgate leaves its socket behind."""
    connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        with _short(path) as address:
            connection.connect(address)
    except OSError:
        return None
    return connection


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for the path that fits the 107 bytes of a socket's address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
