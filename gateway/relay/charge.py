"""The charge to a tenant's limits for a request that needs no place: it is passed on, or answered elsewhere."""

import contextlib
from collections.abc import AsyncIterator, Callable

from gateway.admission.events import Arrived, Demand, Verdict
from gateway.pools.admission import RejectedError
from gateway.pools.directory import Pool
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.place import Place
from gateway.relay.plane import Plane
from gateway.relay.refusal_sentences import refusal

_OK = 200


@contextlib.asynccontextmanager
async def charged(
    plane: Plane, exchange: Exchange, pool: Pool, most: int, estimated: Callable[[], int]
) -> AsyncIterator[None]:
    """Charge a request to the limits of its tenant while the block runs: its tokens by `usage`, at its end.

    Its prompt was not counted for what answers it. What no engine answers is charged nothing, nor is what it refuses.
    Where no `usage` comes it is charged as `estimated`: its client left the engine that was at work on it, or asked for
    embeddings as bytes.

    Args:
        plane: of the gateway.
        exchange: of the request.
        pool: any: limits are over all models.
        most: tokens that it can use at most, whatever its `usage` says.
        estimated: its tokens so far, at its end.

    Raises:
        RefusedError: it is over a limit.
    """
    if not exchange.client.limited:
        yield
        return
    demand = Demand((0,), most)
    place = Place(pool.admission, plane.new_request(), demand)
    try:
        dispatch = await place.take(Arrived(place.request, demand, flow=exchange.flow, relayed=True))
    except RejectedError as error:
        exchange.standing = error.command.standing
        exchange.note_rule(error.command.rule)
        raise refusal(error.command) from None
    exchange.standing = dispatch.standing
    try:
        yield
    except RefusedError:  # by kvgate, which shuts down or has waited for another endpoint in vain
        place.release(Verdict.UNSERVED, 0)
        raise
    finally:
        if not exchange.engaged:
            place.release(Verdict.UNSERVED, 0)
        usage = exchange.usage
        untold = estimated() if exchange.response.status in (None, _OK) else 0
        place.release(Verdict.DONE, untold if usage is None else usage.prompt_tokens + usage.completion_tokens)
