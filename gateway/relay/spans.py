"""The spans of one request: the tables of their attributes, by the semantic conventions of OpenTelemetry.

Of the conventions for generative AI no version is stable yet. These names are of 1.42.0-dev (`open-telemetry/
semantic-conventions-genai`); those under `kvgate.` are our own. No text of a request or an answer is in any.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from gateway.admission.outcomes import Outcome
from gateway.ops.otlp.trace import Kind, Span, SpanKind, Step, Trace, Value
from gateway.relay.exchange import Exchange
from gateway.wire.shown import shown

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"
"""The version of the conventions for generative AI that the names are from. It names the one of the others."""

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
"""`gen_ai.operation.name` by route. Requests of other routes are plain HTTP."""

_FAILURES = frozenset({Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT, Outcome.INTERNAL_ERROR})
_SERVER_ERRORS = 500
_LONGEST_PORT = 5


class Ended(NamedTuple):
    """A request that has ended, as the tables see it."""

    trace: Trace
    exchange: Exchange
    outcome: Outcome

    @property
    def operation(self) -> str | None:
        """What it asks of a model."""
        return OPERATIONS.get(self.trace.route)

    @property
    def name(self) -> str:
        """The name of its spans."""
        if self.operation is None:
            return f"{self.trace.method} {self.trace.route}"
        return self.operation if self.exchange.model is None else f"{self.operation} {self.exchange.model}"

    @property
    def failure(self) -> str | None:
        """How it failed, by kvgate or an endpoint; None if it did not, or its client left or was refused with 4xx."""
        if self.outcome is Outcome.CLIENT_CLOSED:
            return None
        failed = self.outcome in _FAILURES or (self.exchange.response.status or 0) >= _SERVER_ERRORS
        return self.outcome.value if failed else None

    @property
    def engine(self) -> str | None:
        """The kind of the last engine that it was sent to."""
        return next((step.engine for step in reversed(self.trace.steps) if step.kind is Kind.RELAY), None)


class Tried(NamedTuple):
    """A try of a request at an endpoint. `last`: it was sent nowhere else."""

    of: Ended
    step: Step
    last: bool

    @property
    def failure(self) -> str | None:
        """How it failed. An endpoint's 4xx is an error of its client, which kvgate is here."""
        if not self.last:
            return self.step.failed
        refused = self.of.outcome is Outcome.ENDPOINT_REFUSED
        return self.step.failed or (str(self.of.exchange.response.status) if refused else self.of.failure)


Table = Mapping[str, Callable[[Ended], Value | None]]

_COUNTED: Table = {
    "kvgate.counted": lambda ended: None if ended.exchange.count is None else ended.exchange.count.source.value,
    "kvgate.prompt_tokens": lambda ended: None if ended.exchange.count is None else ended.exchange.count.tokens,
}
SERVER: Table = {
    **_COUNTED,
    "gen_ai.operation.name": lambda ended: ended.operation,
    "gen_ai.provider.name": lambda ended: ended.operation and ended.engine,
    "gen_ai.request.max_tokens": lambda ended: (
        None if ended.exchange.demand is None else ended.exchange.demand.max_tokens
    ),
    "gen_ai.request.model": lambda ended: ended.exchange.model,
    "gen_ai.request.stream": lambda ended: ended.exchange.stream or None,
    "gen_ai.response.finish_reasons": lambda ended: ended.exchange.finish_reasons or None,
    "gen_ai.response.model": lambda ended: None if ended.exchange.fallback is None else ended.exchange.fallback.name,
    "gen_ai.response.time_to_first_chunk": lambda ended: _since(ended.exchange.first_event, ended.exchange.started),
    "gen_ai.usage.cache_read.input_tokens": lambda ended: (
        None if ended.exchange.usage is None else ended.exchange.usage.cached_tokens
    ),
    "gen_ai.usage.input_tokens": lambda ended: (
        None if ended.exchange.usage is None else ended.exchange.usage.prompt_tokens
    ),
    "gen_ai.usage.output_tokens": lambda ended: (
        None if ended.exchange.usage is None else ended.exchange.usage.completion_tokens
    ),
    "error.type": lambda ended: ended.failure,
    "http.request.method": lambda ended: ended.trace.method,
    "http.response.status_code": lambda ended: ended.exchange.response.status,
    "http.route": lambda ended: ended.trace.route,
    "server.address": lambda ended: _address(shown(ended.trace.host))[0] or None,
    "server.port": lambda ended: _address(shown(ended.trace.host))[1],
    "url.path": lambda ended: shown(ended.exchange.path),
    "url.scheme": lambda ended: ended.trace.scheme,
    "kvgate.endpoint": lambda ended: ended.exchange.endpoint,
    "kvgate.failures": lambda ended: ended.exchange.failures or None,
    "kvgate.fallback.reason": lambda ended: (
        None if ended.exchange.fallback is None else ended.exchange.fallback.reason.value
    ),
    "kvgate.flow": lambda ended: ended.exchange.flow,
    "kvgate.outcome": lambda ended: ended.outcome.value,
    "kvgate.overhead_seconds": lambda ended: ended.exchange.overhead,
    "kvgate.position": lambda ended: ended.trace.position,
    "kvgate.request_id": lambda ended: ended.exchange.identifier.decode("ascii"),
    "kvgate.rule": lambda ended: ended.trace.rule,
    "kvgate.sequences": lambda ended: None if ended.exchange.demand is None else ended.exchange.demand.sequences,
    "kvgate.waited_seconds": lambda ended: ended.exchange.waited,
}
"""The span of the whole request. An attribute without a value is left out, here as below."""

