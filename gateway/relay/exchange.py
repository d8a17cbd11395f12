"""One request on its way through the gateway, and the single report of its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import NamedTuple

from gateway.admission.events import Back, Demand, EndpointId, RequestId
from gateway.admission.limits.limit import Standing
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.request import service
from gateway.ops.logs import AccessLog
from gateway.ops.metrics import Metrics
from gateway.ops.otlp.trace import Kind, Trace
from gateway.ops.pictures.digest import Digests
from gateway.relay.client_identity import Client
from gateway.relay.headers import FALLBACK_HEADER, rate_limits, request_id, sampled_trace
from gateway.relay.response import Response
from gateway.server.asgi import Receive, Scope, Send
from gateway.tokens.count import PromptCount
from gateway.wire.errors import REFUSALS, error_answer, reasons, stream_error
from gateway.wire.request import Api
from gateway.wire.shown import shown
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

    def afresh(self) -> "RefusedError":
        """The same without its traceback, whose frames keep the body in memory.

        A client may take long to read the refusal.
        """
        return RefusedError(self.outcome, self.message, self.param, self.retry_after)


class Fallback(NamedTuple):
    """What answers in the place of the model that was asked for."""

    name: str
    pool: str | None
    """The name of its pool; None for a server elsewhere."""
    reason: Outcome
    """Why the requested model refused it, or would have."""


_NOBODY = Client("")


@dataclass(slots=True)
class Exchange:
    """One request: its response, and the facts of it. Times are monotonic seconds.

    A fact is None until it is known, and is set once. Exceptions: `endpoint`, `engaged`, `failures`, `lacking` and
    `waited` change with each attempt, and a fallback to another model sets the facts of an attempt anew.

    Attributes:
        started: when its head had arrived.
        received: when its body was complete.
        client: whose it is.
        stream: whether it asks for a stream.
        model: name of the pool of the model that it asks for.
        request: its id at the core.
        fallback: what answers instead of `model`.
        count: the tokens of its prompts.
        demand: its demand on the KV cache.
        max_tokens: the output limit that kvgate set for it.
        endpoint: the last one it was sent to.
        engaged: whether that one is at work on it, or has answered it.
        failures: number of endpoints here that failed on it.
        lacking: endpoints that answered that they have no such model or route, while another may have it.
        overhead: seconds from `received` to its first dispatch to an endpoint, less `waited`.
        first_event: when the first event of a streamed answer was ready to leave.
        usage: of its answer, as the endpoint says.
        finish_reasons: of its answer, as the endpoint says.
        waited: seconds, over all attempts, in the queue or for an engine that can count it.
        standing: where its tenant stands with its rates.
        reports_wait: whether its queue time is reported: of every admitted request, and of one refused after a wait.
        trace: id of its trace, kept by its client or by kvgate.
        recorded: what it notes for its spans; None if they are not recorded.
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
    request: RequestId | None = None
    fallback: Fallback | None = None
    count: PromptCount | None = None
    demand: Demand | None = None
    max_tokens: int | None = None
    endpoint: EndpointId | None = None
    engaged: bool = False
    failures: int = 0
    lacking: frozenset[EndpointId] = frozenset()
    overhead: float | None = None
    first_event: float | None = None
    usage: Usage | None = None
    finish_reasons: tuple[str, ...] = ()
    waited: float = 0.0
    reports_wait: bool = False
    standing: Standing | None = None
    trace: str | None = None
    recorded: Trace | None = None

    @property
    def flow(self) -> str:
        """The flow of its client."""
        return self.client.flow

    @classmethod
    def begin(cls, scope: Scope, send: Send, clock: Callable[[], float], api: Api | None) -> "Exchange":
        """The exchange of a request whose head has just arrived."""
        now, response = clock(), Response(scope, send)
        return cls(scope["path"], api, request_id(scope), response, clock, now, now, trace=sampled_trace(scope))

    def waiting(self) -> "_Wait":
        """A block whose time counts as time waited; its value is the time at which it began."""
        return _Wait(self)

    def counting_ended(self, since: float) -> None:
        """Note that the counting of its prompt, begun at this time, has ended."""
        if self.recorded is not None:
            self.recorded.did(Kind.COUNT, since, self.clock())

    def note_rule(self, rule: str | None, position: int | None = None) -> None:
        """Note what holds it back or refused it, and its position in the queue. The first of each stays."""
        if self.recorded is not None:
            self.recorded.note_rule(rule, position)

    def sent_to(self, endpoint: EndpointId, engine: str | None = None) -> Sequence[tuple[bytes, bytes]]:
        """Note that it goes to an endpoint now; returns the headers that tell its place in the trace.

        `engine`: the kind of engine there.
        """
        self.endpoint, self.engaged = endpoint, True
        if self.overhead is None:
            self.overhead = max(0.0, self.clock() - self.received - self.waited)
        return () if self.recorded is None else self.recorded.sent(endpoint, engine, self.clock())

    def unanswered(self, why: Back) -> None:
        """Note that the endpoint it went to did not answer it."""
        self.engaged = False
        if why is Back.LACKING and self.endpoint is not None:
            self.lacking |= {self.endpoint}
        if self.recorded is not None:
            self.recorded.unanswered(why.name.lower(), self.clock())

    def facts(self) -> list[tuple[bytes, bytes]]:
        """Response headers with its counts, queue time, endpoint and rates; none before its prompt was counted."""
        facts = self._count_headers()
        if self.fallback is not None:
            facts.append((FALLBACK_HEADER, self.fallback.name.encode("ascii", "replace")))
        if self.standing is not None:
            facts += rate_limits(self.standing)
        if facts:
            facts.append((b"x-kvgate-queue-ms", b"%d" % (self.waited * 1000)))
            if self.endpoint is not None:
                facts.append((b"x-kvgate-endpoint", self.endpoint.encode("ascii", "replace")))
        return facts

    def _count_headers(self) -> list[tuple[bytes, bytes]]:
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
            *self._count_headers(),
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
        if self.response.head_sent:
            await self.response.begin(answer.status, answer.headers)
            await self.response.end(stream_error(self.api or Api.CHAT, outcome, message))
            return outcome
        extra = ((b"x-request-id", self.identifier), *reasons(outcome), *self.facts())
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
        exchange, now = self._exchange, self._exchange.clock()
        exchange.waited += now - self._began
        if exchange.recorded is not None:
            exchange.recorded.did(Kind.QUEUE, self._began, now)


