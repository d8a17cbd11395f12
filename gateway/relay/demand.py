"""The translation of a generation request into the core's terms, for the relay and for `/kvgate/explain`."""

import re
from collections.abc import Container

import msgspec
from msgspec import structs

from gateway.admission.events import Arrived, Demand, EndpointId, RequestId
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import LAST_BAND
from gateway.pools.directory import Pool
from gateway.relay.body_parsing import read
from gateway.relay.client_identity import Client
from gateway.relay.context_length import TooLongError, demand, limited, untokenized
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.headers import TTFT_HEADERS
from gateway.relay.payload import Payload
from gateway.server.asgi import Scope
from gateway.tokens.count import (
    CountingOverloadedError,
    CountUnavailableError,
    EngineUnreachedError,
    PromptCount,
    PromptTooLongError,
)
from gateway.tokens.pool import CountingPool
from gateway.wire.request import INLINE_BYTES, MAX_SEQUENCES, Api, GenerationRequest, InvalidRequestError, parse
from gateway.wire.shown import shown

_MILLISECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,6})?")
NO_ENDPOINT = "No endpoint is ready to serve this model."


class UncountedError(RefusedError):
    """The engine must count the prompt, and no engine is up to do it."""


class UnreachedError(UncountedError):
    """Likewise: one seemed up, and took no connection."""


class Asked(msgspec.Struct, frozen=True):
    """A request that was read, before a model is found for it.

    Attributes:
        payload: has its body, which `request` has not.
        ttft_target: seconds; None if the client asks for none.
    """

    scope: Scope
    exchange: Exchange
    client: Client
    payload: Payload
    request: GenerationRequest
    ttft_target: float | None


class Work(msgspec.Struct, frozen=True):
    """A request in the core's terms.

    Attributes:
        body_bytes: size of its body, which may be in the request no more.
        ttft_target: seconds; None if the client asks for none.
        max_tokens: the output limit that kvgate sets for it; None where it has its own, or needs none.
        fingerprint: by which it is recognised when it comes back.
        holder: the endpoint that has the stored response with which it goes on, if that is known.
    """

    request: GenerationRequest
    body_bytes: int
    pool: Pool
    count: PromptCount
    demand: Demand
    client: Client
    ttft_target: float | None
    fingerprint: int
    max_tokens: int | None = None
    holder: EndpointId | None = None

    @property
    def band(self) -> int:
        """Its priority band: as its client asks, but no more urgent than its key allows, and at most the last."""
        return min(max(self.client.band, self.request.priority), LAST_BAND)

    @property
    def flow(self) -> str:
        """Its flow in the queue: the adapter that it asks for where adapters are flows, else its client's."""
        adapter = None if self.client.keyed else self.pool.flow_of(self.request.model)
        return self.client.flow if adapter is None else adapter

    def arrival(self, identifier: RequestId, failures: int = 0) -> Arrived:
        """The event that tells the core of it. `failures`: endpoints of another model that failed on it."""
        request = self.request
        return Arrived(
            identifier,
            self.demand,
            band=self.band,
            flow=self.flow,
            body_bytes=self.body_bytes,
            streamed=request.stream and request.stream_interval == 1,
            tools=request.tools,
            ttft_target=self.ttft_target,
            prefix=self.count.prefix,
            key=self.fingerprint,
            failures=failures,
            holder=self.holder,
            estimated=not self.count.source.exact,
        )


async def parsed(pool: CountingPool, flow: str, api: Api, body: bytes) -> GenerationRequest:
    """Read a body, off the event loop if it is large.

    Raises:
        RefusedError: this API does not take such a request, or too many bodies wait to be read.
    """
    request = await read(pool, flow, _parse, body, api)
    return request if request.body else structs.replace(request, body=body)


def _parse(body: bytes, api: Api) -> GenerationRequest:
    request = parse(api, body)
    return request if len(body) <= INLINE_BYTES else structs.replace(request, body=b"")  # it need not travel back


def ttft_target(scope: Scope) -> float | None:
    """The time to first token that a client asks for, in seconds; None if it does not ask.

    Raises:
        RefusedError: the value is not a time.
    """
    given = {name: value for name, value in scope["headers"] if name in TTFT_HEADERS}
    for name in TTFT_HEADERS:
        value = given.get(name)
        if value is None:
            continue
        milliseconds = float(value) if _MILLISECONDS.fullmatch(value) else 0.0
        if milliseconds <= 0:
            written = shown(value.decode("latin-1"))
            message = f"The header `{name.decode()}` must be a number of milliseconds above 0, got {written!r}."
            raise RefusedError(Outcome.INVALID_REQUEST, message, name.decode())
        return milliseconds / 1000
    return None


def refuse_background(request: GenerationRequest) -> None:
    """Refuse a background request: the engine would answer at once and generate later, unseen by the ledger.

    Raises:
        RefusedError: it asks for background generation.
    """
    if request.background:
        message = (
            "`background` cannot be used here: its tokens could not be accounted for. Stream the response instead."
        )
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "background")


def refuse_adapter(client: Client, name: str | None) -> None:
    """Refuse an adapter that `model` does not name to a client that may use only some models: it would be none of them.

    `name`: of the field in which the client asks for one.

    Raises:
        RefusedError: it asks for one.
    """
    if name is not None and client.models is not None:
        message = f"`{name}` cannot be used with this key: it may use only some models. Name one of them in `model`."
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, name)


