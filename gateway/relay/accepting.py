"""The acceptance of connections from a socket that several processes share."""

import asyncio
import socket
from collections.abc import Callable

from gateway.runtime.descriptors import lacking

_PAUSE = 0.1
"""Seconds without accepting after the process ran out of descriptors."""


class OneByOne:
    """Accepts one connection in each turn of the event loop.

    A server of asyncio's takes all that wait at once: the first process to wake would have every client of a burst. So
    each gets its part, and one with much to do takes less.

    Args:
        listening: the shared socket, which does not block.
        make: makes the protocol of a connection.
    """

    def __init__(self, listening: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._socket = listening
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._resume: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()

    async def wait_closed(self) -> None:
        """As a server of asyncio's; what was accepted goes on."""

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another process was first
            return
        except OSError as error:
            if not lacking(error):
                raise
            self._loop.remove_reader(self._socket)
            self._resume = self._loop.call_later(_PAUSE, self._loop.add_reader, self._socket, self._accept)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
