"""PURE. The health of an endpoint: a state machine that decides whether it takes traffic.

Its events come from probes, from requests and from the operator. `TRANSITIONS` is the whole behaviour. First an event
becomes a `Signal`, by what it means in the current state (one missed probe too many, a rest that is over). Then the
table gives the next state. How many are too many is a setting: `HealthSettings` in `config/settings.py`.

A hung engine answers `/health` with 200 and its gauges stand still, so only work shows that it is back. kvgate sends no
generation of its own. Any progress of the requests still on the engine brings it back at once. If all of them have been
closed, it gets a rest and then a trial: one sequence at a time until the first progress. Each further break within
`FORGET_BREAKS` doubles the rest.

Tokens outweigh probes: while they come, no number of missed probes takes an endpoint out. An engine that takes
connections and answers nothing is not dead either: one large answer blocks vLLM's event loop until it is written
(44 s for 107 MB, measured, 0.32). Such an engine gets no new work until it answers, and keeps what it has.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

REST = 5.0
"""Seconds an engine rests after it hung or aborted requests; each further break doubles them."""
MAX_REST = 60.0
_DOUBLINGS = 99
"""Most that are computed: 1024 are no float any more, and an engine that is broken over a weekend has as many."""
FORGET_BREAKS = 300.0
"""Seconds after which the next break counts as the first again."""


class State(StrEnum):
    """The state of an endpoint. Only `UP` and `TRIAL` take traffic."""

    STARTING = "starting"
    """Not yet found healthy: it is new or was just undrained, or this process has just begun to watch it."""
    UP = "up"
    TRIAL = "trial"
    """It hung before: it gets one sequence at a time until there is progress."""
    DOWN = "down"
    """It was healthy, and now its probes fail."""
    BLOCKED = "blocked"
    """It takes connections and answers no probe: perhaps it is busy with one large answer."""
    SUSPECT = "suspect"
    """The only request on it stayed silent: the engine hangs, or only that request does."""
    HUNG = "hung"
    """It has work, and several requests stayed silent."""
    REFUSING = "refusing"
    """It answers probes and aborts requests: it is shutting down, or paused that way."""
    ASLEEP = "asleep"
    """It says that it sleeps or is paused."""
    SCALING = "scaling"
    """It says that its ranks are being changed: it takes nothing new, and ends what it has."""
    STOPPED = "stopped"
    """It comes and goes with demand, and is not needed: it ends what it has, and its engine ends."""
    DRAINING = "draining"
    """The operator took it out."""


SERVING = frozenset({State.UP, State.TRIAL})
LOST = frozenset({State.DOWN, State.HUNG})
"""States in which unanswered requests will never be answered; see `Health.lost`."""
TAKEN_OUT = frozenset({State.DRAINING, State.STOPPED})
"""States that no sign of the engine ends, not even its hang or its death."""
KEEPS = frozenset({*TAKEN_OUT, State.BLOCKED, State.SUSPECT, State.SCALING})
"""States in which an endpoint takes no traffic but may finish what it has."""


class Signal(Enum):
    """The meaning of an event in the current state."""

    ALIVE = auto()
    """A probe succeeded, and the engine is awake."""
    RESTED = auto()
    """A probe succeeded, and the rest after a break is over."""
    SLEEPS = auto()
    SCALES = auto()
    MISSED = auto()
    """A probe failed, which alone says little."""
    UNANSWERED = auto()
    """Probes failed often enough, but the last one's connection was accepted."""
    GONE = auto()
    """Probes failed, often enough or beyond doubt."""
    SILENT = auto()
    """The only request was silent."""
    STALLED = auto()
    PROGRESS = auto()
    MOVES = auto()
    """It makes progress, and was not found healthy yet."""
    ABORTS = auto()
    RETIRE = auto()
    ROUSE = auto()
    DRAIN = auto()
    UNDRAIN = auto()


_KNOWN_BETTER = frozenset({State.HUNG, State.SCALING, State.STOPPED, State.DRAINING})
"""States that stay when an engine says that it scales."""

