"""The attempts at one prepared request: admitted, sent to an endpoint, given to another if it may be, settled.

How often, and to which endpoint, the core decides (`Returned` in `admission/controller.py`); for which share of all
requests, `pools/retry_budget.py`.
"""

import asyncio
from http import HTTPStatus

from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, Demand, EndpointId, Verdict
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.pools.admission import RejectedError
from gateway.pools.directory import Endpoint, Pool
from gateway.pools.stored_responses import StoredResponse
from gateway.relay.attempt import Attempt, Ended, Outgoing, Retryable
from gateway.relay.demand import NO_ENDPOINT, Asked, Work
from gateway.relay.editing import asks_usage
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.headers import towards_endpoint
from gateway.relay.heartbeat import heartbeat
from gateway.relay.place import Place
from gateway.relay.plane import Plane
from gateway.relay.refusal_sentences import refusal
from gateway.relay.traced_wait import noting
from gateway.server.asgi import path
from gateway.wire.engine_kinds import KINDS
from gateway.wire.usage import Usage

_WAITED_IN_VAIN = frozenset({Outcome.QUEUE_TIMEOUT, Outcome.NO_ENDPOINT, Outcome.WAIT_TOO_LONG})
_ABSENT = HTTPStatus.NOT_FOUND
_AT_ONCE = 0.001
"""Seconds: a request refused sooner has not waited."""
SECOND_TRY = 0.25
"""Seconds before a request is sent again to the only endpoint that takes it, which failed on it: time for a probe."""


_REFUSED = frozenset({Outcome.ENDPOINT_REFUSED, Outcome.CONTEXT_LENGTH_EXCEEDED, Outcome.INVALID_REQUEST})
"""What an engine says of a request that it has not read."""


async def generate(plane: Plane, asked: Asked, work: Work) -> Outcome:
    """Serve a request that was prepared; returns its outcome.

    Raises:
        RefusedError: it ends with an error.
        asyncio.CancelledError: the client left. The endpoint's connection is closed, the reservation released.
    """
    scope, exchange, payload = asked.scope, asked.exchange, asked.payload
    pool, request, band = work.pool, work.request, work.band
    interval = plane.settings.admission.queue.heartbeat
    place = Place(pool.admission, plane.new_request(), work.demand)
    exchange.request = place.request

    def stored(response_id: str, endpoint: EndpointId) -> None:
        if not request.stored:
            return
        key = work.client.flow if work.client.keyed else None
        plane.directory.remember_response(response_id, StoredResponse(endpoint, request.model or pool.name, key))

    try:
        async with heartbeat(exchange, interval, place.turn), noting(exchange, place.turn):
            dispatch = await _first_dispatch(plane, exchange, place, work)
        exchange.standing = dispatch.standing
        pool.retries.sent(plane.clock())
        if dispatch.would is not None:
            plane.metrics.model(pool.name).would(dispatch.would)
        outgoing = Outgoing(
            request=place.request,
            path=path(scope),
            payload=payload,
            prompt_tokens=work.demand.prompt_tokens,
            strip_usage=asks_usage(request),
            stream_interval=min(request.stream_interval, max(1, work.demand.max_tokens)),
            sequences=work.demand.sequences,
        )
        evacuated = failed = False
        while True:
            endpoint = plane.directory.endpoints[dispatch.endpoint]
            headers = towards_endpoint(
                scope,
                exchange.identifier,
                api_key=endpoint.api_key,
                keep_credentials=plane.keeps_credentials,
                priority=band if band or request.priority else None,
                trace=exchange.sent_to(endpoint.id, endpoint.kind.name),
            )
            # The ids are of the tokenizer that counted. The pool may follow its engines to another one meanwhile.
            known = payload.ids and work.count.by is pool.counter
            ids = pool.counter.ids_field(endpoint.base_url) if known else None
            attempt = Attempt(
                exchange,
                place,
                plane.flights,
                plane.upstream,
                endpoint,
                turnstile=plane.turnstile,
                stored=stored,
            )
            result = await attempt.run(outgoing, headers, evacuated=evacuated, ids=ids, model=request.model)
            if isinstance(result, Ended):
                _note_end(exchange, place, work, endpoint, result, given_ids=ids is not None)
                return result.outcome
            await plane.turnstile.pass_through()
            _note_unanswered(exchange, place, work, endpoint, result.cause)
            if result.live_error and not failed:
                failed = True  # the core ends it at its second failure, so it spends one retry at most
                _spend_retry(plane, place, pool, result)
            evacuated = evacuated or result.evacuated
            async with heartbeat(exchange, interval, place.turn), noting(exchange, place.turn):
                if result.cause is Back.FAILED and exchange.failures == 1 and _is_alone(endpoint, work, exchange):
                    await asyncio.sleep(SECOND_TRY)
                dispatch = await _another_dispatch(plane, exchange, place, work, result)
    finally:
        place.release(Verdict.ABORTED)


