"""A server elsewhere that answers in the place of a model here.

It gets a body, and none of the client's headers nor its key. kvgate knows nothing of its load, and asks it when its
turn comes. Whatever it says but 200 means that it does not answer, and so does an error in its place.
"""

from collections.abc import Callable, Collection

import structlog

from gateway.admission.events import EndpointId, RequestId
from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Endpoint, Pool
from gateway.relay.attempt import Attempt, Ended, Outgoing
from gateway.relay.charge import charged
from gateway.relay.demand import Asked, limit, refuse_adapter, refuse_background, refuse_overriding, without_default
from gateway.relay.editing import asks_usage, check_names, edited_for
from gateway.relay.exchange import RefusedError
from gateway.relay.flights import Flights
from gateway.relay.headers import towards_elsewhere
from gateway.relay.plane import Plane
from gateway.server.asgi import Headers
from gateway.upstream.interface import Answer, Upstream, UpstreamError
from gateway.wire.fields import Use, named
from gateway.wire.request import Api, Edits

_OK = 200
_ABOUT_BODY = frozenset({b"content-type", b"content-length", b"cache-control"})
"""Headers of its answer that reach the client. The others are between it and the owner of the key."""
_BYTES_PER_TOKEN = 4
_LONGEST_ANSWER = 2**20
"""Tokens: more are charged to nobody, whatever its `usage` says."""
_READ_SOMEWHERE = named(Use.OVERRIDING)
"""Fields that some engine reads in place of an API's own: which one is elsewhere is not known."""
_log = structlog.get_logger("kvgate.relay")


class Unwatched:
    """The `Watch` over a server elsewhere: nobody probes it. Says when it begins and ends to fail."""

    on_trial = False
    keeps = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._fails = False

    def dispatched(self, request: RequestId, prompt_tokens: int | None, **_how: bool) -> None:
        """Nothing to note."""

    def finished(self, request: RequestId, **_how: bool) -> None:
        """Nothing to note."""

    def progressed(self, _requests: Collection[RequestId]) -> None:
        """Note that it answers."""
        if self._fails:
            self._fails = False
            _log.info("a fallback answers again", fallback=self._address)

    def failed(self, reason: str, *, aborted: bool | None = None, dead: bool | None = None) -> None:
        """Note that it does not. Where `aborted` and `dead` are given, the reason is in its own words."""
        if not self._fails:
            self._fails = True
            told = reason if aborted is dead is None else "its answer failed"  # its words may repeat a client's
            _log.warning("a fallback does not answer", fallback=self._address, reason=told)


class _OfOthers:
    """An upstream whose answers have status 200 and can be read, and of their headers only those about the body."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        *,
        alone: bool = False,
        sending: Callable[[], None] = lambda: None,
    ) -> Answer:
        """See `Upstream.send`.

        Raises:
            UpstreamError: no connection, another status, or an encoded body, though none was asked for.
        """
        answer = await self._upstream.send(base_url, method, path, headers, body, alone=alone, sending=sending)
        if answer.status != _OK:
            answer.close()
            raise UpstreamError(f"status {answer.status}")
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in answer.headers):
            answer.close()
            raise UpstreamError("its answer is encoded")
        answer.headers = [(name, value) for name, value in answer.headers if name in _ABOUT_BODY]
        return answer

    async def close(self) -> None:
        """Nothing of its own."""


class _Noted:
    """The account of a request that no core knows: its silence is watched, and its tokens are counted."""

    def __init__(self, flights: Flights, request: RequestId) -> None:
        self._flights = flights
        self._request = request
        self.generated = 0

    def first_tokens(self, generated: int) -> None:
        """Note that it goes on."""
        self.generated = generated
        self._flights.progressed((self._request,))

    progress = first_tokens

    def unread(self) -> None:
        """Nothing to note: the length of its answer is not limited here."""

    def behind(self) -> None:
        """Nothing to note: it holds nothing of an engine of ours."""


async def answer_elsewhere(plane: Plane, asked: Asked, server: Endpoint, pool: Pool | None) -> Outcome:
    """Have a request answered by a server elsewhere; returns how it ended.

    Args:
        plane: of the gateway.
        asked: the request, under the name that the server knows the model by.
        server: which one.
        pool: through which its tenant is charged.

    Raises:
        RefusedError: the server does not answer, or the tenant is over a limit. Nothing of an answer has left.
    """
    exchange, payload, request, client = asked.exchange, asked.payload, asked.request, asked.client
    refuse_background(request)
    refuse_overriding(_READ_SOMEWHERE, request)
    refuse_adapter(client, request.adapter_field)
    await check_names(plane, client.flow, payload.data)
    most = limit(client, without_default(request), client.max_tokens or _LONGEST_ANSWER)
    if most is None and client.max_tokens is not None and request.limits_twice:
        most = request.max_tokens  # nobody knows which of the fields counts elsewhere
    exchange.max_tokens = most
    edits = Edits(asks_usage(request), None, most)  # no server elsewhere knows our bands
    payload.data = await edited_for(plane, client, payload.data, request, edits)
    size = len(payload.data)
    if client.limited and pool is None:
        raise RefusedError(Outcome.NO_ENDPOINT, "Its tokens could not be charged.")
    identifier = plane.new_request()
    outgoing = Outgoing(
        identifier,
        asked.scope["path"],
        payload,
        prompt_tokens=0,
        strip_usage=asks_usage(request),
        stream_interval=request.stream_interval,
        sequences=request.n,
    )
    noted = _Noted(plane.flights, identifier)
    attempt = Attempt(
        exchange,
        noted,
        plane.flights,
        _OfOthers(plane.upstream),
        server,
        turnstile=plane.turnstile,
        stored=_forgotten,
        may_refuse=False,
    )
    headers = towards_elsewhere(asked.scope, server.api_key, anthropic=exchange.api is Api.MESSAGES)
    if pool is None:
        return await _tried(asked, attempt, outgoing, headers, server)

    def so_far() -> int:
        return size // _BYTES_PER_TOKEN + noted.generated

    async with charged(plane, exchange, pool, size + request.n * _LONGEST_ANSWER, so_far):
        return await _tried(asked, attempt, outgoing, headers, server)


async def _tried(asked: Asked, attempt: Attempt, outgoing: Outgoing, headers: Headers, server: Endpoint) -> Outcome:
    exchange = asked.exchange
    exchange.sent_to(server.id)
    result = await attempt.run(outgoing, headers)
    if isinstance(result, Ended):
        if result.outcome is Outcome.UPSTREAM_TIMEOUT:
            server.watch.failed("it sent nothing for too long")
        return result.outcome
    exchange.unanswered(result.cause)
    raise RefusedError(Outcome.UPSTREAM_ERROR, result.message)


def _forgotten(_response_id: str, _endpoint: EndpointId) -> None:
    """A response that is stored elsewhere cannot be asked for here."""
