"""One attempt at one endpoint: sends the request, classifies the answer, streams it to the client."""

import asyncio
import contextlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import msgspec

from gateway.admission.events import Back, EndpointId, RequestId, Verdict
from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Endpoint
from gateway.relay.exchange import Exchange
from gateway.relay.flights import Flight, Flights, Interruption
from gateway.relay.headers import is_stream, towards_client
from gateway.relay.payload import Payload
from gateway.runtime.turnstile import Turnstile
from gateway.server.asgi import Headers
from gateway.upstream.connection import BODILESS
from gateway.upstream.interface import Answer, ChunkSink, ConnectFailedError, Upstream, UpstreamError
from gateway.wire.engine_kinds import Meaning
from gateway.wire.errors import SHUTTING_DOWN, stream_error
from gateway.wire.passing_usage import PassingUsage
from gateway.wire.request import Api
from gateway.wire.stream import (
    BodyFacts,
    Failure,
    FailureKind,
    StreamReader,
    error_message,
    is_preliminary,
    read_body,
    response_id,
    says_something,
)
from gateway.wire.token_ids import IdsField

_OK = 200
_NOT_FOUND = 404
_SERVER_ERRORS = 500
MAX_HELD_BYTES = 4 * 2**20
"""An answer that is not streamed is held until it is known to be good, and so are the preliminary events of a stream.
What is over this size passes as it is."""
MAX_ERROR_BYTES = 2**20
"""Most bytes of an error's body that are held."""
LARGE_PIECE = 64 * 2**10
_EMPTY = Failure(FailureKind.UNFINISHED, 502, "its answer to a request for a stream is empty")
_REFUSED_AS: dict[Meaning | None, Outcome] = {
    Meaning.TOO_LONG: Outcome.CONTEXT_LENGTH_EXCEEDED,
    Meaning.INVALID: Outcome.INVALID_REQUEST,
}
"""What the client sees where the request is at fault, whatever status the engine gives that."""
_LAST_EVENT_TIMEOUT = 5.0
"""Seconds a client gets to take the error that ends its answer: the request's own timer has run out by then."""


def _as_event(status: int) -> Outcome:
    """What an endpoint's own refusal becomes in a stream that has begun."""
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Outcome.RATE_LIMIT_EXCEEDED
    return Outcome.INVALID_REQUEST if status >= HTTPStatus.BAD_REQUEST else Outcome.UPSTREAM_ERROR


class Ended(msgspec.Struct, frozen=True):
    """The client has its answer, or as much of it as it will get. `verdict`: how the request left the endpoint."""

    outcome: Outcome
    verdict: Verdict


class Retryable(msgspec.Struct, frozen=True):
    """Nothing of an answer has reached the client: `attempts.py` may send the request again.

    Attributes:
        cause: why it comes back.
        message: told to the client if this was the last attempt.
        evacuated: it was taken off the endpoint, which may have seen it.
        live_error: an endpoint that lives answered with an error. Retries for that are limited by `RetryBudget`.
    """

    cause: Back
    message: str
    evacuated: bool = False
    live_error: bool = False


class Outgoing(msgspec.Struct, frozen=True):
    """The request as the endpoint gets it.

    Attributes:
        payload: has the body until the answer begins, then drops it.
        strip_usage: kvgate asked for usage in the stream; the client did not.
        stream_interval: tokens that the client wants in each event.
        sequences: number of sequences it generates.
    """

    request: RequestId
    path: str
    payload: Payload
    prompt_tokens: int
    strip_usage: bool
    stream_interval: int = 1
    sequences: int = 1


class TokenListener(Protocol):
    """What hears of the tokens that a request has generated, and of how its client takes them."""

    def first_tokens(self, generated: int) -> None:
        """Note the first tokens."""
        ...

    def progress(self, generated: int) -> None:
        """Note the tokens generated so far."""
        ...

    def unread(self) -> None:
        """Note that a whole answer passes whose tokens are not known before its end."""
        ...

    def behind(self) -> None:
        """Note that the client does not take the answer as fast as it comes."""
        ...


