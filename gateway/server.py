"""uvicorn, run the way a gateway needs it: our own signals, our own sockets, no middleware."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from gateway.config import ServerSettings
from gateway.relay.http_protocol import limited_protocol

KEEP_ALIVE = 75
"""Seconds an idle client connection is kept: longer than nginx keeps its own towards us (60 s), so that it is never
us who close a connection that nginx is just about to use."""
_CLOSING_TIMEOUT = 2
_BACKLOG = 4096
"""Connections that may wait to be accepted: a thousand clients may come at once."""


class PortTakenError(Exception):
    """Nothing can listen there. The message says where and why."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: a gateway drains before it stops."""
        yield


class Listener:
    """One listening port with an ASGI application behind it."""

    def __init__(self, app: Any, host: str, port: int, settings: ServerSettings) -> None:
        """Bind at once, so that a port that is taken is known before anything is started.

        Raises:
            PortTakenError: it is.
        """
        self._socket = _bind(host, port)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=limited_protocol(settings.max_header_bytes, settings.body_timeout),
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=_CLOSING_TIMEOUT,
                backlog=_BACKLOG,
            )
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Accept connections from now on."""
        self._socket.listen(_BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Close the port and what is left of its connections."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listening.set_inheritable(False)
    return listening
