"""The gateway's process: its signals, its drain, its inherited sockets, and its talk with its supervisor."""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

# Each role imports its own parts: an owner carries no request, and only a tier asks Redis.
if TYPE_CHECKING:
    from gateway.app.application import Application
    from gateway.app.candidate import Candidate
    from gateway.app.owner_process import OwnerProcess

from engine.process import NEWS, READY
from gateway.config.engine import Launched
from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import ANSWER
from gateway.config.settings import Settings
from gateway.runtime.descriptors import raise_limit
from gateway.runtime.importing import COLOURS, Importing
from gateway.runtime.interrupts import Stop, early
from gateway.serve.alone import Alone
from gateway.serve.processes import KEY
from gateway.serve.served import Served

_SETTLE = 10.0
"""Seconds that new connections wait while a gateway finds its endpoints and loads tokenizers."""
_LONGEST = 2**24
"""Most bytes of settings that a supervisor may send."""
_log = structlog.get_logger("kvgate.process")
_FRONT_BITS = 30
"""Bits of a front's number, drawn at its start: no two fronts of one owner draw the same."""
_LOOK = 1.0
"""Seconds between two looks at the application's state."""
_YOUNG = 10_000
"""New objects at which the collector looks for cycles among them. A request in flight holds a hundred or more, and with
Python's 700 it looked at each twentieth request. It takes a millisecond for so many."""
_UNSEEN = "unseen"
"""The state of an endpoint that this process watches no more."""


def alone(settings: Settings, listening: Sequence[int] = (), launched: Launched = {}) -> "Application":  # noqa: B006
    """A gateway that decides for itself, on inherited sockets for clients and admin routes, else on its own."""
    from gateway.app.application import Application  # noqa: PLC0415

    return Application(settings, [inherited(descriptor) for descriptor in listening], launched)


def owner_process(settings: Settings, listening: int, fronts: int, launched: Launched) -> "OwnerProcess | Candidate":
    """The process that decides for so many fronts; in a tier, a candidate for that."""
    if settings.tier.redis is not None:
        from gateway.app.candidate import Candidate  # noqa: PLC0415

        return Candidate(settings, inherited(listening), launched)
    from gateway.app.owner_process import OwnerProcess  # noqa: PLC0415

    return OwnerProcess(settings, inherited(listening), fronts, launched)


def front(settings: Settings, listening: Sequence[int], owner: Path, launched: Launched) -> "Application":
    """A front: it carries requests, and the owner behind this socket decides."""
    from gateway.app.apart import FrontSpec  # noqa: PLC0415
    from gateway.app.application import Application  # noqa: PLC0415

    spec = FrontSpec(secrets.randbits(_FRONT_BITS), owner, bytes.fromhex(os.environ.pop(KEY)))
    return Application(settings, [inherited(descriptor) for descriptor in listening], launched, spec)


async def run(
    make: Callable[[], Served],
    reloads: Callable[[Served], Alone] | None = None,
    *,
    supervised: bool = False,
) -> int:
    """Run a gateway until it is told to end. Returns the process's exit code.

    SIGTERM or SIGINT drains it; a second one ends it at once. SIGUSR1 hands over: another process accepts new
    connections from the same sockets, and this one ends with its last connection. On SIGHUP it rereads its settings,
    or leaves that to its supervisor.

    Args:
        make: makes what is to run.
        reloads: makes what changes its settings; None if a supervisor sends them.
        supervised: whether a supervisor started it, and says when it stops.

    Raises:
        ConfigurationError, PortTakenError: as in `Application`.
    """
    raise_limit()
    with Importing(without=COLOURS):
        application = make()

    def tell() -> None:
        if supervised and not application.active:
            return  # its supervisor has announced that
        _log.info("stopping", active=application.active, at_most=application.settings.server.shutdown_timeout)

    asked, leave = Stop(asyncio.Event(), tell), asyncio.Event()
    stop = asked.event
    loop = asyncio.get_running_loop()
    asked.listen(loop)
    loop.add_signal_handler(signal.SIGUSR1, leave.set)
    loop.add_signal_handler(signal.SIGHUP, early.hear)
    await application.start(settle=_SETTLE if supervised else 0.0)
    watching = [
        asyncio.create_task(_converse(application, os.environ.get(NEWS))),
        asyncio.create_task(_spare_collector(application)),
    ]
    async with reloads(application).asked(stop.set) if reloads is not None else contextlib.nullcontext():
        await _first(stop.wait(), leave.wait())
    timeout = application.settings.server.shutdown_timeout
    if not stop.is_set():
        await _first(application.hand_over(timeout), stop.wait())
    if stop.is_set():
        await application.drain(timeout)
    for task in watching:
        task.cancel()
    await application.stop()
    return asked.code


def inherited(descriptor: int) -> socket.socket:
    """An inherited socket. No child process may inherit it in turn, since it would keep the port."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


async def _converse(application: Served, descriptor: str | None) -> None:
    """Tell the supervisor that the gateway is ready, then each endpoint's state. Receive other settings."""
    if descriptor is None:
        return
    told, supervisor = await asyncio.open_unix_connection(sock=inherited(int(descriptor)), limit=_LONGEST)
    supervisor.write(f"{READY}\n".encode())
    try:
        async with asyncio.TaskGroup() as talks:
            talks.create_task(_watch_states(application))
            talks.create_task(_tell(application, supervisor))
            talks.create_task(_hear_settings(application, told, supervisor))
    finally:
        supervisor.close()


async def _watch_states(application: Served) -> None:
    known: dict[str, str] = {}
    while True:
        statuses = application.endpoints
        for endpoint in known.keys() - {status.id for status in statuses}:  # in a tier another gateway may decide now
            del known[endpoint]
            application.parent.seems(endpoint, _UNSEEN, "")
        for status in statuses:
            if known.get(status.id) != status.state:
                known[status.id] = status.state
                application.parent.seems(status.id, status.state, status.reason)
        await asyncio.sleep(_LOOK)


async def _tell(application: Served, supervisor: asyncio.StreamWriter) -> None:
    while True:
        line = await application.parent.next_line()
        supervisor.write(f"{line}\n".encode())


async def _hear_settings(application: Served, told: asyncio.StreamReader, supervisor: asyncio.StreamWriter) -> None:
    """Take news of engines, and apply other settings, each a line of JSON.

    Settings are answered with `ANSWER` and what is wrong with them, if anything. A defect of the code gets no answer,
    and a supervisor without an answer replaces this gateway.
    """
    while line := await told.readline():
        if application.parent.heard(line):
            continue
        try:
            await application.change(Settings.model_validate_json(line))
            wrong = ""
        except ConfigurationError as error:
            wrong = "; ".join(str(error).splitlines())
        except Exception:  # noqa: BLE001
            _log.exception("settings could not be changed")
            continue
        supervisor.write(f"{ANSWER} {wrong}\n".encode())


async def _spare_collector(application: Served) -> None:
    """Exempt all present objects, such as loaded tokenizers, from garbage collection: they stay.

    Each collection would scan them again and hold up every stream: 0.1 seconds, 0.8 on a busy machine, measured.
    """
    gc.set_threshold(_YOUNG)
    loaded: frozenset[str] | None = None
    while True:
        if application.loaded != loaded:
            loaded = application.loaded
            gc.collect()
            gc.freeze()
        await asyncio.sleep(_LOOK)


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait until the first of these is done. Cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