class _FailedMidwayError(Exception):
    """The answer failed after part of it was passed on. `reader.failure` says how."""


class Attempt:
    """Sends one request to one endpoint and relays the answer.

    Nothing of the answer reaches the client before its first event is known to be good, so a failure until then can be
    retried. The `place` hears of the tokens generated so far. What ends in the middle passes `turnstile`. `stored` is
    called before the client learns the id of a stored response: the client may ask for that response at once.
    `may_refuse`: a refusal inside of an answer is the client's to hear; else the endpoint has failed.
    """

    def __init__(
        self,
        exchange: Exchange,
        place: TokenListener,
        flights: Flights,
        upstream: Upstream,
        endpoint: Endpoint,
        *,
        turnstile: Turnstile,
        stored: Callable[[str, EndpointId], None],
        may_refuse: bool = True,
    ) -> None:
        self._exchange = exchange
        self._response = exchange.response
        self._place = place
        self._flights = flights
        self._upstream = upstream
        self._endpoint = endpoint
        self._turnstile = turnstile
        self._stored = stored
        self._may_refuse = may_refuse
        self.reader: StreamReader | None = None
        """The reader of a streamed answer."""

    async def run(
        self,
        outgoing: Outgoing,
        headers: Headers,
        *,
        evacuated: bool = False,
        ids: IdsField | None = None,
        model: str | None = None,
    ) -> Ended | Retryable:
        """Try once. Cancelled when the client leaves; then the connection to the endpoint closes at once.

        Args:
            outgoing: the request.
            headers: for the endpoint.
            evacuated: it was taken off another endpoint.
            ids: the field in which its token ids go along.
            model: the name that the request has.
        """
        streams = self._exchange.stream and outgoing.stream_interval == 1
        flight = self._flights.open(
            outgoing.request,
            self._endpoint,
            outgoing.prompt_tokens,
            streams=streams,
            evacuated=evacuated,
            behind=self._place.behind,
        )
        try:
            return await self._exchanged(flight, outgoing, headers, ids, model)
        except asyncio.CancelledError:
            if flight.interruption is None or flight.task.uncancel():  # the client left too, at the same moment
                raise
            return await self._interrupted(flight)
        finally:
            self._flights.close(flight)

    async def _exchanged(
        self, flight: Flight, outgoing: Outgoing, headers: Headers, ids: IdsField | None, model: str | None
    ) -> Ended | Retryable:
        try:
            answer = await self._upstream.send(
                self._endpoint.base_url,
                "POST",
                outgoing.path,
                headers,
                outgoing.payload.towards(ids),
                alone=self._exchange.failures > 0,
                sending=flight.sending,
            )
        except UpstreamError as error:
            self._endpoint.watch.failed(str(error))
            cause = Back.UNREACHED if isinstance(error, ConnectFailedError) else Back.FAILED
            return Retryable(cause, f"The endpoint did not answer: {error}.")
        try:
            if answer.status != _OK:
                return await self._not_ok(flight, answer, model)
            if is_stream(answer.headers):
                return await self._stream(flight, answer, outgoing)
            return await self._whole(flight, answer)
        except UpstreamError as error:
            self._endpoint.watch.failed(str(error))
            return await self._broken(f"The endpoint failed: {error}.")
        finally:
            answer.close()

    async def _not_ok(self, flight: Flight, answer: Answer, model: str | None) -> Ended | Retryable:
        body, complete = await _read_up_to(answer, MAX_ERROR_BYTES)
        flight.answered(answer.status)
        message = error_message(body) if complete else f"an error of more than {MAX_ERROR_BYTES >> 20} MiB"
        means = self._endpoint.kind.meaning(answer.status, message)
        if means is Meaning.BUSY:
            return Retryable(Back.BUSY, message)
        if means in _REFUSED_AS:
            return Ended(await self._exchange.refuse(_REFUSED_AS[means], message), Verdict.DONE)
        if answer.status >= _SERVER_ERRORS or means is Meaning.FAILED:
            dead = means is Meaning.DEAD
            self._endpoint.watch.failed(f"it answered {answer.status}", dead=dead)
            return Retryable(
                Back.FAILED, f"The endpoint answered {answer.status}: {_sentence(message)}", live_error=not dead
            )
        if self._endpoint.denies(answer.status, keyed=self._exchange.client.keyed):
            self._endpoint.watch.failed(self._endpoint.denial)
            return Retryable(Back.FAILED, f"The endpoint failed: {self._endpoint.denial}.", live_error=True)
        lacks_model = self._endpoint.lacks(answer.status, model)
        if not lacks_model and (answer.status == _NOT_FOUND or not body.lstrip().startswith(b"{")):
            # Perhaps it is another engine by now; or a proxy says that the engine is gone.
            self._endpoint.watch.failed(f"it answered {answer.status}")
        if lacks_model or self._another_may_have(means, answer.status, body):
            return Retryable(Back.LACKING, f"The endpoint answered {answer.status}: {_sentence(message)}")
        if self._response.head_sent:
            await self._exchange.refuse(_as_event(answer.status), message)
        else:
            await self._pass_on(flight, answer, body, complete=complete)
        away = self._endpoint.turns_away(answer.status)
        return Ended(Outcome.ENDPOINT_REFUSED, Verdict.FAILED if away else Verdict.DONE)

    def _another_may_have(self, means: Meaning | None, status: int, body: bytes) -> bool:
        """Whether it lacks the route or an option, and another is there to be tried: one, not all of many."""
        pool, exchange = self._endpoint.pool, self._exchange
        lacks = means is Meaning.LACKING or self._endpoint.lacks_route(status, body)
        if pool is None or exchange.lacking or not lacks:
            return False
        return any(other is not self._endpoint for other in pool.healthy())

    async def _whole(self, flight: Flight, answer: Answer) -> Ended | Retryable:
        body, complete = await _read_up_to(answer, MAX_HELD_BYTES)
        api = self._exchange.api or Api.CHAT
        facts = read_body(api, body) if complete else BodyFacts(None, None, response_id(body))
        failure = facts.failure if body or not self._exchange.stream else _EMPTY
        if failure is not None:
            return await self._failed_unseen(flight, failure)
        if self._response.head_sent:  # the head of a stream has already left
            return Retryable(Back.FAILED, "The endpoint did not stream its answer.", live_error=True)
        self._flights.note_answer(flight, engine_done=True)
        self._exchange.usage, self._exchange.finish_reasons = facts.usage, facts.finish_reasons
        self._remember(facts.response_id)
        if complete:
            await self._pass_on(flight, answer, body, complete=True)
        else:
            counts = PassingUsage()
            self._place.unread()
            await self._pass_on(flight, answer, body, complete=False, counts=counts)
            self._exchange.usage = counts.read(self._exchange.api)
        return Ended(Outcome.COMPLETED, Verdict.DONE)

    async def _stream(self, flight: Flight, answer: Answer, outgoing: Outgoing) -> Ended | Retryable:
        exchange = self._exchange
        reader = self.reader = StreamReader(
            exchange.api or Api.CHAT,
            strip_usage=outgoing.strip_usage,
            interval=outgoing.stream_interval,
            sequences=outgoing.sequences,
        )
        body = self._response.body
        feed, write, progress = reader.feed, body.write, self._place.progress

        async def drained() -> None:
            flight.delivering = True
            await body.drained()
            flight.delivering = False

        def take(data: bytes) -> bool:
            """Pass on a piece, in the callback that brings it. False: bring no more until the client has caught up."""
            ready = feed(data)
            # After a large piece other requests get their turn, however fast this engine is.
            keeps_up = (not ready or write(ready)) and len(data) < LARGE_PIECE
            if reader.failure is not None:
                raise _FailedMidwayError
            if says_something(ready):
                progress(reader.tokens)
            return keeps_up

        held = await self._first_events(answer, reader)
        if reader.failure is not None:
            return await self._failed_unseen(flight, reader.failure)
        self._flights.note_answer(flight)
        self._remember(reader.response_id)
        exchange.first_event = exchange.clock()
        await self._start(flight, answer)
        answer.headers = ()  # as nobody needs them any more
        try:
            if held and not write(held):
                await drained()
            held = b""  # freed: a stream may be long
            self._place.first_tokens(reader.tokens)
            await answer.deliver(take, drained, _chunk_sink(reader, body.chunks(), progress))
        except _FailedMidwayError:
            await drained()
        rest = reader.end()
        if reader.failure is not None:
            return await self._failed_midway(reader.failure)
        exchange.usage, exchange.finish_reasons = reader.usage, reader.finish_reasons
        self._flights.progressed((outgoing.request,))  # by the next batch the flight is closed
        flight.delivering = True
        await self._response.end(rest)
        return Ended(Outcome.COMPLETED, Verdict.DONE)

    def _remember(self, response_id: str | None) -> None:
        if response_id is not None and self._exchange.api is Api.RESPONSES:
            self._stored(response_id, self._endpoint.id)

    async def _first_events(self, answer: Answer, reader: StreamReader) -> bytes:
        """Read until it is clear whether the engine answers; return what may leave."""
        held, read = bytearray(), 0
        while data := await answer.read_some():
            held += reader.feed(data)
            if reader.failure is not None or len(held) > MAX_HELD_BYTES:
                break
            if reader.torn:
                continue  # the type of an event may come last
            if not is_preliminary(bytes(held[read:])):
                break
            read = len(held)
        else:
            held += reader.end()
        return bytes(held)

    async def _start(self, flight: Flight, answer: Answer, length: int | None = None) -> None:
        """Begin the client's answer. Waits until the client has taken earlier answers on its connection."""
        flight.delivering = True
        await self._response.begin(answer.status, self._headers(answer, length))
        flight.delivering = False

    def _headers(self, answer: Answer, length: int | None) -> list[tuple[bytes, bytes]]:
        if answer.status in BODILESS:
            length = None
        return towards_client(answer.headers, self._exchange.identifier, length=length) + self._exchange.facts()

    async def _pass_on(
        self, flight: Flight, answer: Answer, body: bytes, *, complete: bool, counts: PassingUsage | None = None
    ) -> None:
        """Pass on an answer that is not streamed: whole if complete, else the rest piece by piece as it arrives.

        `counts` looks for its usage in the pieces.
        """
        if complete:
            flight.delivering = True
            await self._response.whole(answer.status, self._headers(answer, len(body)), body)
            return
        await self._start(flight, answer, _length(answer.headers))
        while not complete:
            if counts is not None:
                await _look_through(body, counts)
            flight.delivering = True
            await self._response.write(body)
            flight.delivering = False
            flight.moved_at = self._exchange.clock()
            body = await answer.read_some()
            complete = not body
        flight.delivering = True
        await self._response.end(body)

    async def _failed_unseen(self, flight: Flight, failure: Failure) -> Ended | Retryable:
        """The answer had status 200 and is a failure, whole or in its first event. The client has seen none of it."""
        kind = self._endpoint.kind
        if failure.kind is FailureKind.BUSY:
            return Retryable(Back.BUSY, failure.message)
        if failure.kind is FailureKind.REFUSED and self._may_refuse:
            flight.delivering = True
            outcome = _REFUSED_AS.get(kind.meaning(failure.status, failure.message), Outcome.INVALID_REQUEST)
            return Ended(await self._exchange.refuse(outcome, failure.message), Verdict.DONE)
        self._report(failure)
        lives = not self._aborts(failure) and not self._dead(failure)
        return Retryable(Back.FAILED, f"The endpoint failed: {_sentence(failure.message)}", live_error=lives)

    async def _failed_midway(self, failure: Failure) -> Ended:
        self._report(failure)
        return await self._end_with(
            failure.event or self._error_event(f"The endpoint failed: {_sentence(failure.message)}")
        )

    def _report(self, failure: Failure) -> None:
        aborts = self._aborts(failure)
        self._endpoint.watch.failed(failure.message, aborted=aborts, dead=self._dead(failure))

    def _aborts(self, failure: Failure) -> bool:
        """Whether the engine gives its requests up, and not this one only."""
        return failure.kind is FailureKind.ABORTED and not self._endpoint.kind.aborts_while_well

    def _dead(self, failure: Failure) -> bool:
        return self._endpoint.kind.meaning(failure.status, failure.message) is Meaning.DEAD

    async def _broken(self, message: str) -> Ended | Retryable:
        """The connection was lost: start again, unless the client has seen part of the answer."""
        if not self._response.answer_begun:
            return Retryable(Back.FAILED, message)
        return await self._end_with(self._error_event(message))

    async def _interrupted(self, flight: Flight) -> Ended | Retryable:
        if flight.delivering:  # the client is the one that stopped
            return Ended(Outcome.CLIENT_CLOSED, Verdict.ABORTED)
        outcome, message = Outcome.UPSTREAM_TIMEOUT, "The endpoint sent nothing for too long."
        if flight.interruption is Interruption.SHUTDOWN:
            outcome, message = Outcome.DRAINING, SHUTTING_DOWN
        if self._response.answer_begun:
            ended = await self._end_with(self._error_event(message, outcome))
            if ended.outcome is Outcome.COMPLETED:
                return ended
        elif flight.interruption is Interruption.EVACUATED:
            cause = Back.FAILED if flight.sent else Back.UNREACHED
            return Retryable(cause, "The endpoint went down, or hangs.", evacuated=flight.sent)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_EVENT_TIMEOUT):
                    await self._exchange.refuse(outcome, message)
        return Ended(outcome, Verdict.ABORTED)

    def _error_event(self, message: str, outcome: Outcome = Outcome.UPSTREAM_ERROR) -> bytes:
        return stream_error(self._exchange.api or Api.CHAT, outcome, message)

    async def _end_with(self, event: bytes) -> Ended:
        """End the HTTP body cleanly, with the error as its last event and without `[DONE]`.

        A body that is not an event stream is cut off: no error can be told inside of it. A stream whose last event has
        come is whole, whatever became of its connection.
        """
        await self._turnstile.pass_through()  # with an engine, hundreds of streams may end
        if self.reader is None:
            return Ended(Outcome.UPSTREAM_ERROR, Verdict.ABORTED)
        self._exchange.usage, self._exchange.finish_reasons = self.reader.usage, self.reader.finish_reasons
        whole = self.reader.closed and self.reader.failure is None
        if whole:
            event = b""
        elif self.reader.torn:
            event = b"\n\n" + event
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_EVENT_TIMEOUT):
                await self._response.end(event)
        return Ended(Outcome.COMPLETED, Verdict.DONE) if whole else Ended(Outcome.UPSTREAM_ERROR, Verdict.ABORTED)