CLIENT: Mapping[str, Callable[[Tried], Value | None]] = {
    "gen_ai.operation.name": lambda tried: tried.of.operation,
    "gen_ai.provider.name": lambda tried: tried.of.operation and tried.step.engine,
    "gen_ai.request.model": lambda tried: tried.of.exchange.model,
    "gen_ai.response.time_to_first_chunk": lambda tried: (
        _since(tried.of.exchange.first_event, tried.step.began) if tried.last else None
    ),
    "error.type": lambda tried: tried.failure,
    "http.request.method": lambda tried: tried.of.trace.method,
    "server.address": lambda tried: _address(tried.step.endpoint)[0],
    "server.port": lambda tried: _address(tried.step.endpoint)[1],
}
"""The span of a try at an endpoint. The engine's own span hangs below it."""


def spans(trace: Trace, exchange: Exchange, outcome: Outcome, now: float, since: int) -> Iterator[Span]:
    """The spans of a request that has ended.

    Args:
        trace: of it.
        exchange: its facts.
        outcome: how it ended.
        now: when, in monotonic seconds.
        since: nanoseconds from 1970 to the zero of the monotonic clock.
    """
    ended = Ended(trace, exchange, outcome)

    def at(seconds: float) -> int:
        return since + int(seconds * 1e9)

    def span(name: str, kind: SpanKind, step: Step, facts: Mapping[str, Value]) -> Span:
        context = trace.context._replace(span_id=step.span_id)
        over = now if step.ended is None else step.ended
        return Span(name, kind, context, trace.context, at(step.began), at(over), facts, error="error.type" in facts)

    facts = _facts(SERVER, ended)
    yield Span(
        ended.name,
        SpanKind.SERVER,
        trace.context,
        trace.parent,
        at(exchange.started),
        at(now),
        facts,
        error="error.type" in facts,
    )
    tries = [step for step in trace.steps if step.kind is Kind.RELAY]
    for step in trace.steps:
        match step.kind:
            case Kind.RELAY:
                facts = _facts(CLIENT, Tried(ended, step, last=step is tries[-1]))
                yield span(ended.name, SpanKind.CLIENT, step, facts)
            case Kind.COUNT:
                yield span(step.kind.value, SpanKind.INTERNAL, step, _facts(_COUNTED, ended))
            case Kind.QUEUE:
                yield span(step.kind.value, SpanKind.INTERNAL, step, {})


_Of = TypeVar("_Of")


def _facts(table: Mapping[str, Callable[[_Of], Value | None]], of: _Of) -> dict[str, Value]:
    return {name: value for name, fact in table.items() if (value := fact(of)) is not None}


def _since(then: float | None, began: float) -> float | None:
    return None if then is None else then - began


def _address(place: str | None) -> tuple[str | None, int | None]:
    """Host and port of a `Host` header or an endpoint's id; of a unix socket, its path."""
    host, _, port = (place or "").rpartition(":")
    known = host and port.isdecimal() and len(port) <= _LONGEST_PORT
    return (host.strip("[]"), int(port)) if known else (place, None)
