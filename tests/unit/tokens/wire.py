"""An engine in this process whose answers come as they do over a connection: unread."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable

import httpx

Handler = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


def over_the_wire(handler: Handler) -> httpx.MockTransport:
    """A transport that answers so."""

    async def answer(request: httpx.Request) -> httpx.Response:
        response = handler(request)
        if isawaitable(response):
            response = await response
        if not response.is_stream_consumed:
            return response
        return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(response.content))

    return httpx.MockTransport(answer)