def _sentence(message: str) -> str:
    """An engine's words with a full stop, as ours follow."""
    return message if message.endswith((".", "!", "?")) else f"{message}."


async def _read_up_to(answer: Answer, most: int) -> tuple[bytes, bool]:
    """Read a body until it ends or has over `most` bytes; return what was read and whether it is complete."""
    body = bytearray()
    while len(body) <= most:
        piece = await answer.read_some()
        if not piece:
            return bytes(body), True
        body += piece
    return bytes(body), False


async def _look_through(body: bytes, counts: PassingUsage) -> None:
    """Look for counts in a piece of any size. What takes a millisecond is done before others have their turn."""
    for start in range(0, len(body), LARGE_PIECE):
        counts.feed(body[start : start + LARGE_PIECE])
        await asyncio.sleep(0)


def _length(headers: Headers) -> int | None:
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def _chunk_sink(
    reader: StreamReader, write: Callable[[bytes], bool] | None, progress: Callable[[int], None]
) -> ChunkSink | None:
    """What passes on a chunk of ordinary events in the frame it came in; None if its client gets no chunks."""
    if write is None:
        return None
    passes = reader.passes

    def take(chunk: bytes, start: int) -> bool | None:
        if not passes(chunk, start):
            return None
        keeps_up = write(chunk)
        progress(reader.tokens)
        return keeps_up

    return take
