"""The relay of requests without admission: they use little of an endpoint's KV cache."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus

from gateway.admission.events import Back, EndpointId
from gateway.admission.outcomes import Outcome
from gateway.config.settings import Settings
from gateway.pools.directory import Endpoint, Pool
from gateway.relay.body_parsing import read
from gateway.relay.charge import charged
from gateway.relay.demand import refuse_adapter
from gateway.relay.destination import NOTICED, find_pool, retry_after, wait_for_endpoint
from gateway.relay.editing import check_names
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.flights import Flight, Interruption
from gateway.relay.headers import is_stream, rate_limits, towards_client, towards_endpoint
from gateway.relay.lobby import shutting_down
from gateway.relay.payload import Allowance, Payload
from gateway.relay.plane import Plane
from gateway.relay.stored import stored
from gateway.server.asgi import ClientGoneError, Headers, Scope, header, path
from gateway.upstream.interface import Answer, ConnectFailedError, UpstreamError
from gateway.wire.engine_kinds import Meaning
from gateway.wire.form import form_model, is_form
from gateway.wire.passing_usage import PassingUsage
from gateway.wire.request import Relayed, relayed
from gateway.wire.stream import error_message

_TRIES = 2
"""Endpoints that may have seen one request."""
_BYTES_PER_TOKEN = 4
"""Used only to give a time to the prompts of a request that nobody counts."""
_OK = 200


class _EvacuatedError(Exception):
    """The request was taken off its endpoint, which went down or hangs. `sent`: it may have seen the request."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class _UnansweredError(Exception):
    """No endpoint has answered it."""


@dataclass(slots=True)
class _Tried:
    """What became of a request so far.

    Attributes:
        until: when it waits no more for an endpoint that answers it.
        seen: how many endpoints may have seen it and did not answer.
        evacuated: whether it was taken off one that may have seen it.
        reason: why the last one did not answer.
    """

    until: float
    seen: int = 0
    evacuated: bool = False
    reason: str = "it was not ready"

    def goes_on(self, now: float) -> bool:
        """Whether it may wait, and be sent again."""
        return self.seen < _TRIES and now < self.until


async def relay(plane: Plane, scope: Scope, exchange: Exchange, payload: Payload, *, computes: bool) -> Outcome:
    """Pass a request to a healthy endpoint of its model, once one of the model's relay places is free.

    While it waits for an endpoint it holds no place. Once its answer begins it gives its place back: the engine has
    done its part, and a client that reads slowly keeps nobody else out. Only behind a stream, as of a transcription,
    the engine is still at work.

    `computes`: the engine has work with it, so that its silence is judged as that of a generated answer.

    Raises:
        RefusedError: it ends with an error.
    """
    kind = header(scope, b"content-type") or b""
    request = Relayed(None)
    if scope["method"] == "GET":
        pass
    elif is_form(kind):
        request = Relayed(await read(plane.counting, exchange.flow, form_model, payload.data, kind))
    else:
        request = await read(plane.counting, exchange.flow, relayed, payload.data)
    name, size = request.model, len(payload.data)
    refuse_adapter(exchange.client, request.adapter_field)
    pool = await find_pool(plane, exchange, name, size)
    if request.priority and not pool.takes_band:
        message = "`priority` cannot be used here: the engine would take the highest first."
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "priority")
    if pool.caseless and scope["method"] != "GET" and not is_form(kind):
        await check_names(plane, exchange.flow, payload.data)
    estimated = 0 if is_form(kind) else size // _BYTES_PER_TOKEN  # a form has a recording, whose bytes are no tokens
    prompt_tokens = min(estimated, pool.max_model_len) if computes else None
    most = size * pool.max_model_len  # each byte might be an input of its own
    async with charged(plane, exchange, pool, most, lambda: estimated) if computes else contextlib.nullcontext():
        came_up, tried = True, None
        while came_up:  # the last one may have left again before there was a place, or have just ended
            pool = await wait_for_endpoint(plane, exchange, pool, name, size)
            came_up = bool(pool.healthy())
            async with _place(plane, exchange, pool, size) as leave:
                if pool.healthy():

                    def offered(pool: Pool = pool) -> list[Endpoint]:
                        return pool.in_turn(plane.clock())

                    if tried is None:
                        tried = _Tried(plane.clock() + plane.settings.admission.queue.no_endpoint_ttl)
                        pool.retries.sent(plane.clock())
                    with contextlib.suppress(_UnansweredError):
                        return await _pass(
                            plane,
                            scope,
                            exchange,
                            payload,
                            offered,
                            tried=tried,
                            on_answer=leave,
                            prompt_tokens=prompt_tokens,
                            model=name,
                        )
            if tried is not None:
                await asyncio.sleep(NOTICED)
        again = retry_after(pool.endpoints.values())
        raise RefusedError(Outcome.NO_ENDPOINT, "No endpoint is ready to serve this model.", retry_after=again)


