"""The pool of a request: found by its model, waited for while endpoints have not answered yet."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.pools.directory import Endpoint, NotStartedError, Pool
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.heartbeat import heartbeat
from gateway.relay.plane import Plane
from gateway.wire.shown import shown

NOTICED = 0.25
"""Seconds after which it is known that an engine is down which did not take a request: it is probed at once."""
_Ready = TypeVar("_Ready")
_UNKNOWN = 10.0
"""Seconds until a retry where nothing is known of when an endpoint is back."""
_SOONEST, _LATEST = 1.0, 60.0
"""Seconds: the shortest and the longest that are told."""
_SURELY = 2.0
"""Times as long as it is expected to take: then an engine is late, as in `TUNING.sure_multiple`."""


async def find_pool(plane: Plane, exchange: Exchange, model: str | None, size: int) -> Pool:
    """Find the pool of the model that a request names, or the only pool, and note it in the exchange.

    Waits while endpoints have not said yet what they serve.

    Args:
        plane: of the gateway.
        exchange: of the request.
        model: as the client wrote it; None where it named none.
        size: of the body, bytes.

    Raises:
        RefusedError: there is no such pool, or the client may not use it.
    """
    if model is not None and not exchange.client.may_use(model):
        raise _missing(model)  # before it is waited for: that may start an engine, and end another
    directory = plane.directory
    pool = directory.lookup(model)
    if pool is None and directory.undiscovered(model):
        starting = directory.starting(model)
        if model is None and (names := [there.settings.name for there in starting]) and names[0] is not None:
            return await find_pool(plane, exchange, names[0], size)  # as if it had been named
        pool = await _waited(plane, exchange, size, lambda: directory.find(model), model)
    if pool is None:
        raise unknown_model(plane, model)
    permit(exchange.client, pool, model)
    exchange.model = pool.name
    return pool


def permit(client: Client, pool: Pool, model: str | None) -> None:
    """Refuse a model that its client may not use; `model` as it wrote it.

    Raises:
        RefusedError: it may not.
    """
    name = pool.name if model is None else model
    if not client.may_use(name):
        raise _missing(name)


def unknown_model(plane: Plane, model: str | None) -> RefusedError:
    """The refusal of a request that no pool serves; `model` as the client wrote it."""
    if plane.directory.undiscovered(model):
        message = "No endpoint that may serve this model could be reached yet."
        return RefusedError(Outcome.NO_ENDPOINT, message, retry_after=retry_after(plane.directory.starting(model)))
    if model is None:
        return RefusedError(Outcome.INVALID_REQUEST, "`model` is required: several models are served.", "model")
    return _missing(model)


def _missing(model: str) -> RefusedError:
    message = f"The model `{shown(model)}` does not exist here, or not for your key. `/v1/models` lists those that do."
    return RefusedError(Outcome.MODEL_NOT_FOUND, message, "model")


async def wait_for_endpoint(plane: Plane, exchange: Exchange, pool: Pool, model: str | None, size: int) -> Pool:
    """Return when an endpoint of the pool takes traffic, or when the wait has timed out.

    Returns the pool, or the one in its place; see `still_served`.

    Raises:
        RefusedError: the request may not wait.
    """
    if not pool.healthy():
        await _waited(plane, exchange, size, lambda: plane.directory.wait_for_endpoint(pool), pool.name)
    return await still_served(plane, exchange, pool, model, size)


async def still_served(plane: Plane, exchange: Exchange, pool: Pool, model: str | None, size: int) -> Pool:
    """The pool, or the one in its place: its endpoints may all go while those that replace them are yet to come up.

    Waits for those as a new request would. The same pool if none comes.

    Raises:
        RefusedError: the request may not wait, or its client may not use what serves it now.
    """
    directory = plane.directory
    if pool.endpoints:
        return pool
    found = directory.lookup(model)
    if found is None and directory.undiscovered(model):
        found = await _waited(plane, exchange, size, lambda: directory.find(model), model)
    if found is None:
        return pool
    permit(exchange.client, found, model)
    return found


def retry_after(endpoints: Iterable[Endpoint]) -> float:
    """When a request that waited in vain for an endpoint should come back, in seconds.

    An engine whose start is late is expected to be as late again.
    """
    now = asyncio.get_running_loop().time()
    expected = [abs(there.ready_at - now) for there in endpoints if there.ready_at is not None]
    return min(max(min(expected), _SOONEST), _LATEST) if expected else _UNKNOWN


async def _waited(
    plane: Plane,
    exchange: Exchange,
    size: int,
    ready: Callable[[], Awaitable[_Ready]],
    model: str | None,
) -> _Ready | None:
    """Wait in the lobby, with heartbeats, for what `ready` returns; None if that took too long.

    It waits `no_endpoint_ttl`, or twice as long as an engine that starts on demand is expected to take. A reload may
    bring such an engine meanwhile.

    Raises:
        RefusedError: the request may not wait, or the engine does not start.
    """
    queue, clock = plane.settings.admission.queue, asyncio.get_running_loop().time
    came = clock()
    directory = plane.directory
    exchange.note_rule("no_endpoint")
    with contextlib.ExitStack() as awaited:
        name = directory.configured(model)
        place = None if name is None else awaited.enter_context(plane.awaited.waiting(name))

        def expected() -> list[float]:
            return [there.ready_at for there in directory.starting(model) if there.ready_at is not None]

        async def turn() -> Turn | None:
            if place is None or not directory.starting(model):
                return None
            return Turn(place(), max(0.0, min(at) - clock()) if (at := expected()) else None)

        async with heartbeat(exchange, queue.heartbeat, turn):
            while True:
                takes = max(expected(), default=came) - came
                left = came + max(queue.no_endpoint_ttl, _SURELY * takes) - clock()
                if left <= 0:
                    return None
                try:
                    found = await plane.lobby.wait(exchange, size, ready, left)
                except TimeoutError:
                    continue  # it may be expected later by now
                except NotStartedError:
                    message = "The engine of this model does not start. kvgate's log says why."
                    raise RefusedError(Outcome.NO_ENDPOINT, message, retry_after=_UNKNOWN) from None
                await plane.turnstile.pass_through()  # all have waited for the same endpoint
                return found
