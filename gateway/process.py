"""One gateway process: its signals, the sockets it was handed, and what it tells the process that supervises it."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from engine.process import NEWS
from engine.runner import READY
from gateway.alone import Alone
from gateway.app import Application
from gateway.config import Settings
from gateway.descriptors import raise_limit
from gateway.interrupts import Stop
from gateway.live import ANSWER
from gateway.settings_sources import ConfigurationError, Sources

_SETTLE = 10.0
"""Seconds for which those who connect wait while a gateway finds its endpoints and loads tokenizers."""
_LONGEST = 2**24
"""Bytes of settings that a supervisor may tell."""
_log = structlog.get_logger("kvgate.process")
_LOOK = 1.0
"""Seconds between two looks at the application's state."""


async def run(
    settings: Settings,
    listening: Sequence[int] = (),
    sources: Sources | None = None,
    launched: Sequence[str] = (),
) -> int:
    """Run a gateway until it is told to end; returns the process's exit code.

    SIGTERM or SIGINT drains, a second one ends it at once. SIGUSR1 hands over: another process accepts what is new from
    the same sockets, and this one ends when its connections have. SIGHUP has it read its settings again, or is left to
    the process that supervises it.

    Args:
        settings: all of them.
        listening: descriptors of sockets that were handed down, for clients and for the admin routes; where there are
            none it binds its own.
        launched: addresses of the engines that the supervisor starts.
        sources: where settings are read again; None where a supervisor tells them.

    Raises:
        ConfigurationError, PortTakenError: as `Application`.
    """
    raise_limit()
    application = Application(settings, [_inherited(descriptor) for descriptor in listening], launched)

    def tell() -> None:
        if listening and not application.active:
            return  # its supervisor has said so
        _log.info("stopping", active=application.active, at_most=application.settings.server.shutdown_timeout)

    asked, leave = Stop(asyncio.Event(), tell), asyncio.Event()
    stop = asked.event
    loop = asyncio.get_running_loop()
    asked.listen(loop)
    loop.add_signal_handler(signal.SIGUSR1, leave.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    await application.start(settle=_SETTLE if listening else 0.0)
    watching = [
        asyncio.create_task(_converse(application, os.environ.get(NEWS))),
        asyncio.create_task(_spare_collector(application)),
    ]
    async with Alone(application, sources).asked(stop.set) if sources is not None else contextlib.nullcontext():
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


def _inherited(descriptor: int) -> socket.socket:
    """A socket handed down, which no process of ours shall get too: it would keep the port."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


async def _converse(application: Application, descriptor: str | None) -> None:
    """Tell the supervisor that the gateway is ready, then how each endpoint is; hear of other settings."""
    if descriptor is None:
        return
    told, supervisor = await asyncio.open_unix_connection(sock=_inherited(int(descriptor)), limit=_LONGEST)
    supervisor.write(f"{READY}\n".encode())
    try:
        async with asyncio.TaskGroup() as talks:
            talks.create_task(_tell_states(application, supervisor))
            talks.create_task(_hear_settings(application, told, supervisor))
    finally:
        supervisor.close()


async def _tell_states(application: Application, supervisor: asyncio.StreamWriter) -> None:
    known: dict[str, str] = {}
    while True:
        for status in application.endpoints:
            if known.get(status.id) != status.state:
                known[status.id] = status.state
                supervisor.write(f"{status.state} {status.id} {' '.join(status.reason.split())}\n".encode())
        await asyncio.sleep(_LOOK)


async def _hear_settings(
    application: Application, told: asyncio.StreamReader, supervisor: asyncio.StreamWriter
) -> None:
    """Go by other settings, each a line of JSON; answer with `ANSWER` and what was wrong with them, if anything.

    A defect is not answered: who hears nothing exchanges this gateway for another.
    """
    while line := await told.readline():
        try:
            await application.change(Settings.model_validate_json(line))
            wrong = ""
        except ConfigurationError as error:
            wrong = "; ".join(str(error).splitlines())
        except Exception:  # noqa: BLE001
            _log.exception("settings could not be changed")
            continue
        supervisor.write(f"{ANSWER} {wrong}\n".encode())


async def _spare_collector(application: Application) -> None:
    """Take what is there once tokenizers are loaded out of garbage collection: it stays.

    Looked at again and again it would hold up every stream each time: 0.1 seconds, 0.8 on a busy machine, measured.
    """
    loaded: frozenset[str] | None = None
    while True:
        if application.loaded != loaded:
            loaded = application.loaded
            gc.collect()
            gc.freeze()
        await asyncio.sleep(_LOOK)


async def _first(*works: Coroutine[Any, Any, Any]) -> None:
    """Until the first of these is done; the others are given up."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