async def follow(plane: Plane, scope: Scope, exchange: Exchange, payload: Payload) -> Outcome:
    """Pass a request about a stored response to the endpoint that made it.

    Raises:
        RefusedError: it ends with an error.
    """
    response_id = scope["path"].removeprefix("/v1/responses/").split("/")[0]
    endpoint = plane.directory.endpoints[stored(plane, exchange.client, response_id).endpoint]
    return await _pass(plane, scope, exchange, payload, lambda: [endpoint], tried=_Tried(plane.clock()))


@contextlib.asynccontextmanager
async def _place(plane: Plane, exchange: Exchange, pool: Pool, size: int) -> AsyncIterator[Callable[[], None]]:
    """Hold one of the model's relay places; yields what gives it back before the end."""
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
    with contextlib.ExitStack() as held:
        held.callback(places.release, flow)
        yield held.close


async def _pass(
    plane: Plane,
    scope: Scope,
    exchange: Exchange,
    payload: Payload,
    offered: Callable[[], Iterable[Endpoint]],
    *,
    tried: _Tried,
    on_answer: Callable[[], None] = lambda: None,
    prompt_tokens: int | None = None,
    model: str | None = None,
) -> Outcome:
    """Try it on the endpoints that are offered.

    `on_answer` is called when the answer begins. `prompt_tokens`: what the engine computes; None for nothing. `model`:
    the name that it asks for.

    Raises:
        _UnansweredError: no endpoint has answered, and it may wait for one that does.
    """
    asked: set[EndpointId] = set()
    lacking = lacked = failed = False

    def another() -> Endpoint | None:
        return next((e for e in offered() if e.id not in asked and (not lacking or e.tells(model))), None)

    while len(asked) < _TRIES + lacked and tried.seen < _TRIES and (endpoint := another()):
        asked.add(endpoint.id)
        headers = towards_endpoint(
            scope,
            exchange.identifier,
            api_key=endpoint.api_key,
            keep_credentials=plane.keeps_credentials,
            trace=exchange.sent_to(endpoint.id, endpoint.kind.name),
        )

        async def begin(
            flight: Flight, endpoint: Endpoint = endpoint, headers: Headers = headers
        ) -> tuple[Answer, bytes]:
            answer = await plane.upstream.send(
                endpoint.base_url,
                scope["method"],
                path(scope),
                headers,
                payload.data,
                alone=tried.seen > 0,
                sending=flight.sending,
            )
            try:
                return answer, await answer.read_some()
            except BaseException:
                answer.close()
                raise

        with endpoint.relaying(plane.new_request()), endpoint.trying(plane.clock(), again=tried.seen > 0):
            try:
                async with asyncio.timeout(plane.settings.upstream.first_byte_timeout):
                    begun = await _begun(plane, endpoint, begin, prompt_tokens, tried)
            except TimeoutError:
                return await exchange.refuse(Outcome.UPSTREAM_TIMEOUT, "The endpoint did not answer in time.")
            if begun is None:
                exchange.unanswered(Back.FAILED)
                failed = True
                await plane.turnstile.pass_through()
                continue
            answer, piece = begun
            keyed = exchange.client.keyed
            lacking, denied = endpoint.lacks(answer.status, model), endpoint.denies(answer.status, keyed=keyed)
            absent = lacking or endpoint.lacks_route(answer.status, piece)
            lacked = lacked or absent  # it answers at once, so it is asked first: another may still fail
            broken = not absent and _failed(plane, endpoint, answer.status, piece, again=tried.seen > 0, keyed=keyed)
            hidden = (denied and endpoint.api_key is not None) or (
                absent and failed
            )  # its 404 is not what the one that failed would have said
            if hidden or (
                (absent or broken)
                and len(asked) < _TRIES + (broken and lacked)
                and another() is not None  # asked only now: each time is another turn
                and (absent or _may_retry(plane, endpoint.pool))
            ):
                answer.close()
                exchange.unanswered(Back.LACKING if absent else Back.FAILED)
                tried.reason = tried.reason if failed else endpoint.denial if denied else f"it answered {answer.status}"
                tried.seen += broken and not denied
                failed = failed or broken
                continue
            if not is_stream(answer.headers):  # behind a stream, the engine is still at work
                on_answer()
            try:
                return await _through(plane.settings, exchange, answer, piece, computed=prompt_tokens is not None)
            finally:
                answer.close()
    if tried.goes_on(plane.clock()):
        raise _UnansweredError
    return await exchange.refuse(Outcome.UPSTREAM_ERROR, f"The endpoint did not answer: {tried.reason}.")