class Reporter:
    """Counts and logs each exchange once, when it has ended.

    `export` is told of those whose spans are recorded.
    """

    def __init__(
        self,
        metrics: Metrics,
        access: AccessLog | None,
        digests: Digests | None = None,
        export: Callable[[Trace, Exchange, Outcome, float], None] = lambda *_: None,
    ) -> None:
        self._metrics = metrics
        self._access = access
        self._digests = digests
        self._export = export

    def ended(self, exchange: Exchange, outcome: Outcome) -> None:
        """Report an exchange's end; call once for each."""
        now = exchange.clock()
        fallback = exchange.fallback
        metrics = self._metrics.model(exchange.model)
        metrics.ended(outcome)
        if (tenant := self._metrics.tenant(exchange.flow)) is not None:
            tenant.ended(outcome)
        if fallback is not None:
            metrics.fell_back(fallback.name, fallback.reason, outcome)
        ttft = None if exchange.first_event is None else exchange.first_event - exchange.started
        self._time(exchange, ttft)
        if exchange.recorded is not None:
            self._export(exchange.recorded, exchange, outcome, now)
        prompt_tokens = self._tally_tokens(exchange, outcome)
        if self._digests is not None and exchange.api is not None:
            _digest(self._digests, exchange, outcome, prompt_tokens, now)
        if self._access is not None:
            self._note(self._access, exchange, outcome, prompt_tokens, ttft)

    def _tally_tokens(self, exchange: Exchange, outcome: Outcome) -> int | None:
        """Add its tokens to the metrics; returns those of its prompt."""
        usage, fallback = exchange.usage, exchange.fallback
        if usage is None:
            return None if exchange.count is None else exchange.count.tokens
        if fallback is None or fallback.pool is not None:  # else a server elsewhere answered
            answering = self._metrics.model(exchange.model if fallback is None else fallback.pool)
            answering.used(usage.prompt_tokens, usage.completion_tokens)
            if (tenant := self._metrics.tenant(exchange.flow)) is not None:
                tenant.used(usage.prompt_tokens, usage.completion_tokens)
            if outcome is Outcome.COMPLETED and (demand := exchange.demand) is not None:
                answering.answered(*_length(demand, usage))
        return usage.prompt_tokens

    @staticmethod
    def _note(
        access: AccessLog, exchange: Exchange, outcome: Outcome, prompt_tokens: int | None, ttft: float | None
    ) -> None:
        count, usage, fallback = exchange.count, exchange.usage, exchange.fallback
        status = REFUSALS[outcome].status if outcome is Outcome.CLIENT_CLOSED else exchange.response.status
        access(
            request_id=exchange.identifier.decode("ascii"),
            path=exchange.path,
            model=exchange.model,
            flow=exchange.flow,
            status=status,
            outcome=outcome.value,
            endpoint=exchange.endpoint,
            fallback=None if fallback is None else fallback.name,
            stream=exchange.stream,
            prompt_tokens=prompt_tokens,
            counted=None if count is None else count.source,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            queue_ms=_milliseconds(exchange.waited),
            ttft_ms=None if ttft is None else _milliseconds(ttft),
            overhead_ms=None if exchange.overhead is None else _milliseconds(exchange.overhead),
            duration_ms=_milliseconds(exchange.clock() - exchange.started),
        )

    def _time(self, exchange: Exchange, ttft: float | None) -> None:
        metrics, trace = self._metrics, exchange.trace
        waited = exchange.waited if exchange.reports_wait else None
        at = 0.0 if trace is None else time()
        for tally, seconds in (
            (metrics.overhead, exchange.overhead),
            (metrics.queue_wait, waited),
            (metrics.ttft, ttft),
        ):
            if seconds is not None:
                tally.observe(seconds)
                if trace is not None:
                    tally.exemplify(seconds, trace, at)


