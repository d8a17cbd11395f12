"""The path of a generation request: read, counted, admitted, tried, reported."""

from dataclasses import replace

from msgspec import structs

from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, Demand, EndpointId, Verdict
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.pools.admission import RejectedError
from gateway.pools.directory import Made, Pool
from gateway.relay.asgi import Payload, Scope, path
from gateway.relay.attempt import Again, Attempt, Outgoing, Settled
from gateway.relay.clients import Client
from gateway.relay.destination import find_pool, wait_for_endpoint
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.fingerprint import fingerprint
from gateway.relay.headers import towards_endpoint
from gateway.relay.heartbeat import heartbeat
from gateway.relay.place import Place
from gateway.relay.plane import Plane
from gateway.relay.reading import read_apart
from gateway.relay.refusals import refusal
from gateway.relay.understand import (
    UncountedError,
    Work,
    bounded,
    counted,
    demanded,
    foreground,
    limited_by_its_api,
    parsed,
    present,
    ttft_target,
)
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import EDITED_INLINE_BYTES, Api, Edits, GenerationRequest, edited, rewrites

_WAITED_IN_VAIN = frozenset({Outcome.QUEUE_TIMEOUT, Outcome.NO_ENDPOINT, Outcome.WAIT_TOO_LONG})
_AT_ONCE = 0.001
"""Seconds: a request refused sooner has not waited."""
_BYTES_PER_TOKEN = 4
"""Used only to give a size to a request that observe mode lets through uncounted."""


async def generate(plane: Plane, scope: Scope, exchange: Exchange, client: Client, payload: Payload) -> Outcome:
    """Serve one request of a generation API; returns how it ended.

    Raises:
        RefusedError: it ends with an error.
        asyncio.CancelledError: the client left. The endpoint's connection is closed, the reservation released.
    """
    request = await parsed(plane.counting, client.flow, exchange.api or Api.CHAT, payload.data)
    exchange.stream = request.stream
    target = ttft_target(scope)
    size = len(payload.data)
    pool = await find_pool(plane, exchange, request.model, size)
    try:
        foreground(request)
    except RefusedError as refused:
        _raise_unless_observing(plane, pool, refused)
    count = await _counted(plane, exchange, pool, request, client)
    if count.ids:
        payload.keep(count.ids)
        count = replace(count, ids=b"")  # from here on only the payload has them
    exchange.count = count
    limited_by_its_api(pool, request)
    asked, most = bounded(pool, client, request, count, _demanded(plane, pool, request, count))
    exchange.demand, exchange.max_tokens = asked, most
    key = await fingerprint(client.flow, payload.data, plane.key)
    request = structs.replace(request, body=b"")  # from here on only the payload has the bytes
    work = Work(request, size, pool, count, asked, client, target, key, most)
    await _edit(plane, work, payload)
    return await _admitted(plane, scope, exchange, work, payload)


def _raise_unless_observing(plane: Plane, pool: Pool, refused: RefusedError) -> None:
    """In observe mode, note the refusal that `enforce` would have made.

    Raises:
        RefusedError: the one given, in every other mode.
    """
    if not plane.observes:
        raise refused
    plane.metrics.model(pool.name).would(refused.outcome)


async def _counted(
    plane: Plane, exchange: Exchange, pool: Pool, request: GenerationRequest, client: Client
) -> PromptCount:
    try:
        return await counted(pool, request, client.flow)
    except UncountedError:
        pass
    except RefusedError as refused:
        _raise_unless_observing(plane, pool, refused)
        return _estimate(request)
    # Only an engine can count this, and none is up: wait for one, at most `no_endpoint_ttl`.
    await wait_for_endpoint(plane, exchange, pool, len(request.body))
    try:
        return await counted(pool, request, client.flow)
    except RefusedError as refused:
        _raise_unless_observing(plane, pool, refused)
        return _estimate(request)


