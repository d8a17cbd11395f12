"""One gateway process: its signals, the sockets it was handed, and what it tells the process that supervises it."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from engine.process import NEWS
from engine.runner import READY
from gateway.app import Application
from gateway.config import Settings
from gateway.descriptors import raise_limit
from gateway.interrupts import Stop

_SETTLE = 10.0
"""Seconds for which those who connect wait while a gateway finds its endpoints and loads tokenizers."""
_log = structlog.get_logger("kvgate.process")
_LOOK = 1.0
"""Seconds between two looks at the application's state."""


async def run(
    settings: Settings, started: Callable[[Application], None] | None = None, listening: Sequence[int] = ()
) -> int:
    """Run a gateway until it is told to end; returns the process's exit code.

    SIGTERM or SIGINT drains, a second one ends it at once. SIGUSR1 hands over: another process accepts what is new from
    the same sockets, and this one ends when its connections have.

    Args:
        settings: all of them.
        started: told when it takes requests.
        listening: descriptors of sockets that were handed down, for clients and for the admin routes; where there are
            none it binds its own.

    Raises:
        ConfigurationError, PortTakenError: as `Application`.
    """
    raise_limit()
    application = Application(settings, [_inherited(descriptor) for descriptor in listening])
    timeout = settings.server.shutdown_timeout

    def tell() -> None:
        if listening and not application.active:
            return  # its supervisor has said so
        _log.info("stopping", active=application.active, at_most=timeout)

    asked, leave = Stop(asyncio.Event(), tell), asyncio.Event()
    stop = asked.event
    loop = asyncio.get_running_loop()
    asked.listen(loop)
    loop.add_signal_handler(signal.SIGUSR1, leave.set)
    await application.start(settle=_SETTLE if listening else 0.0)
    if started is not None:
        started(application)
    watching = [
        asyncio.create_task(_tell(application, os.environ.get(NEWS))),
        asyncio.create_task(_spare_collector(application)),
    ]
    await _first(stop.wait(), leave.wait())
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


async def _tell(application: Application, descriptor: str | None) -> None:
    """Say that the gateway is ready, and from then on each change of an endpoint's state."""
    if descriptor is None:
        return
    os.set_inheritable(int(descriptor), False)
    known: dict[str, str] = {}
    with open(int(descriptor), "w", buffering=1, encoding="utf-8") as supervisor:  # noqa: ASYNC230, PTH123  # a socket
        supervisor.write(f"{READY}\n")
        while True:
            for status in application.endpoints:
                if known.get(status.id) != status.state:
                    known[status.id] = status.state
                    supervisor.write(f"{status.state} {status.id} {' '.join(status.reason.split())}\n")
            await asyncio.sleep(_LOOK)


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