TRANSITIONS: dict[tuple[State, Signal], State] = {
    (State.STARTING, Signal.ALIVE): State.UP,
    (State.STARTING, Signal.SLEEPS): State.ASLEEP,
    (State.STARTING, Signal.UNANSWERED): State.BLOCKED,
    (State.UP, Signal.UNANSWERED): State.BLOCKED,
    (State.UP, Signal.GONE): State.DOWN,
    (State.UP, Signal.SLEEPS): State.ASLEEP,
    (State.UP, Signal.SILENT): State.SUSPECT,
    (State.UP, Signal.STALLED): State.HUNG,
    (State.UP, Signal.ABORTS): State.REFUSING,
    (State.TRIAL, Signal.PROGRESS): State.UP,
    (State.TRIAL, Signal.UNANSWERED): State.BLOCKED,
    (State.TRIAL, Signal.GONE): State.DOWN,
    (State.TRIAL, Signal.SLEEPS): State.ASLEEP,
    (State.TRIAL, Signal.SILENT): State.SUSPECT,
    (State.TRIAL, Signal.STALLED): State.HUNG,
    (State.TRIAL, Signal.ABORTS): State.REFUSING,
    (State.DOWN, Signal.ALIVE): State.UP,
    (State.DOWN, Signal.SLEEPS): State.ASLEEP,
    (State.BLOCKED, Signal.ALIVE): State.UP,
    (State.BLOCKED, Signal.PROGRESS): State.UP,
    (State.BLOCKED, Signal.MOVES): State.STARTING,
    (State.BLOCKED, Signal.GONE): State.DOWN,
    (State.BLOCKED, Signal.SLEEPS): State.ASLEEP,
    (State.BLOCKED, Signal.STALLED): State.HUNG,
    (State.BLOCKED, Signal.ABORTS): State.REFUSING,
    (State.SUSPECT, Signal.PROGRESS): State.UP,
    (State.SUSPECT, Signal.RESTED): State.TRIAL,
    (State.SUSPECT, Signal.UNANSWERED): State.BLOCKED,
    (State.SUSPECT, Signal.GONE): State.DOWN,
    (State.SUSPECT, Signal.SLEEPS): State.ASLEEP,
    (State.SUSPECT, Signal.STALLED): State.HUNG,
    (State.SUSPECT, Signal.ABORTS): State.REFUSING,
    (State.HUNG, Signal.PROGRESS): State.UP,
    (State.HUNG, Signal.MOVES): State.STARTING,
    (State.HUNG, Signal.RESTED): State.TRIAL,
    (State.HUNG, Signal.GONE): State.DOWN,
    (State.HUNG, Signal.SLEEPS): State.ASLEEP,
    (State.REFUSING, Signal.RESTED): State.UP,
    (State.REFUSING, Signal.UNANSWERED): State.DOWN,
    (State.REFUSING, Signal.GONE): State.DOWN,
    (State.REFUSING, Signal.SLEEPS): State.ASLEEP,
    (State.ASLEEP, Signal.ALIVE): State.UP,
    (State.ASLEEP, Signal.UNANSWERED): State.DOWN,
    (State.ASLEEP, Signal.GONE): State.DOWN,
    (State.SCALING, Signal.ALIVE): State.UP,
    (State.SCALING, Signal.UNANSWERED): State.BLOCKED,
    (State.SCALING, Signal.GONE): State.DOWN,
    (State.SCALING, Signal.SLEEPS): State.ASLEEP,
    **{(state, Signal.SCALES): State.SCALING for state in State if state not in _KNOWN_BETTER},
    **{(state, Signal.RETIRE): State.STOPPED for state in State if state not in {State.STOPPED, State.DRAINING}},
    (State.STOPPED, Signal.ROUSE): State.STARTING,
    **{(state, Signal.DRAIN): State.DRAINING for state in State if state is not State.DRAINING},
    (State.DRAINING, Signal.UNDRAIN): State.STARTING,
}
"""Any other pair of state and signal leaves the state as it is."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A probe was answered with 200, and the endpoint is identified."""

    asleep: bool = False
    idle: bool = True
    """No request of ours is on it."""


