"""The relay of requests without admission: they use little of an endpoint's KV cache."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

from gateway.admission.outcomes import Outcome
from gateway.config.settings import ServerSettings
from gateway.pools.directory import Endpoint, Pool
from gateway.relay.asgi import Allowance, ClientGoneError, Payload, Scope, header, path
from gateway.relay.destination import find_pool, wait_for_endpoint
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.headers import towards_client, towards_endpoint
from gateway.relay.plane import Plane
from gateway.relay.reading import read
from gateway.relay.upstream import Answer, UpstreamError
from gateway.wire.form import form_model, is_form
from gateway.wire.request import named_model

_TRIES = 2


async def relay(plane: Plane, scope: Scope, exchange: Exchange, payload: Payload) -> Outcome:
    """Pass a request to a healthy endpoint of its model, once one of the model's relay places is free.

    While it waits for an endpoint it holds no place.

    Raises:
        RefusedError: it ends with an error.
    """
    kind = header(scope, b"content-type") or b""
    name = None
    if scope["method"] == "GET":
        pass
    elif is_form(kind):
        name = await read(plane.counting, exchange.flow, form_model, payload.data, kind)
    else:
        name = await read(plane.counting, exchange.flow, named_model, payload.data)
    size = len(payload.data)
    pool = await find_pool(plane, exchange, name, size)
    await wait_for_endpoint(plane, exchange, pool, size)
    async with _place(plane, exchange, pool, size):
        if endpoints := pool.in_turn()[:_TRIES]:
            return await _pass(plane, scope, exchange, payload, endpoints)
    raise RefusedError(Outcome.NO_ENDPOINT, "No endpoint is ready to serve this model.", retry_after=10.0)


async def follow(plane: Plane, scope: Scope, exchange: Exchange, payload: Payload) -> Outcome:
    """Pass a request about a stored response to the endpoint that made it.

    Raises:
        RefusedError: it ends with an error.
    """
    response_id = scope["path"].removeprefix("/v1/responses/").split("/")[0]
    endpoint = plane.directory.made_response(response_id)
    if endpoint is None:
        message = "This response is not known here: it was not made through this gateway, or long ago."
        raise RefusedError(Outcome.RESPONSE_NOT_FOUND, message, "response_id")
    return await _pass(plane, scope, exchange, payload, [endpoint])


@contextlib.asynccontextmanager
async def _place(plane: Plane, exchange: Exchange, pool: Pool, size: int) -> AsyncIterator[None]:
    places = pool.relay_places
    flow = exchange.flow
    if places.full():
        try:
            await plane.lobby.wait(exchange, size, lambda: places.acquire(flow), plane.settings.admission.queue.ttl)
        except TimeoutError:
            message = "Too many such requests run on this model already."
            raise RefusedError(Outcome.QUEUE_TIMEOUT, message, retry_after=5.0) from None
    else:
        await places.acquire(flow)
    try:
        yield
    finally:
        places.release(flow)


async def _pass(plane: Plane, scope: Scope, exchange: Exchange, payload: Payload, endpoints: list[Endpoint]) -> Outcome:
    timeouts = plane.settings.upstream
    reason = ""
    for endpoint in endpoints:
        exchange.sent_to(endpoint.id)
        headers = towards_endpoint(
            scope, exchange.identifier, api_key=endpoint.api_key, keep_credentials=plane.keeps_credentials
        )
        try:
            async with asyncio.timeout(timeouts.first_byte_timeout):
                answer = await plane.upstream.send(
                    endpoint.base_url, scope["method"], path(scope), headers, payload.data
                )
        except TimeoutError:
            return await exchange.refuse(Outcome.UPSTREAM_TIMEOUT, "The endpoint did not answer in time.")
        except UpstreamError as error:
            endpoint.monitor.failed(str(error))
            reason = str(error)
            continue
        try:
            return await _through(plane.settings.server, exchange, answer, timeouts.idle_timeout)
        finally:
            answer.close()
    return await exchange.refuse(Outcome.UPSTREAM_ERROR, f"The endpoint did not answer: {reason}.")


async def _through(server: ServerSettings, exchange: Exchange, answer: Answer, idle_timeout: float) -> Outcome:
    length = next((int(value) for name, value in answer.headers if name.lower() == b"content-length"), None)
    headers = towards_client(answer.headers, exchange.identifier, length=length)
    response, allowance = exchange.response, Allowance(server.body_timeout, server.body_min_rate)

    async def tell(sending: Awaitable[None], size: int = 0) -> None:
        """Send a piece. A client that reads more slowly than it may send a body loses its place to others."""
        allowance.went(0.0, size)
        began = exchange.clock()
        try:
            async with asyncio.timeout(allowance.left):
                await sending
        except TimeoutError:
            raise ClientGoneError from None
        allowance.went(exchange.clock() - began, 0)

    await tell(response.begin(answer.status, headers))
    # A body that breaks off is left without an end, so that the client sees it is incomplete.
    more = True
    while more:
        try:
            async with asyncio.timeout(idle_timeout):
                piece = await answer.read_some()
        except TimeoutError:
            return Outcome.UPSTREAM_TIMEOUT
        except UpstreamError:
            return Outcome.UPSTREAM_ERROR
        more = bool(piece)
        await tell(response.write(piece) if more else response.end(), len(piece))
    return Outcome.COMPLETED if answer.status < 400 else Outcome.ENDPOINT_REFUSED  # noqa: PLR2004
