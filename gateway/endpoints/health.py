"""PURE. Whether an endpoint takes traffic: a state machine fed by probes, by what requests report, and by the operator.

`TRANSITIONS` is the whole behaviour. What an event means in the state it finds (a third missed probe, a rest that is
over) is decided first and named as a `Signal`; the table then says where that leads.

A hung engine answers `/health` with 200 and keeps its gauges as they were, so nothing but work shows that it is back.
kvgate sends no generation of its own. Any progress of the requests still on it brings it back at once. Where they have
all been closed, it gets a rest and then a trial: one sequence at a time until the first progress. Each further break
within `FORGET_BREAKS` doubles the rest.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

REST = 5.0
"""Seconds an engine is left alone after it hung or aborted requests; doubled by each further break."""
MAX_REST = 60.0
FORGET_BREAKS = 300.0
"""A break this many seconds after the last is a first one again."""


class State(StrEnum):
    """Where an endpoint stands. Only `UP` and `TRIAL` take traffic."""

    STARTING = "starting"
    """Not yet found healthy: it is new, or was undrained just now."""
    UP = "up"
    TRIAL = "trial"
    """It hung before: one sequence at a time until there is progress."""
    DOWN = "down"
    """It was healthy, and its probes fail."""
    HUNG = "hung"
    """It answers probes, has work, and makes no progress."""
    REFUSING = "refusing"
    """It answers probes and aborts requests: it is shutting down, or paused that way."""
    ASLEEP = "asleep"
    """It says that it sleeps or is paused."""
    DRAINING = "draining"
    """The operator took it out."""


SERVING = frozenset({State.UP, State.TRIAL})


class Signal(Enum):
    """What an event comes to."""

    ALIVE = auto()
    """A probe was answered well, and the engine is awake."""
    RESTED = auto()
    """The same, and the rest after a break is over."""
    SLEEPS = auto()
    MISSED = auto()
    """A probe failed, which alone says little."""
    GONE = auto()
    """Probes failed, often enough or beyond doubt."""
    STALLED = auto()
    PROGRESS = auto()
    ABORTS = auto()
    DRAIN = auto()
    UNDRAIN = auto()


TRANSITIONS: dict[tuple[State, Signal], State] = {
    (State.STARTING, Signal.ALIVE): State.UP,
    (State.STARTING, Signal.SLEEPS): State.ASLEEP,
    (State.UP, Signal.GONE): State.DOWN,
    (State.UP, Signal.SLEEPS): State.ASLEEP,
    (State.UP, Signal.STALLED): State.HUNG,
    (State.UP, Signal.ABORTS): State.REFUSING,
    (State.TRIAL, Signal.PROGRESS): State.UP,
    (State.TRIAL, Signal.GONE): State.DOWN,
    (State.TRIAL, Signal.SLEEPS): State.ASLEEP,
    (State.TRIAL, Signal.STALLED): State.HUNG,
    (State.TRIAL, Signal.ABORTS): State.REFUSING,
    (State.DOWN, Signal.ALIVE): State.UP,
    (State.DOWN, Signal.SLEEPS): State.ASLEEP,
    (State.HUNG, Signal.PROGRESS): State.UP,
    (State.HUNG, Signal.RESTED): State.TRIAL,
    (State.HUNG, Signal.GONE): State.DOWN,
    (State.HUNG, Signal.SLEEPS): State.ASLEEP,
    (State.REFUSING, Signal.RESTED): State.UP,
    (State.REFUSING, Signal.GONE): State.DOWN,
    (State.REFUSING, Signal.SLEEPS): State.ASLEEP,
    (State.ASLEEP, Signal.ALIVE): State.UP,
    (State.ASLEEP, Signal.GONE): State.DOWN,
    **{(state, Signal.DRAIN): State.DRAINING for state in State if state is not State.DRAINING},
    (State.DRAINING, Signal.UNDRAIN): State.STARTING,
}
"""Any other pair leaves the state as it is."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A probe was answered with 200, and the endpoint is identified."""

    asleep: bool = False
    idle: bool = True
    """No request of ours is on it."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A probe failed."""

    reason: str
    certain: bool
    """Beyond doubt (nobody listens; the engine says it is dead), or to be seen several times first."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """There is work and no progress, for longer than the work explains."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progressed:
    """The engine generated a token or advanced a prompt."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The engine ended a request with `finish_reason` "abort" that we had not given up."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The operator takes the endpoint out."""


