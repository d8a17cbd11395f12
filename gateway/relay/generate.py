"""A generation request from its first byte to its last: read, counted, admitted, tried, reported."""

from dataclasses import dataclass

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Demand, RequestId, Verdict
from gateway.admission.outcomes import Outcome
from gateway.driver import Driver, RejectedError
from gateway.pools import Pool
from gateway.relay.asgi import Scope, path
from gateway.relay.attempt import Again, Attempt, Outgoing, Settled
from gateway.relay.clients import Client
from gateway.relay.destination import find_pool, wait_for_endpoint
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.headers import towards_endpoint
from gateway.relay.length import TooLongError, demand, untokenized
from gateway.relay.plane import Plane
from gateway.tokens.count import CountingOverloadedError, CountUnavailableError, PromptCount, PromptTooLongError, Source
from gateway.wire.request import Api, ForbiddenFieldError, GenerationRequest, InvalidRequestError, parse, with_usage

_WAITED_IN_VAIN = frozenset({Outcome.QUEUE_TIMEOUT, Outcome.NO_ENDPOINT})
_BYTES_PER_TOKEN = 4
"""Only to give a size to a request that observe mode lets through uncounted."""


class _Reservation:
    """A place in the core that is given back exactly once, whatever happens."""

    def __init__(self, driver: Driver, request: RequestId) -> None:
        self.request = request
        self._driver = driver
        self._held = True

    async def again(self, *, busy: bool) -> Dispatch:
        """Give it back unanswered and wait for another one."""
        self._held = False
        dispatch = await self._driver.readmit(self.request, busy=busy)
        self._held = True
        return dispatch

    def release(self, verdict: Verdict, completion_tokens: int | None = None) -> None:
        """Give it back for good; ignored when it is not held."""
        if self._held:
            self._held = False
            self._driver.finish(self.request, verdict, completion_tokens)


@dataclass(frozen=True, slots=True)
class _Work:
    """A request that was understood, and what it asks for."""

    request: GenerationRequest
    pool: Pool
    count: PromptCount
    demand: Demand


async def generate(plane: Plane, scope: Scope, exchange: Exchange, client: Client, body: bytes) -> Outcome:
    """Serve one request of the four generation APIs; returns how it ended.

    Raises:
        RefusedError: it ends with an error.
        asyncio.CancelledError: the client left. The endpoint's connection is closed, the reservation released.
    """
    request = _parsed(exchange.api or Api.CHAT, body)
    exchange.stream = request.stream
    pool = await find_pool(plane, exchange, request.model, len(body))
    _foreground(plane, pool, request)
    count = await _counted(plane, exchange, pool, request, client)
    exchange.prompt_tokens, exchange.counted = sum(count.prompts), count.source
    asked = _demanded(plane, pool, request, count)
    return await _admitted(plane, scope, exchange, client, _Work(request, pool, count, asked))


def _parsed(api: Api, body: bytes) -> GenerationRequest:
    try:
        return parse(api, body)
    except ForbiddenFieldError as error:
        raise RefusedError(Outcome.FORBIDDEN_FIELD, error.message, error.param) from None
    except InvalidRequestError as error:
        raise RefusedError(Outcome.INVALID_REQUEST, error.message, error.param) from None


def _foreground(plane: Plane, pool: Pool, request: GenerationRequest) -> None:
    """Refuse what the engine would answer at once and generate later, unseen by the ledger."""
    if request.api is not Api.RESPONSES or not request.field("background"):
        return
    if not plane.observes:
        message = (
            "`background` cannot be used here: its tokens could not be accounted for. Stream the response instead."
        )
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "background")
    plane.metrics.model(pool.name).would(Outcome.FORBIDDEN_FIELD)


