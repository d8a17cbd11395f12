"""One request on its way through the gateway, and the single report of its end."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission.events import Demand
from gateway.admission.outcomes import Outcome
from gateway.ops.logs import AccessLog
from gateway.ops.metrics import Metrics
from gateway.relay.asgi import Body, Receive, Scope, Send, send_answer
from gateway.relay.headers import request_id
from gateway.tokens.count import Source
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


@dataclass(slots=True)
class Exchange:
    """The facts of a request as they become known. Times are monotonic seconds.

    Attributes:
        started: when its head had arrived.
        received: when its body was complete.
        waited: seconds in the queue, over all attempts, and in the lobby.
        overhead: seconds from `received` until it first went to an endpoint, without `waited`.
        demand: its demand on the KV cache; None before it was counted.
        queued: whether it waited for admission and that wait has ended.
        first_event: when the first event of a streamed answer was ready to leave.
        opened: whether a head with status 200 left while it waited. A refusal then goes into the stream.
        committed: whether an answer has begun. From then on no other endpoint can be tried.
        evacuated: whether it was taken off an endpoint before an answer.
    """

    path: str
    send: Send
    body: Body
    clock: Callable[[], float]
    identifier: bytes
    started: float
    received: float
    api: Api | None = None
    flow: str = ""
    model: str | None = None
    stream: bool = False
    endpoint: str | None = None
    prompt_tokens: int | None = None
    counted: Source | None = None
    demand: Demand | None = None
    usage: Usage | None = None
    waited: float = 0.0
    queued: bool = False
    overhead: float | None = None
    first_event: float | None = None
    status: int | None = None
    opened: bool = False
    committed: bool = False
    evacuated: bool = False
    ended: bool = field(default=False, repr=False)

    @classmethod
    def begin(cls, scope: Scope, send: Send, clock: Callable[[], float], api: Api | None) -> "Exchange":
        """The exchange of a request whose head has just arrived."""
        now = clock()
        return cls(scope["path"], send, Body(scope, send), clock, request_id(scope), now, now, api)

    def sent(self) -> None:
        """Note that it goes to an endpoint now."""
        if self.overhead is None:
            self.overhead = max(0.0, self.clock() - self.received - self.waited)

    def facts(self) -> list[tuple[bytes, bytes]]:
        """Response headers with its token counts, queue time and endpoint; none before its prompt was counted."""
        if self.prompt_tokens is None:
            return []
        facts = [
            *self._count(),
            (b"x-kvgate-queue-ms", b"%d" % (self.waited * 1000)),
        ]
        if self.endpoint is not None:
            facts.append((b"x-kvgate-endpoint", self.endpoint.encode("ascii", "replace")))
        return facts

    def _count(self) -> list[tuple[bytes, bytes]]:
        if self.prompt_tokens is None or self.counted is None:
            return []
        tokens = (b"x-kvgate-prompt-tokens", b"%d" % self.prompt_tokens)
        return [tokens, (b"x-kvgate-counted", self.counted.value.encode())]

    async def open(self) -> None:
        """Begin the stream of a request that still waits. Its head leaves out what is not known yet."""
        if self.opened:
            return
        self.status = 200
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *self._count(),
            (b"x-request-id", self.identifier),
            (b"x-accel-buffering", b"no"),
        ]
        await self.send({"type": "http.response.start", "status": self.status, "headers": headers})
        self.opened = True

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
        if self.opened:
            self.committed = True
            event = stream_error(self.api or Api.CHAT, outcome, message)
            await self.send({"type": "http.response.body", "body": event, "more_body": False})
            return outcome
        answer = error_answer(outcome, message, api=self.api, param=param, retry_after=retry_after)
        self.status = answer.status
        self.committed = True
        reason = (b"x-kvgate-reason", outcome.value.encode())
        extra = ((b"x-request-id", self.identifier), reason, *self.facts())
        await send_answer(self.send, answer, extra, close=close, unread=unread)
        return outcome


class Reporter:
    """Counts and logs each exchange once, when it has ended."""

    def __init__(self, metrics: Metrics, access: AccessLog | None) -> None:
        self._metrics = metrics
        self._access = access

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """Report an exchange's end. A second report is ignored."""
        if exchange.ended:
            return
        exchange.ended = True
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
        usage = exchange.usage
        if usage is not None:
            metrics.used(usage.prompt_tokens, usage.completion_tokens)
            if outcome is Outcome.COMPLETED and (demand := exchange.demand) is not None:
                metrics.answered(*_length(demand, usage))
        if self._access is None:
            return
        status = REFUSALS[outcome].status if outcome is Outcome.CLIENT_CLOSED else exchange.status
        self._access(
            request_id=exchange.identifier.decode("ascii"),
            path=exchange.path,
            model=exchange.model,
            flow=exchange.flow,
            status=status,
            outcome=outcome.value,
            endpoint=exchange.endpoint,
            stream=exchange.stream,
            prompt_tokens=usage.prompt_tokens if usage is not None else exchange.prompt_tokens,
            counted=exchange.counted,
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
    return round(seconds * 1000, 2)
