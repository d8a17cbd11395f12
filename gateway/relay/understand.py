"""What a generation request asks for, in the core's terms: the relay admits it, `/kvgate/explain` only asks."""

import re
from dataclasses import dataclass, replace

from gateway.admission.events import Arrived, Demand, RequestId
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import LAST_BAND
from gateway.pools import Pool
from gateway.relay.asgi import Scope
from gateway.relay.clients import Client
from gateway.relay.exchange import RefusedError
from gateway.relay.headers import TTFT_HEADERS
from gateway.relay.length import TooLongError, demand, untokenized
from gateway.relay.reading import read
from gateway.tokens.count import CountingOverloadedError, CountUnavailableError, PromptCount, PromptTooLongError
from gateway.tokens.pool import CountingPool
from gateway.wire.request import INLINE_BYTES, Api, GenerationRequest, InvalidRequestError, parse
from gateway.wire.shown import shown

_MILLISECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,6})?")
NO_ENDPOINT = "No endpoint is ready to serve this model."


class UncountedError(RefusedError):
    """The engine has to count the prompt, and none is there to do it."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was understood.

    Attributes:
        ttft_target: seconds; None where the client asks for none.
        key: it is known by this when it comes back.
    """

    request: GenerationRequest
    pool: Pool
    count: PromptCount
    demand: Demand
    client: Client
    ttft_target: float | None
    key: int

    @property
    def band(self) -> int:
        """Its priority band: what its client asks for, never more than its key allows, and none beyond the last."""
        return min(max(self.client.band, self.request.priority), LAST_BAND)

    def arrival(self, identifier: RequestId) -> Arrived:
        """How the core is told of it."""
        request = self.request
        return Arrived(
            identifier,
            self.demand,
            band=self.band,
            flow=self.client.flow,
            body_bytes=len(request.body),
            streamed=request.stream and request.stream_interval == 1,
            tools=request.tools,
            ttft_target=self.ttft_target,
            prefix=self.count.prefix,
            key=self.key,
        )


async def parsed(pool: CountingPool, flow: str, api: Api, body: bytes) -> GenerationRequest:
    """Read a body, off the event loop where it is large.

    Raises:
        RefusedError: it is not a request that a client may make of this API, or too much waits to be read.
    """
    request = await read(pool, flow, _parse, body, api)
    return request if request.body else replace(request, body=body)


def _parse(body: bytes, api: Api) -> GenerationRequest:
    request = parse(api, body)
    return request if len(body) <= INLINE_BYTES else replace(request, body=b"")  # it need not travel back


def ttft_target(scope: Scope) -> float | None:
    """The time to its first token that a client asks for, seconds; None where it does not.

    Raises:
        RefusedError: what it asks for is no time.
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


def foreground(request: GenerationRequest) -> None:
    """Refuse what the engine would answer at once and generate later, unseen by the ledger.

    Raises:
        RefusedError: it asks for that.
    """
    if request.background:
        message = (
            "`background` cannot be used here: its tokens could not be accounted for. Stream the response instead."
        )
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "background")


async def counted(pool: Pool, request: GenerationRequest, flow: str) -> PromptCount:
    """Count its prompts.

    Raises:
        UncountedError: nobody can, now.
        RefusedError: they are wrong or too long, or too many wait to be counted.
    """
    longest = pool.max_model_len
    try:
        return await pool.counter.count(request, flow=flow, max_model_len=longest)
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
        raise UncountedError(Outcome.NO_ENDPOINT, message, retry_after=5.0) from None


def present(pool: Pool) -> None:
    """Refuse a request whose model has left since, and its length with it.

    Raises:
        RefusedError: it has.
    """
    if not pool.endpoints:
        raise RefusedError(Outcome.NO_ENDPOINT, NO_ENDPOINT, retry_after=1.0)


def demanded(pool: Pool, request: GenerationRequest, count: PromptCount) -> Demand:
    """What it asks of the KV cache.

    Raises:
        RefusedError: no endpoint could take it.
    """
    try:
        return demand(request, count, pool.max_model_len, pool.takes)
    except TooLongError as error:
        raise RefusedError(Outcome.CONTEXT_LENGTH_EXCEEDED, error.message, error.param) from None
