"""The departure of a client: what is done for it ends once it has left.

The cancelled code gives back what it holds: `Attempt.run` the connection to its engine, `generate` its reservation.
With kvgate's own server `cycle.py` notices it, when the connection ends. Where many leave at once, a few are cancelled
in each turn of the loop.
"""

import asyncio

from gateway.runtime.turnstile import Turnstile
from gateway.server.asgi import ClientGoneError, Receive, Scope, direct_access


class while_connected:  # noqa: N801  # used like a function
    """Cancel what is done inside once the client has left. Enter it only after the body was read.

    Raises:
        ClientGoneError: it has left.
    """

    __slots__ = ("_end", "_gone", "_inside", "_receive", "_scope", "_task", "_turnstile")

    def __init__(self, scope: Scope, receive: Receive, turnstile: Turnstile) -> None:
        self._scope = scope
        self._receive = receive
        self._turnstile = turnstile
        self._gone = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # we are in a coroutine
        self._task = task
        self._inside = True
        direct = direct_access(self._scope)
        if direct is not None:
            self._end = direct.leaving(self._left)
        else:
            waiting = asyncio.create_task(_disconnected(self._receive))
            waiting.add_done_callback(lambda done: None if done.cancelled() else self._left())
            self._end = waiting.cancel

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._inside = False
        self._end()
        if self._gone and kind is not None and issubclass(kind, asyncio.CancelledError):
            self._task.uncancel()
            raise ClientGoneError from None

    def _left(self) -> None:
        self._turnstile.call(self._leave)

    def _leave(self) -> None:
        if self._inside:
            self._gone = True
            self._task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
