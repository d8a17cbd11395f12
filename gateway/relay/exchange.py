"""One request on its way through the gateway, and the single report of its end."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.admission.events import Demand, EndpointId
from gateway.admission.limits.standing import Standing
from gateway.admission.outcomes import Outcome
from gateway.ops.logs import AccessLog
from gateway.ops.metrics import Metrics
from gateway.relay.asgi import Receive, Scope, Send
from gateway.relay.clients import Client
from gateway.relay.headers import rate_limits, request_id
from gateway.relay.response import Response
from gateway.tokens.count import PromptCount
from gateway.wire.errors import REFUSALS, error_answer, stream_error
from gateway.wire.request import Api
from gateway.wire.usage import Usage


class RefusedError(Exception):
    """The request ends with this error; the arguments are those of `Exchange.refuse`."""

    def __init__(
        self, outcome: Outcome, message: str, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.param = param
        self.retry_after = retry_after


_NOBODY = Client("")


@dataclass(slots=True)
class Exchange:
    """One request: its response, and the facts of it. Times are monotonic seconds.

    A fact is None until it is known. Each is set once, but for the endpoint and the time waited.

    Attributes:
        started: when its head had arrived.
        received: when its body was complete.
        client: whose it is.
        stream: whether it asks for a stream.
        model: name of its pool.
        count: the tokens of its prompts.
        demand: its demand on the KV cache.
        max_tokens: the output limit that kvgate set for it.
        endpoint: the last one it was sent to.
        overhead: seconds from `received` until it was first sent to one, without `waited`.
        first_event: when the first event of a streamed answer was ready to leave.
        usage: of its answer, as the endpoint says.
        waited: seconds in the queue, over all attempts, and in the lobby.
        standing: where its tenant stands with its rates.
        queued: whether its time in the queue is reported: of every admitted request, and of one refused after a wait.
    """

    path: str
    api: Api | None
    identifier: bytes
    response: Response
    clock: Callable[[], float]
    started: float
    received: float
    client: Client = _NOBODY
    stream: bool = False
    model: str | None = None
    count: PromptCount | None = None
    demand: Demand | None = None
    max_tokens: int | None = None
    endpoint: EndpointId | None = None
    overhead: float | None = None
    first_event: float | None = None
    usage: Usage | None = None
    waited: float = 0.0
    queued: bool = False
    standing: Standing | None = None

    @property
    def flow(self) -> str:
        """The flow of its client."""
        return self.client.flow

    @classmethod
    def begin(cls, scope: Scope, send: Send, clock: Callable[[], float], api: Api | None) -> "Exchange":
        """The exchange of a request whose head has just arrived."""
        now = clock()
        return cls(scope["path"], api, request_id(scope), Response(scope, send), clock, now, now)

    def waiting(self) -> "_Wait":
        """A block whose time counts as time waited; its value is the time at which it began."""
        return _Wait(self)

    def sent_to(self, endpoint: EndpointId) -> None:
        """Note that it goes to an endpoint now."""
        self.endpoint = endpoint
        if self.overhead is None:
            self.overhead = max(0.0, self.clock() - self.received - self.waited)

    def facts(self) -> list[tuple[bytes, bytes]]:
        """Response headers with its counts, queue time, endpoint and rates; none before its prompt was counted."""
        facts = self._counted()
        if self.standing is not None:
            facts += rate_limits(self.standing)
        if facts:
            facts.append((b"x-kvgate-queue-ms", b"%d" % (self.waited * 1000)))
            if self.endpoint is not None:
                facts.append((b"x-kvgate-endpoint", self.endpoint.encode("ascii", "replace")))
        return facts

    def _counted(self) -> list[tuple[bytes, bytes]]:
        if self.count is None:
            return []
        counted = [
            (b"x-kvgate-prompt-tokens", b"%d" % self.count.tokens),
            (b"x-kvgate-counted", self.count.source.encode()),
        ]
        if self.max_tokens is not None:
            counted.append((b"x-kvgate-max-tokens", b"%d" % self.max_tokens))
        return counted

    async def open(self) -> None:
        """Begin the stream of a request that still waits. Its head leaves out what is not known yet."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *self._counted(),
            (b"x-request-id", self.identifier),
            (b"x-accel-buffering", b"no"),
        ]
        await self.response.open(headers)

    async def refuse(
        self,
        outcome: Outcome,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        close: bool = False,
        unread: Receive | None = None,
    ) -> Outcome:
        """Answer with an error in the shape of the request's API; return how the request ended.

        `close` and `unread`: see `send_answer`.
        """
        answer = error_answer(outcome, message, api=self.api, param=param, retry_after=retry_after)
        if self.response.opened:
            await self.response.begin(answer.status, answer.headers)
            await self.response.end(stream_error(self.api or Api.CHAT, outcome, message))
            return outcome
        reason = (b"x-kvgate-reason", outcome.value.encode())
        extra = ((b"x-request-id", self.identifier), reason, *self.facts())
        await self.response.answer(answer, extra, close=close, unread=unread)
        return outcome


class _Wait:
    """See `Exchange.waiting`."""

    __slots__ = ("_began", "_exchange")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> float:
        self._began = self._exchange.clock()
        return self._began

    def __exit__(self, *_: object) -> None:
        self._exchange.waited += self._exchange.clock() - self._began


class Reporter:
    """Counts and logs each exchange once, when it has ended."""

    def __init__(self, metrics: Metrics, access: AccessLog | None) -> None:
        self._metrics = metrics
        self._access = access

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """Report an exchange's end; call once for each."""
        now = exchange.clock()
        metrics = self._metrics.model(exchange.model)
        metrics.ended(outcome)
        if exchange.overhead is not None:
            self._metrics.overhead.observe(exchange.overhead)
        if exchange.queued:
            self._metrics.queue_wait.observe(exchange.waited)
        ttft = None
        if exchange.first_event is not None:
            ttft = exchange.first_event - exchange.started
            self._metrics.ttft.observe(ttft)
        count, usage = exchange.count, exchange.usage
        prompt_tokens = None if count is None else count.tokens
        if usage is not None:
            prompt_tokens = usage.prompt_tokens
            metrics.used(usage.prompt_tokens, usage.completion_tokens)
            if outcome is Outcome.COMPLETED and (demand := exchange.demand) is not None:
                metrics.answered(*_length(demand, usage))
        if self._access is None:
            return
        status = REFUSALS[outcome].status if outcome is Outcome.CLIENT_CLOSED else exchange.response.status
        self._access(
            request_id=exchange.identifier.decode("ascii"),
            path=exchange.path,
            model=exchange.model,
            flow=exchange.flow,
            status=status,
            outcome=outcome.value,
            endpoint=exchange.endpoint,
            stream=exchange.stream,
            prompt_tokens=prompt_tokens,
            counted=None if count is None else count.source,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            queue_ms=_milliseconds(exchange.waited),
            ttft_ms=None if ttft is None else _milliseconds(ttft),
            overhead_ms=None if exchange.overhead is None else _milliseconds(exchange.overhead),
            duration_ms=_milliseconds(now - exchange.started),
        )


def _length(demand: Demand, usage: Usage) -> tuple[int, int]:
    """Prompt tokens and output tokens of a sequence; of several, the longest prompt and the mean output."""
    prompt = usage.prompt_tokens if len(demand.prompts) == 1 else demand.longest_prompt
    return prompt, -(-usage.completion_tokens // demand.sequences)


def _milliseconds(seconds: float) -> float:
    return int(seconds * 1e5 + 0.5) / 100  # `round` takes seven times as long