@dataclass(frozen=True, slots=True)
class Scales:
    """A probe was answered by an engine that changes its ranks (`/scale_elastic_ep`)."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A probe failed."""

    reason: str
    certain: bool
    """Whether one miss is enough (nobody listens; the engine says it is dead) or several must follow each other."""
    accepted: bool = False
    """The connection was accepted, and no answer came in time."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """There is work but no progress, for longer than the work explains."""

    reason: str
    alone: bool = False
    """Only one request is there to judge by."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """The engine generated a token or advanced a prompt."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The engine ended a request with `finish_reason` "abort" though kvgate had not cancelled it."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Its engine is to end, or does not run."""

    reason: str = "nobody needs it: its engine starts with the next request"


@dataclass(frozen=True, slots=True)
class Rouse:
    """Its engine starts, as a request waits for it."""


@dataclass(frozen=True, slots=True)
class Drain:
    """The endpoint is taken out, by the operator or by other settings."""

    reason: str = "drained by the operator"


@dataclass(frozen=True, slots=True)
class Undrain:
    """The operator lets it back."""


Event = Answered | Scales | Missed | Stalled | Progressed | Aborted | Retire | Rouse | Drain | Undrain


_PLAIN: dict[type[Event], tuple[Signal, str]] = {
    Scales: (Signal.SCALES, "the engine changes its ranks"),
    Progressed: (Signal.PROGRESS, "it makes progress again"),
    Aborted: (Signal.ABORTS, "it aborts requests: shutting down or paused"),
    Rouse: (Signal.ROUSE, "its engine starts: a request waits for it"),
    Undrain: (Signal.UNDRAIN, "undrained by the operator, to be probed"),
}
"""Events that mean the same in every state."""


class Effect(Enum):
    """The action that follows a change."""

    TAKE_IN = auto()
    """Send it traffic; in `TRIAL` one sequence at a time."""
    TAKE_OUT = auto()
    """Send it no new requests."""
    EVACUATE = auto()
    """Move its unanswered requests elsewhere."""


class Health:
    """The state of one endpoint.

    Attributes:
        state: the current one.
        reason: why it is in this state, for people.
        since: when it entered this state.
        was_healthy: whether it ever took traffic.
        failures: number of uncertain misses in a row that take it out.
        launched: whether kvgate launches its engine, which does not listen before it is ready: so one that takes
            connections and does not answer was ready before this process began to watch it.
    """

    def __init__(self, now: float, failures: int) -> None:
        self.state = State.STARTING
        self.reason = "no probe answered yet"
        self.since = now
        self.was_healthy = False
        self.failures = failures
        self.launched = False
        self._missed = 0
        self._gone = False
        """Whether probes found nobody there, and nothing has shown life since."""
        self._breaks = 0
        self._last_break = now

    @property
    def serving(self) -> bool:
        """Whether it takes traffic."""
        return self.state in SERVING

    @property
    def lost(self) -> bool:
        """Whether unanswered requests on it will never be answered."""
        return self.state in LOST or (self._gone and self.state in TAKEN_OUT)

    @property
    def doubted(self) -> bool:
        """Whether progress would change anything."""
        return self._missed > 0 or (self.state, Signal.PROGRESS) in TRANSITIONS

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; return the actions that follow."""
        was_lost = self.lost
        signal, reason = self._read(event, now)
        before, after = self.state, TRANSITIONS.get((self.state, signal), self.state)
        if after is before:
            if isinstance(event, Missed) and before in (State.STARTING, State.DOWN):
                self.reason = reason
            return [Effect.EVACUATE] if self.lost and not was_lost else []
        if signal in (Signal.SILENT, Signal.STALLED, Signal.ABORTS):
            forgotten = now - self._last_break > FORGET_BREAKS
            self._breaks = 1 if forgotten else self._breaks + 1
            self._last_break = now
        elif before is State.DOWN:
            self._breaks = 0  # most likely it is another process by now
        self.state, self.reason, self.since = after, reason, now
        self.was_healthy |= self.serving
        if self.serving:
            return [Effect.TAKE_IN]
        effects = [Effect.TAKE_OUT] if before in SERVING else []
        return [*effects, Effect.EVACUATE] if after in LOST else effects

    def _read(self, event: Event, now: float) -> tuple[Signal, str]:
        match event:
            case Answered():
                return self._read_answer(event, now)
            case Missed(reason=reason):
                self._missed += 1
                return self._read_miss(event), reason
            case Stalled(reason=reason, alone=alone):
                return (Signal.SILENT if alone else Signal.STALLED), reason
            case Retire(reason=reason) | Drain(reason=reason):
                return (Signal.RETIRE if isinstance(event, Retire) else Signal.DRAIN), reason
            case Scales() | Progressed():
                self._lives()
                signal, reason = _PLAIN[type(event)]
                return (Signal.MOVES if signal is Signal.PROGRESS and not self.was_healthy else signal), reason
            case _:
                return _PLAIN[type(event)]

    def _lives(self) -> None:
        self._missed, self._gone = 0, False

    def _read_miss(self, miss: Missed) -> Signal:
        if not miss.certain and self._missed < self.failures:
            return Signal.MISSED
        if not miss.certain and miss.accepted:
            return Signal.UNANSWERED if self.launched or self.state is not State.STARTING else Signal.MISSED
        self._gone = True
        return Signal.GONE

    def _read_answer(self, answer: Answered, now: float) -> tuple[Signal, str]:
        self._lives()
        if answer.asleep:
            return Signal.SLEEPS, "the engine sleeps or is paused"
        if self._rested(now, idle=answer.idle):
            return Signal.RESTED, f"tried again after a rest of {now - self.since:.0f} s"
        return Signal.ALIVE, "probes are answered"

    def _rested(self, now: float, *, idle: bool) -> bool:
        match self.state:
            case State.HUNG | State.SUSPECT:
                over = idle
            case State.REFUSING:
                over = True
            case _:
                return False
        return over and now - self.since >= min(REST * 2.0 ** min(self._breaks - 1, _DOUBLINGS), MAX_REST)
