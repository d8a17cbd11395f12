"""An engine in this process, asked as over a connection."""

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable
from inspect import isawaitable

import httpx

from gateway.runtime.descriptors import OutOfDescriptorsError, lacking
from gateway.tokens.engine_count import Ask, Target, UnansweredError, UnreachedError

Handler = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


def engine_at(url: str, handler: Handler) -> Target:
    """An engine that answers so. What the handler raises as httpx does is what the connection has suffered."""
    return Target(url, over_the_wire(url, handler))


def over_the_wire(url: str, handler: Handler) -> Ask:
    """The way to ask it."""

    async def ask(path: str, body: bytes, *, silence: float, longest: float, most: int) -> tuple[int, bytes]:
        timeout = {"silence": silence, "longest": longest}
        try:
            async with asyncio.timeout(longest):
                response = handler(httpx.Request("POST", url + path, content=body, extensions=timeout))
                if isawaitable(response):
                    response = await response
                return response.status_code, await _beginning(response, most)
        except httpx.HTTPError as error:
            if lacking(error):
                raise OutOfDescriptorsError from error
            raise (UnreachedError if isinstance(error, httpx.ConnectError) else UnansweredError)(str(error)) from None
        except TimeoutError:
            raise UnansweredError("it did not come to an end in time") from None

    return ask


async def _beginning(response: httpx.Response, most: int) -> bytes:
    if response.is_stream_consumed or not isinstance(response.stream, AsyncIterable):
        return response.content
    read = bytearray()
    async for piece in response.stream:
        read += piece
        if len(read) > most:
            break
    return bytes(read)
