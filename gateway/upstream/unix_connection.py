"""A connection to an endpoint over a unix socket."""

import asyncio
import select
import socket

from gateway.upstream.connection import ESTABLISHED, Connection

_FULL_PAUSE = 0.02
"""Seconds between two tries where the endpoint has not accepted as many as may wait. Of TCP the kernel tries again."""


class UnixConnection(Connection):
    """As one over TCP, but the kernel does not tell what has arrived (it has no TCP_INFO).

    Both ends are on this machine: what was written has arrived, and an end is seen the moment it comes. So a request is
    never known to be untouched once it was written, and before that it is known whether anybody will read it.
    """

    def eof_received(self) -> None:
        """Close: what was written has arrived, so nothing of it may be sent again."""

    def _tcp_info(self) -> tuple[int, int]:
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0, 0
        look = select.poll()
        look.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return (0 if look.poll(0) else ESTABLISHED), 0


async def connect(path: str) -> UnixConnection:
    """A connection to who listens at this path; waits while too many others do.

    Raises:
        OSError: nobody listens there, or this process may not connect.
    """
    loop = asyncio.get_running_loop()
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        while True:
            try:
                opened.connect(path)  # at once, or not now
                break
            except BlockingIOError:
                await asyncio.sleep(_FULL_PAUSE)
        _, connection = await loop.create_unix_connection(UnixConnection, sock=opened)
    except BaseException:
        opened.close()
        raise
    return connection