def refuse_overriding(fields: Container[str], request: GenerationRequest) -> None:
    """Refuse a request whose engine would read another limit, or another number of answers, than was accounted for.

    `fields`: in which it reads them.

    Raises:
        RefusedError: it sets such a field.
    """
    if name := next((name for name in request.overriding if name in fields), None):
        message = (
            f"`{name}` cannot be used here: the engine would read it in place of `{request.max_tokens_field}` and `n`, "
            "by which the request is accounted for. Set those."
        )
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, name)


async def counted(pool: Pool, request: GenerationRequest, flow: str) -> PromptCount:
    """Count its prompts.

    Raises:
        UncountedError: no engine is up to count them.
        RefusedError: they are invalid or too long, or too many requests wait to be counted.
    """
    longest = pool.max_model_len
    try:
        count = await pool.counter.count(request, flow=flow, max_model_len=longest)
    except PromptTooLongError as error:
        refusal = untokenized(error.at_least, longest, request.api)
        raise RefusedError(Outcome.CONTEXT_LENGTH_EXCEEDED, refusal.message, refusal.param) from None
    except InvalidRequestError as error:
        raise RefusedError(Outcome.INVALID_REQUEST, error.message, error.param) from None
    except CountingOverloadedError:
        message = "Too many prompts wait to be counted. Please retry."
        raise RefusedError(Outcome.QUEUE_FULL, message, retry_after=1.0) from None
    except CountUnavailableError as error:
        message = f"The prompt could not be counted: {error}."
        kind = UnreachedError if isinstance(error, EngineUnreachedError) else UncountedError
        raise kind(Outcome.NO_ENDPOINT, message, retry_after=5.0) from None
    sequences = len(count.prompts) * request.n
    if sequences > MAX_SEQUENCES:
        message = f"`n` of each of {len(count.prompts)} prompts are {sequences} sequences; at most {MAX_SEQUENCES}."
        raise RefusedError(Outcome.INVALID_REQUEST, message, "n")
    return count


def require_endpoints(pool: Pool) -> None:
    """Refuse a request whose model is no longer served, so that its length is unknown.

    Raises:
        RefusedError: the model is no longer served.
    """
    if not pool.endpoints:
        raise RefusedError(Outcome.NO_ENDPOINT, NO_ENDPOINT, retry_after=1.0)


def room(pool: Pool, demand: Demand, count: PromptCount) -> int:
    """The output tokens that the length of any endpoint surely leaves each sequence, or all, where it finds them out.

    An estimate may be far above the prompt, and would cut the answer short.
    """
    clamps = pool.takes(pool.max_model_len, 1)
    unknown = not count.source.exact and clamps
    shortest = pool.shortest_for(demand.longest_prompt)
    return shortest if unknown else shortest - demand.longest_prompt


def bounded(
    pool: Pool, client: Client, request: GenerationRequest, count: PromptCount, asked: Demand
) -> tuple[Demand, int | None]:
    """Its demand within the output limits of its tenant and its model, and the limit that kvgate sets, if any.

    Raises:
        RefusedError: it asks for more than its tenant may.
    """
    request = _as_read(pool, request)
    has_none = request.max_tokens is None or request.by_default
    default = pool.default_max_tokens(asked.longest_prompt) if has_none else None
    unread = request.max_tokens if request.max_tokens_field in pool.ignored else None
    if default is None and client.max_tokens is None:
        return asked, unread
    left = room(pool, asked, count)
    most = limit(client, request, left)
    if default is not None:
        most = min(default, left if most is None else most)
        return limited(asked, most, pool), most
    if most is None:
        return asked, unread
    return limited(asked, most, pool), most


def limit(client: Client, request: GenerationRequest, room: int) -> int | None:
    """The output limit that kvgate sets for a request, by its tenant's; None if it has one of its own, or needs none.

    `room`: older engines refuse more than there is.

    Raises:
        RefusedError: its own is over its tenant's.
    """
    most, asked = client.max_tokens, request.max_tokens
    if most is None:
        return None
    if asked is None:
        return min(most, room)
    if asked > most:
        if request.by_default:
            return min(most, room)
        field = request.max_tokens_field
        message = f"Your limit is {most} output tokens, and you asked for {shown(asked)}: lower `{field}`."
        raise RefusedError(Outcome.INVALID_REQUEST, message, field)
    return None


def without_default(request: GenerationRequest) -> GenerationRequest:
    """The request as an engine reads it that ends no completion by itself: without the limit that its API has."""
    return structs.replace(request, max_tokens=None, by_default=False) if request.by_default else request


def _as_read(pool: Pool, request: GenerationRequest) -> GenerationRequest:
    return request if pool.ends_completions else without_default(request)


def demanded(pool: Pool, request: GenerationRequest, count: PromptCount) -> Demand:
    """The request's demand on the KV cache.

    Raises:
        RefusedError: no endpoint could take it.
    """
    try:
        return demand(_as_read(pool, request), count, pool)
    except TooLongError as error:
        raise RefusedError(Outcome.CONTEXT_LENGTH_EXCEEDED, error.message, error.param) from None