async def _begun(
    plane: Plane,
    endpoint: Endpoint,
    begin: Callable[[Flight], Awaitable[tuple[Answer, bytes]]],
    prompt_tokens: int | None,
    tried: _Tried,
) -> tuple[Answer, bytes] | None:
    """The first piece of an answer; None if the endpoint did not answer, which is noted.

    Raises:
        RefusedError: this gateway ends.
        TimeoutError: it was silent for longer than its endpoint's load explains.
    """
    try:
        return await _watched(plane, endpoint, begin, prompt_tokens, evacuated=tried.evacuated)
    except _EvacuatedError as error:
        tried.seen += error.sent
        tried.evacuated |= error.sent
        tried.reason = "it went down, or hangs"
    except UpstreamError as error:
        endpoint.watch.failed(str(error))
        if not isinstance(error, ConnectFailedError):
            if not tried.seen:
                endpoint.note_answer(plane.clock(), failed=True)
            tried.seen += 1
        tried.reason = str(error)
    return None


def _failed(plane: Plane, endpoint: Endpoint, status: int, piece: bytes, *, again: bool, keyed: bool) -> bool:
    """Whether an answer, by its status and its first piece, is a failure of its endpoint.

    That is noted, unless another endpoint failed on the request before.
    """
    if endpoint.denies(status, keyed=keyed):
        endpoint.watch.failed(endpoint.denial)
        endpoint.note_answer(plane.clock(), failed=True)
        return True
    means = endpoint.kind.meaning(status, error_message(piece)) if status >= HTTPStatus.BAD_REQUEST else None
    of_request = status == HTTPStatus.NOT_IMPLEMENTED or means in {Meaning.BUSY, Meaning.INVALID}
    failed = (status >= HTTPStatus.INTERNAL_SERVER_ERROR and not of_request) or means is Meaning.FAILED
    if failed or status == HTTPStatus.NOT_FOUND:  # perhaps it is another engine by now
        endpoint.watch.failed(f"it answered {status}", dead=means is Meaning.DEAD)
    away = endpoint.turns_away(status)
    if status < HTTPStatus.BAD_REQUEST or ((failed or away) and not again):
        endpoint.note_answer(plane.clock(), failed=failed or away)
    return failed


def _may_retry(plane: Plane, pool: Pool | None) -> bool:
    """Take a retry from the pool's budget; False if there is none left."""
    if pool is None:
        return False
    sent = pool.retries.take(plane.settings.upstream.retry_share, plane.clock())
    plane.metrics.model(pool.name).retried(sent=sent)
    return sent


async def _watched(
    plane: Plane,
    endpoint: Endpoint,
    begin: Callable[[Flight], Awaitable[tuple[Answer, bytes]]],
    prompt_tokens: int | None,
    *,
    evacuated: bool,
) -> tuple[Answer, bytes]:
    """Wait for the first piece of an answer; let the endpoint's monitor know of one that its engine computes.

    Raises:
        _EvacuatedError: as it says.
        RefusedError: this gateway ends.
        TimeoutError: it was silent for longer than its endpoint's load explains.
    """
    flight = plane.flights.open(plane.new_request(), endpoint, prompt_tokens, streams=False, evacuated=evacuated)
    try:
        answer, piece = await begin(flight)
    except asyncio.CancelledError:
        if flight.interruption is None or flight.task.uncancel():  # the client left too, at the same moment
            raise
        if flight.interruption is Interruption.SHUTDOWN:
            raise shutting_down() from None
        if flight.interruption is Interruption.EVACUATED:
            raise _EvacuatedError(sent=flight.sent) from None
        raise TimeoutError from None
    else:
        if answer.status == _OK and prompt_tokens is not None:
            plane.flights.note_answer(flight, engine_done=True)
        flight.answered(answer.status)
        return answer, piece
    finally:
        plane.flights.close(flight)


async def _through(settings: Settings, exchange: Exchange, answer: Answer, piece: bytes, *, computed: bool) -> Outcome:
    """Pass on an answer that began with this piece; if the engine `computed` something, note its counts of tokens."""
    counts = PassingUsage()
    try:
        return await _passed_on(settings, exchange, answer, piece, counts)
    finally:
        if computed and answer.status == _OK:
            exchange.usage = counts.read()


async def _passed_on(
    settings: Settings, exchange: Exchange, answer: Answer, piece: bytes, counts: PassingUsage
) -> Outcome:
    length = next((int(value) for name, value in answer.headers if name == b"content-length"), None)
    headers = towards_client(answer.headers, exchange.identifier, length=length)
    if exchange.standing is not None:
        headers += rate_limits(exchange.standing)
    response, allowance = exchange.response, Allowance(settings.server.body_timeout, settings.server.body_min_rate)

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
    while piece:
        counts.feed(piece)
        await tell(response.write(piece), len(piece))
        try:
            async with asyncio.timeout(settings.upstream.idle_timeout):
                piece = await answer.read_some()
        except TimeoutError:
            return Outcome.UPSTREAM_TIMEOUT
        except UpstreamError:
            return Outcome.UPSTREAM_ERROR
    await tell(response.end())
    return Outcome.COMPLETED if answer.status < 400 else Outcome.ENDPOINT_REFUSED  # noqa: PLR2004
