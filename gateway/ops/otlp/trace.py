"""PURE. The trace of one request: its place in its client's trace (W3C Trace Context), and the steps of its way.

Ids are drawn by the caller.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})
Value = str | bool | int | float | tuple[str, ...]
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_LONGEST_STATE = 1024
"""Bytes of `tracestate`; a longer one is left out. The recommendation asks for 512, and to parse 64 KiB takes 17 ms of
the interpreter, for each span."""
_LOW = 2**64


class Context(NamedTuple):
    """The place of a span: its trace, its id, whether it is recorded, and what others have noted (`tracestate`)."""

    trace_id: int
    span_id: int
    sampled: bool
    state: bytes = b""

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers in which a request tells the span that it comes from."""
        parent = b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, self.sampled)
        told = [(b"traceparent", parent)]
        if self.state:
            told.append((b"tracestate", self.state))
        return told


def told(traceparent: bytes | None, tracestate: bytes = b"") -> Context | None:
    """The span that a request comes from, by its headers; None if they name none that is valid."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id or (more and version == b"00"):
        return None
    state = tracestate if len(tracestate) <= _LONGEST_STATE else b""
    return Context(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state)


class Sampler(NamedTuple):
    """The choice of requests whose spans are recorded. `Sampler.named` has those of the OpenTelemetry specification.

    Attributes:
        share: of the traces that begin here, 0 to 1.
        follows: whether a trace that began elsewhere is recorded if it was there.
    """

    share: float = 1.0
    follows: bool = True

    @classmethod
    def named(cls, name: str, share: float = 1.0) -> "Sampler | None":
        """The sampler of this name, as `OTEL_TRACES_SAMPLER` has it; None if there is none."""
        root = name.removeprefix("parentbased_")
        shares = {"always_on": 1.0, "always_off": 0.0, "traceidratio": share}
        return cls(shares[root], root != name) if root in shares else None

    def samples(self, trace_id: int, parent: Context | None) -> bool:
        """Whether a request of this trace is recorded: by its lower half, so that all that see it agree."""
        if parent is not None and self.follows:
            return parent.sampled
        return trace_id % _LOW < round(self.share * _LOW)


class Kind(StrEnum):
    """A step of a request's way; the values are names of spans."""

    COUNT = "kvgate.count"
    QUEUE = "kvgate.queue"
    RELAY = "kvgate.relay"


@dataclass(slots=True)
class Step:
    """A step. Times are monotonic seconds.

    Attributes:
        span_id: of its span.
        ended: None while it goes on.
        endpoint: the one that it was sent to.
        engine: the kind of engine there.
        failed: why the endpoint did not answer.
    """

    kind: Kind
    span_id: int
    began: float
    ended: float | None = None
    endpoint: str | None = None
    engine: str | None = None
    failed: str | None = None


@dataclass(slots=True)
class Trace:
    """What a request whose spans are recorded notes for them.

    Attributes:
        context: of the span of the whole request.
        parent: the span that it comes from.
        method: of HTTP.
        scheme: of its URL.
        host: that it was sent to, with the port, as its client says; empty where it does not.
        route: the path as the route table has it.
        draw: draws the id of a span.
        rule: what first held it back, or refused it.
        position: its position in the queue when it began to wait; 1 was the next to go.
    """

    context: Context
    parent: Context | None
    method: str
    scheme: str
    host: str
    route: str
    draw: Callable[[], int]
    steps: list[Step] = field(default_factory=list)
    rule: str | None = None
    position: int | None = None

    def did(self, kind: Kind, began: float, ended: float) -> None:
        """Note a step that has ended."""
        self.steps.append(Step(kind, self.draw(), began, ended))

    def sent(self, endpoint: str, engine: str | None, now: float) -> list[tuple[bytes, bytes]]:
        """Note that it goes to an endpoint; returns the headers that the endpoint gets."""
        span_id = self.draw()
        self.steps.append(Step(Kind.RELAY, span_id, now, endpoint=endpoint, engine=engine))
        return self.context._replace(span_id=span_id).headers()

    def note_rule(self, rule: str | None, position: int | None) -> None:
        """Note what holds it back, and its position in the queue, unless that is noted already."""
        self.rule, self.position = self.rule or rule, self.position or position

    def unanswered(self, why: str, now: float) -> None:
        """Note that the endpoint that it went to last did not answer."""
        if self.steps and (step := self.steps[-1]).kind is Kind.RELAY:
            step.ended, step.failed = now, why


class SpanKind(StrEnum):
    """The kinds of spans, in OpenTelemetry's words."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"


class Span(NamedTuple):
    """A span that has ended. Times are nanoseconds since 1970. `error`: it failed."""

    name: str
    kind: SpanKind
    context: Context
    parent: Context | None
    began: int
    ended: int
    attributes: Mapping[str, Value]
    error: bool