@dataclass(frozen=True, slots=True)
class Undrain:
    """The operator lets it back."""


Event = Answered | Missed | Stalled | Progressed | Aborted | Drain | Undrain


_PLAIN: dict[type[Event], tuple[Signal, str]] = {
    Progressed: (Signal.PROGRESS, "it makes progress again"),
    Aborted: (Signal.ABORTS, "it aborts requests: shutting down or paused"),
    Drain: (Signal.DRAIN, "drained by the operator"),
    Undrain: (Signal.UNDRAIN, "undrained by the operator, to be probed"),
}
"""Events that mean the same whenever they come."""


class Effect(Enum):
    """What is to be done about a change."""

    TAKE_IN = auto()
    """Send it traffic; in `TRIAL` one sequence at a time."""
    TAKE_OUT = auto()
    """Send it no new requests."""


class Health:
    """The state of one endpoint.

    Attributes:
        state: where it stands.
        reason: why, for people.
        since: when it came to be there.
        was_healthy: whether it ever took traffic.
        failures: how many doubtful misses in a row take it out.
    """

    def __init__(self, now: float, failures: int) -> None:
        self.state = State.STARTING
        self.reason = "no probe answered yet"
        self.since = now
        self.was_healthy = False
        self.failures = failures
        self._missed = 0
        self._breaks = 0
        self._last_break = now

    @property
    def serving(self) -> bool:
        """Whether it takes traffic."""
        return self.state in SERVING

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event in."""
        signal, reason = self._read(event, now)
        before, after = self.state, TRANSITIONS.get((self.state, signal), self.state)
        if after is before:
            if signal in (Signal.MISSED, Signal.GONE) and before in (State.STARTING, State.DOWN):
                self.reason = reason
            return []
        if signal in (Signal.STALLED, Signal.ABORTS):
            forgotten = now - self._last_break > FORGET_BREAKS
            self._breaks = 1 if forgotten else self._breaks + 1
            self._last_break = now
        elif before is State.DOWN:
            self._breaks = 0  # most likely another process by now
        self.state, self.reason, self.since = after, reason, now
        self.was_healthy |= self.serving
        if self.serving:
            return [Effect.TAKE_IN]
        return [Effect.TAKE_OUT] if before in SERVING else []

    def _read(self, event: Event, now: float) -> tuple[Signal, str]:
        match event:
            case Answered():
                return self._read_answer(event, now)
            case Missed(reason=reason, certain=certain):
                self._missed += 1
                gone = certain or self._missed >= self.failures
                return (Signal.GONE if gone else Signal.MISSED), reason
            case Stalled(reason=reason):
                return Signal.STALLED, reason
            case _:
                return _PLAIN[type(event)]

    def _read_answer(self, answer: Answered, now: float) -> tuple[Signal, str]:
        self._missed = 0
        if answer.asleep:
            return Signal.SLEEPS, "the engine sleeps or is paused"
        if self._rested(now, idle=answer.idle):
            return Signal.RESTED, f"tried again after a rest of {now - self.since:.0f} s"
        return Signal.ALIVE, "probes are answered"

    def _rested(self, now: float, *, idle: bool) -> bool:
        match self.state:
            case State.HUNG:
                over = idle
            case State.REFUSING:
                over = True
            case _:
                return False
        return over and now - self.since >= min(REST * 2 ** (self._breaks - 1), MAX_REST)