def _digest(digests: Digests, exchange: Exchange, outcome: Outcome, prompt: int | None, now: float) -> None:
    ttft = None if exchange.first_event is None else exchange.first_event - exchange.started
    usage, demand = exchange.usage, exchange.demand
    generated, gap = None if usage is None else usage.completion_tokens, None
    if ttft is not None and generated and demand is not None and outcome is Outcome.COMPLETED:
        gaps = generated / demand.sequences - 1
        gap = (now - exchange.started - ttft) / gaps if gaps >= 1 else None
    digests.ended(
        number=exchange.request,
        request_id=exchange.identifier.decode("ascii"),
        model="" if exchange.model is None else exchange.model,
        flow=shown(exchange.flow),
        outcome=outcome,
        endpoint=exchange.endpoint,
        prompt=prompt,
        generated=generated,
        service=0.0 if usage is None else service(usage.prompt_tokens, usage.completion_tokens),
        began=exchange.started,
        waited=exchange.waited,
        first=ttft,
        gap=gap,
        now=now,
    )


def _length(demand: Demand, usage: Usage) -> tuple[int, int]:
    """Prompt tokens and output tokens of a sequence; of several, the longest prompt and the mean output."""
    prompt = usage.prompt_tokens if len(demand.prompts) == 1 else demand.longest_prompt
    return prompt, -(-usage.completion_tokens // demand.sequences)


def _milliseconds(seconds: float) -> float:
    return int(seconds * 1e5 + 0.5) / 100  # `round` takes seven times as long
