"""The acceptance of connections from a socket that several fronts share."""

import asyncio
import socket
from collections.abc import Callable

from gateway.relay.loads import Loads
from gateway.runtime.descriptors import lacking

_PAUSE = 0.1
"""Seconds without accepting after the process ran out of descriptors."""
_DEFERENCE = 0.001
"""Seconds for which a new connection is left to a front with fewer."""


class OneByOne:
    """Accepts one connection in each turn of the event loop, and leaves it to a front with fewer if there is one.

    A server of asyncio's takes all that wait at once: the first process to wake would have every client of a burst.

    Args:
        listening: the shared socket, which does not block.
        make: makes the protocol of a connection.
        loads: of all fronts.
        connections: how many this front has.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        loads: Loads,
        connections: Callable[[], int],
    ) -> None:
        self._socket = listening
        self._make = make
        self._loads = loads
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._resume: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._offered)

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._socket)
        if self._resume is not None:
            self._resume.cancel()
        self._loads.leave()

    async def wait_closed(self) -> None:
        """As a server of asyncio's; what was accepted goes on."""

    def _offered(self) -> None:
        here = self._connections()
        self._loads.note(here)
        if self._loads.fewer_elsewhere(here):
            self._wait(_DEFERENCE, self._deferred)
        else:
            self._accept()

    def _deferred(self) -> None:
        self._loop.add_reader(self._socket, self._offered)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # another front was first
            return
        except OSError as error:
            if not lacking(error):
                raise
            self._wait(_PAUSE, lambda: self._loop.add_reader(self._socket, self._offered))
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wait(self, seconds: float, then: Callable[[], object]) -> None:
        self._loop.remove_reader(self._socket)
        self._resume = self._loop.call_later(seconds, then)