async def _counted(
    plane: Plane, exchange: Exchange, pool: Pool, request: GenerationRequest, client: Client
) -> PromptCount:
    longest = pool.max_model_len
    try:
        try:
            return await pool.counter.count(request, flow=client.flow, max_model_len=longest)
        except CountUnavailableError:
            # The engine had to count and none is there: wait for one as the queue would.
            await wait_for_endpoint(plane, exchange, pool, len(request.body))
            return await pool.counter.count(request, flow=client.flow, max_model_len=longest)
    except PromptTooLongError as error:
        if not plane.observes:
            refusal = untokenized(error.at_least, longest, request.api)
            raise RefusedError(Outcome.CONTEXT_LENGTH_EXCEEDED, refusal.message, refusal.param) from None
        plane.metrics.model(pool.name).would(Outcome.CONTEXT_LENGTH_EXCEEDED)
    except InvalidRequestError as error:
        if not plane.observes:
            raise RefusedError(Outcome.INVALID_REQUEST, error.message, error.param) from None
        plane.metrics.model(pool.name).would(Outcome.INVALID_REQUEST)
    except CountingOverloadedError:
        if not plane.observes:
            message = "Too many prompts wait to be counted. Please retry."
            raise RefusedError(Outcome.QUEUE_FULL, message, retry_after=1.0) from None
        plane.metrics.model(pool.name).would(Outcome.QUEUE_FULL)
    except CountUnavailableError as error:
        if not plane.observes:
            message = f"The prompt could not be counted: {error}."
            raise RefusedError(Outcome.NO_ENDPOINT, message, retry_after=5.0) from None
        plane.metrics.model(pool.name).would(Outcome.NO_ENDPOINT)
    return PromptCount((max(1, len(request.body) // _BYTES_PER_TOKEN),), Source.ESTIMATE)


def _demanded(plane: Plane, pool: Pool, request: GenerationRequest, count: PromptCount) -> Demand:
    if not pool.endpoints:  # the model left in the meantime, and its length with it
        raise RefusedError(Outcome.NO_ENDPOINT, _SENTENCES[Outcome.NO_ENDPOINT], retry_after=1.0)
    try:
        return demand(request, count, pool.max_model_len, pool.takes)
    except TooLongError as error:
        if not plane.observes:
            raise RefusedError(Outcome.CONTEXT_LENGTH_EXCEEDED, error.message, error.param) from None
        plane.metrics.model(pool.name).would(Outcome.CONTEXT_LENGTH_EXCEEDED)
        return demand(request, PromptCount(count.prompts, Source.ESTIMATE), pool.max_model_len, pool.takes)


async def _admitted(plane: Plane, scope: Scope, exchange: Exchange, client: Client, work: _Work) -> Outcome:
    pool, request, asked = work.pool, work.request, work.demand
    band = max(client.band, request.priority)
    queued = plane.clock()
    try:
        identifier, dispatch = await pool.driver.admit(
            asked, band=band, flow=client.flow, body_bytes=len(request.body), streamed=request.stream
        )
        exchange.queued = True
    except RejectedError as error:
        exchange.queued = error.command.outcome in _WAITED_IN_VAIN
        raise _refusal(error.command, "") from None
    finally:
        exchange.waited += plane.clock() - queued
    reservation = _Reservation(pool.driver, identifier)
    try:
        if dispatch.would is not None:
            plane.metrics.model(pool.name).would(dispatch.would)
        ask_usage = request.stream and not request.include_usage and request.api in {Api.CHAT, Api.COMPLETIONS}
        outgoing = Outgoing(
            request=identifier,
            path=path(scope),
            body=with_usage(request) if ask_usage else request.body,
            prompt_tokens=asked.prompt_tokens,
            strip_usage=ask_usage,
        )
        while True:
            endpoint = plane.directory.endpoints[dispatch.endpoint]
            exchange.endpoint = endpoint.id
            headers = towards_endpoint(
                scope,
                exchange.identifier,
                api_key=endpoint.api_key,
                keep_credentials=plane.keeps_credentials,
                priority=band if band or request.priority else None,
            )
            exchange.sent()
            made = plane.directory.remember_response
            attempt = Attempt(exchange, pool.driver, plane.flights, plane.upstream, endpoint, made=made)
            result = await attempt.run(outgoing, headers)
            if isinstance(result, Settled):
                usage = exchange.usage
                reservation.release(result.verdict, usage.completion_tokens if usage is not None else None)
                if usage is not None:
                    pool.counter.settle(work.count, usage.prompt_tokens)
                return result.outcome
            dispatch = await _another(plane, exchange, reservation, result)
    finally:
        reservation.release(Verdict.ABORTED)


async def _another(plane: Plane, exchange: Exchange, reservation: _Reservation, result: Again) -> Dispatch:
    returned = plane.clock()
    try:
        return await reservation.again(busy=result.busy)
    except RejectedError as error:
        command = error.command
        if command.outcome is Outcome.UPSTREAM_ERROR and result.overdue:
            command = Reject(command.request, Outcome.UPSTREAM_TIMEOUT, command.retry_after)
        raise _refusal(command, result.reason) from None
    finally:
        exchange.waited += plane.clock() - returned


_SENTENCES: dict[Outcome, str] = {
    Outcome.QUEUE_FULL: "The queue is full.",
    Outcome.WAIT_TOO_LONG: "The first token could not come within the TTFT target.",
    Outcome.QUEUE_TIMEOUT: "No room became free in time.",
    Outcome.NO_ENDPOINT: "No endpoint is ready to serve this model.",
    Outcome.DRAINING: "This gateway is shutting down.",
    Outcome.CONTEXT_LENGTH_EXCEEDED: "No endpoint has a KV cache that the prompt fits.",
    Outcome.UPSTREAM_ERROR: "",
    Outcome.UPSTREAM_TIMEOUT: "",
}


def _refusal(command: Reject, reason: str) -> RefusedError:
    sentence = f"{_SENTENCES[command.outcome]} {reason}".strip()
    if command.retry_after is not None:
        sentence += f" Please retry in {command.retry_after:.0f} s."
    return RefusedError(command.outcome, sentence, retry_after=command.retry_after)