def _estimate(request: GenerationRequest) -> PromptCount:
    return PromptCount((max(1, len(request.body) // _BYTES_PER_TOKEN),), Source.ESTIMATE, Kind(request.api))


def _demanded(plane: Plane, pool: Pool, request: GenerationRequest, count: PromptCount) -> Demand:
    present(pool)
    try:
        return demanded(pool, request, count)
    except RefusedError as refused:
        _raise_unless_observing(plane, pool, refused)
        return demanded(pool, request, PromptCount(count.prompts, Source.ESTIMATE, count.kind))


def _asks_usage(request: GenerationRequest) -> bool:
    """Whether kvgate asks for usage that the client did not ask for."""
    return request.stream and not request.include_usage and request.api in {Api.CHAT, Api.COMPLETIONS}


async def _edit(plane: Plane, work: Work, payload: Payload) -> None:
    """Put the body for an endpoint in the place of the client's, off the event loop if that takes long."""
    request, edits = work.request, Edits(_asks_usage(work.request), work.band, work.max_tokens)
    if len(payload.data) > EDITED_INLINE_BYTES and rewrites(request, edits):
        payload.data = await read_apart(plane.counting, work.client.flow, edited, payload.data, request, edits)
    else:
        payload.data = edited(payload.data, request, edits)


async def _admitted(plane: Plane, scope: Scope, exchange: Exchange, work: Work, payload: Payload) -> Outcome:
    pool, request, band = work.pool, work.request, work.band
    interval = plane.settings.admission.queue.heartbeat
    place = Place(pool.admission, plane.new_request(), work.demand)

    def made(response_id: str, endpoint: EndpointId) -> None:
        plane.directory.remember_response(response_id, Made(endpoint, request.model or pool.name))

    try:
        async with heartbeat(exchange, interval):
            dispatch = await _first(plane, exchange, place, work)
        exchange.standing = dispatch.standing
        pool.retries.sent(plane.clock())
        if dispatch.would is not None:
            plane.metrics.model(pool.name).would(dispatch.would)
        outgoing = Outgoing(
            request=place.request,
            path=path(scope),
            payload=payload,
            prompt_tokens=work.demand.prompt_tokens,
            strip_usage=_asks_usage(request),
            stream_interval=min(request.stream_interval, max(1, work.demand.max_tokens)),
            sequences=work.demand.sequences,
        )
        brought = failed = False
        while True:
            endpoint = plane.directory.endpoints[dispatch.endpoint]
            headers = towards_endpoint(
                scope,
                exchange.identifier,
                api_key=endpoint.api_key,
                keep_credentials=plane.keeps_credentials,
                priority=band if band or request.priority else None,
            )
            ids = pool.counter.ids_field(endpoint.base_url) if payload.ids else None
            exchange.sent_to(endpoint.id)
            attempt = Attempt(
                exchange,
                place,
                plane.flights,
                plane.upstream,
                endpoint,
                made=made,
            )
            result = await attempt.run(outgoing, headers, brought=brought, ids=ids)
            if isinstance(result, Settled):
                usage = exchange.usage
                known = 0 if result.outcome is Outcome.ENDPOINT_REFUSED else None
                place.release(result.verdict, known if usage is None else usage.completion_tokens)
                if usage is not None:
                    handed_to = None if ids is None else endpoint.base_url
                    pool.counter.settle(work.count, usage.prompt_tokens, handed_to=handed_to)
                return result.outcome
            if result.answered and not failed:
                failed = True  # a second failure ends it anyway
                _spend_retry(plane, place, pool, result)
            brought = brought or result.evacuated
            async with heartbeat(exchange, interval):
                dispatch = await _another(plane, exchange, place, work, result)
    finally:
        place.release(Verdict.ABORTED)


async def _first(plane: Plane, exchange: Exchange, place: Place, work: Work) -> Dispatch:
    metrics = plane.metrics.model(work.pool.name)
    with exchange.waiting() as since:
        metrics.came(work.key, since)
        try:
            dispatch = await place.take(work.arrival(place.request))
        except RejectedError as error:
            now, outcome = plane.clock(), error.command.outcome
            exchange.standing = error.command.standing
            if outcome in FOR_WANT_OF_ROOM:
                metrics.turned_away(work.key, now)
            exchange.queued = outcome in _WAITED_IN_VAIN and now - since > _AT_ONCE
            raise refusal(error.command) from None
        exchange.queued = True
        return dispatch


async def _another(plane: Plane, exchange: Exchange, place: Place, work: Work, result: Again) -> Dispatch:
    metrics = plane.metrics.model(work.pool.name)
    try:
        with exchange.waiting():
            dispatch = await place.again(result.why)
    except RejectedError as error:
        command = error.command
        if command.outcome in FOR_WANT_OF_ROOM:
            metrics.turned_away(work.key, plane.clock())
        raise refusal(command, result.reason) from None
    if result.why is not Back.BUSY:
        metrics.retried(sent=True)
    return dispatch


def _spend_retry(plane: Plane, place: Place, pool: Pool, result: Again) -> None:
    """Take a retry from the pool's budget.

    Raises:
        RefusedError: there is none left. The request ends with what the endpoint said.
    """
    if pool.retries.take(plane.settings.upstream.retry_share, plane.clock()):
        return
    plane.metrics.model(pool.name).retried(sent=False)
    place.release(Verdict.FAILED)
    raise RefusedError(Outcome.UPSTREAM_ERROR, f"{result.reason} It is not sent again: too many requests are failing.")
