"""The preparation of a generation request for one pool: counted, bounded, its body made what an endpoint gets.

Apart from `attempts.py`, so that a long stream does not keep in memory what only this needed.
"""

import asyncio
from dataclasses import replace

from msgspec import structs

from gateway.admission.events import Demand
from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Pool
from gateway.relay.client_identity import Client
from gateway.relay.demand import (
    Asked,
    UncountedError,
    UnreachedError,
    Work,
    bounded,
    counted,
    demanded,
    refuse_adapter,
    refuse_background,
    refuse_overriding,
    require_endpoints,
)
from gateway.relay.destination import NOTICED, retry_after, still_served, wait_for_endpoint
from gateway.relay.editing import asks_usage, check_names, edited_for
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.fingerprint import fingerprint
from gateway.relay.plane import Plane
from gateway.relay.stored import holder
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import Edits, GenerationRequest

_LONGEST_PAUSE = 4.0
"""Seconds between two questions to an engine that takes no connection and seems up."""
_BYTES_PER_TOKEN = 4
"""Used only to give a size to a request that observe mode lets through uncounted."""


async def prepare(plane: Plane, asked: Asked, pool: Pool) -> Work:
    """Count a request for this pool, and make its body what an endpoint gets.

    Raises:
        RefusedError: it ends with an error.
        asyncio.CancelledError: the client left.
    """
    exchange, client, payload = asked.exchange, asked.client, asked.payload
    request, size = structs.replace(asked.request, body=payload.data), len(payload.data)
    refuse_adapter(client, request.adapter_field)
    try:
        refuse_background(request)
    except RefusedError as refused:
        if not _observes(plane, pool, refused.outcome):
            raise
    if pool.caseless:
        await check_names(plane, client.flow, payload.data)
    since = plane.clock()
    try:
        count, pool = await _counted(plane, exchange, pool, request, client)
        while (other := await still_served(plane, exchange, pool, request.model, size)) is not pool:
            count, pool = await _counted(plane, exchange, other, request, client)  # its tokens may be others
    finally:
        exchange.counting_ended(since)
    if count.ids:
        payload.keep(count.ids)
        count = replace(count, ids=b"")  # from here on only the payload has them
    exchange.count = count
    refuse_overriding(pool.overriding, request)
    demand, most = bounded(pool, client, request, count, _demanded(plane, pool, request, count))
    exchange.demand, exchange.max_tokens = demand, most
    known_by = await fingerprint(client.flow, payload.data, plane.hash_key)
    request = asked.request  # from here on only the payload has the bytes
    held_by = holder(plane, request.previous_response_id)
    work = Work(request, size, pool, count, demand, client, asked.ttft_target, known_by, most, held_by)
    edits = Edits(asks_usage(request), work.band if pool.takes_band else None, most)
    payload.data = await edited_for(plane, client, payload.data, request, edits)
    return work


def _observes(plane: Plane, pool: Pool, outcome: Outcome) -> bool:
    """Whether to let a request through that `enforce` would refuse; if so, that is noted.

    Who asks raises the refusal itself, and gives it no name that outlives its handler: an exception in a variable of a
    frame that it passed keeps that frame, and a body in it, until the garbage collector comes by.
    """
    if plane.observes:
        plane.metrics.model(pool.name).would(outcome)
    return plane.observes


async def _counted(
    plane: Plane, exchange: Exchange, pool: Pool, request: GenerationRequest, client: Client
) -> tuple[PromptCount, Pool]:
    """The count, and the pool by which it was counted."""
    until, pause = plane.clock() + plane.settings.admission.queue.no_endpoint_ttl, NOTICED
    waited = came_up = False
    while True:
        try:
            return await counted(pool, request, client.flow), pool
        except UncountedError as uncounted:
            # After one wait: an engine is up and still cannot count, took no connection all the time, or none came.
            vain = plane.clock() >= until if isinstance(uncounted, UnreachedError) else pool.healthy()
            if waited and (vain or not came_up):
                if _observes(plane, pool, uncounted.outcome):
                    return _estimate(request), pool
                again = retry_after(pool.endpoints.values())
                raise RefusedError(uncounted.outcome, uncounted.message, retry_after=again) from None
        except RefusedError as refused:
            if not _observes(plane, pool, refused.outcome):
                raise
            return _estimate(request), pool
        if pool.healthy():
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        # Only an engine can count this, and none is up: wait for one. It may leave again before it has counted.
        pool = await wait_for_endpoint(plane, exchange, pool, request.model, len(request.body))
        waited, came_up = True, bool(pool.healthy())


def _estimate(request: GenerationRequest) -> PromptCount:
    return PromptCount((max(1, len(request.body) // _BYTES_PER_TOKEN),), Source.ESTIMATE, Kind(request.api))


def _demanded(plane: Plane, pool: Pool, request: GenerationRequest, count: PromptCount) -> Demand:
    require_endpoints(pool)
    try:
        return demanded(pool, request, count)
    except RefusedError as refused:
        if not _observes(plane, pool, refused.outcome):
            raise
        return demanded(pool, request, PromptCount(count.prompts, Source.ESTIMATE, count.kind))