def _note_end(
    exchange: Exchange, place: Place, work: Work, endpoint: Endpoint, result: Ended, *, given_ids: bool
) -> None:
    """Give back its place, and go by what its engine says that it took."""
    told, counter = exchange.usage, work.pool.counter
    usage = _of_whole(told, work.demand, endpoint)
    if usage is not told:
        exchange.usage = usage
    unreported = 0 if result.outcome in _REFUSED else None
    # Not 0 for a prompt that was only read: that is a refusal's, and would be charged no prompt.
    tokens = unreported if usage is None else max(1, usage.completion_tokens)
    place.release(result.verdict, tokens, _of_estimated(usage, work, result.outcome))
    if work.count.by is counter and usage is not None and told is not None and told.prompt_tokens:
        counter.settle(work.count, usage.prompt_tokens, handed_to=endpoint.base_url if given_ids else None)


def _of_whole(usage: Usage | None, demand: Demand, endpoint: Endpoint) -> Usage | None:
    """The usage of a whole request, estimated where the engine tells that of one sequence only, or of no prompt.

    The last is a llama-server's streamed message: some have no `message_start`, which alone has the prompt's.
    """
    identity = endpoint.identity
    if usage is None:
        return None
    if demand.sequences > 1 and identity is not None and KINDS[identity.kind].tells_one:
        return Usage(demand.prompt_tokens, usage.completion_tokens * demand.sequences)
    return usage if usage.prompt_tokens else Usage(demand.prompt_tokens, usage.completion_tokens)


def _of_estimated(usage: Usage | None, work: Work, outcome: Outcome) -> int | None:
    """The tokens of a prompt that was estimated, see `Finished.prompt_tokens`: no more than its model takes."""
    if work.count.source.exact:
        return None
    if usage is None:
        return None if outcome in (Outcome.COMPLETED, Outcome.CLIENT_CLOSED) else 0  # else the engine did not serve it
    demand, longest = work.demand, work.pool.max_model_len
    beyond = min(usage.completion_tokens, demand.sequences * longest) - demand.sequences * max(1, demand.max_tokens)
    return min(usage.prompt_tokens, len(demand.prompts) * longest) + max(0, beyond)


async def _first_dispatch(plane: Plane, exchange: Exchange, place: Place, work: Work) -> Dispatch:
    metrics = plane.metrics.model(work.pool.name)
    with exchange.waiting() as since:
        metrics.came(work.fingerprint, since)
        try:
            dispatch = await place.take(work.arrival(place.request, exchange.failures))
        except RejectedError as error:
            now, outcome = plane.clock(), error.command.outcome
            exchange.standing = error.command.standing
            exchange.note_rule(error.command.rule)
            if outcome in FOR_WANT_OF_ROOM:
                metrics.refused(work.fingerprint, now)
            exchange.reports_wait |= outcome in _WAITED_IN_VAIN and now - since > _AT_ONCE
            raise refusal(error.command) from None
        exchange.reports_wait = True
        return dispatch


async def _another_dispatch(plane: Plane, exchange: Exchange, place: Place, work: Work, result: Retryable) -> Dispatch:
    metrics = plane.metrics.model(work.pool.name)
    try:
        with exchange.waiting():
            dispatch = await place.again(result.cause)
    except RejectedError as error:
        command = error.command
        exchange.note_rule(command.rule)
        if command.outcome in FOR_WANT_OF_ROOM:
            metrics.refused(work.fingerprint, plane.clock())
        raise refusal(command, "" if result.cause is Back.LACKING else result.message) from None
    if result.cause is not Back.BUSY:
        metrics.retried(sent=True)
    return dispatch


def _is_alone(endpoint: Endpoint, work: Work, exchange: Exchange) -> bool:
    """Whether no other endpoint takes the request now."""
    return [e for e in work.pool.healthy_for(work.demand) if e.id not in exchange.lacking] == [endpoint]


def _note_unanswered(exchange: Exchange, place: Place, work: Work, endpoint: Endpoint, cause: Back) -> None:
    """Note why an endpoint did not answer a request.

    Raises:
        RefusedError: it lacks what the request names, and what has that is away.
    """
    model, others = work.request.model, () if endpoint.id in exchange.lacking else work.pool.healthy()
    exchange.unanswered(cause)
    if cause is Back.FAILED:
        exchange.failures += 1
    elif cause is Back.LACKING and not any(other.tells(model) for other in others) and endpoint.lacks(_ABSENT, model):
        place.release(Verdict.UNSERVED, 0)
        raise RefusedError(Outcome.NO_ENDPOINT, NO_ENDPOINT, retry_after=1.0)


def _spend_retry(plane: Plane, place: Place, pool: Pool, result: Retryable) -> None:
    """Take a retry from the pool's budget.

    Raises:
        RefusedError: there is none left. The request ends with what the endpoint said.
    """
    if pool.retries.take(plane.settings.upstream.retry_share, plane.clock()):
        return
    plane.metrics.model(pool.name).retried(sent=False)
    place.release(Verdict.FAILED)
    raise RefusedError(Outcome.UPSTREAM_ERROR, f"{result.message} It is not sent again: too many requests are failing.")
