"""PURE. The state machine of one supervised program's life.

Events go in with their times; commands come out for the caller to carry out. `TRANSITIONS` is the whole machine. The
meaning of an event (is this crash one too many?) is decided before the table is asked.
"""

from dataclasses import dataclass
from enum import Enum, auto


class State(Enum):
    """The states of a program's life."""

    STOPPED = auto()
    STARTING = auto()
    """Launched, not yet ready."""
    READY = auto()
    DRAINING = auto()
    """Asked to end."""
    BACKOFF = auto()
    """Ended by itself. It will be launched again later."""
    FAILED = auto()
    """Given up."""


@dataclass(frozen=True, slots=True)
class Start:
    """Run the program."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the program for good."""


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Its readiness probe was answered."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Its process ended.

    Attributes:
        permanent: Another start would fail in the same way.
        refitted: It failed to start, and the next launch is changed to avoid that.
    """

    permanent: bool = False
    refitted: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. It is sent at the time of the last `WakeAt`, and may be sent at any other."""


Event = Start | Stop | BecameReady | Exited | Tick


@dataclass(frozen=True, slots=True)
class Launch:
    """Start the process."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process to end (SIGTERM)."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process group.

    Attributes:
        overdue: It ran out of time. Otherwise it had nothing to shut down in order.
    """

    overdue: bool = True


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this time. Each replaces the one before."""

    at: float


Command = Launch | Terminate | Kill | WakeAt


@dataclass(frozen=True, slots=True)
class Policy:
    """Time limits and restarts. Times in seconds."""

    start_timeout: float = 1800.0
    """Limit from launch to ready. After it the program is killed, which counts as a failure."""
    stop_timeout: float = 30.0
    """From SIGTERM to SIGKILL of the group."""
    max_restarts: int = 5
    """Failures in a row, beyond the first, before it is given up."""
    backoff: float = 1.0
    """Wait after the first failure; it doubles with each further one."""
    max_backoff: float = 60.0
    steady_after: float = 60.0
    """After this long in READY, earlier failures are forgotten."""
    hung_timeout: float | None = None
    """After this long in a known hang, it is killed and started again; None for never."""


class Trigger(Enum):
    """The meaning of an event, given what happened before."""

    START = auto()
    READY = auto()
    REFITTED = auto()
    CRASHED = auto()
    GAVE_UP = auto()
    ENDED = auto()
    DUE = auto()
    STOP = auto()


_PLAIN: dict[type, Trigger] = {Start: Trigger.START, Stop: Trigger.STOP, BecameReady: Trigger.READY}
"""Events that always mean the same."""

TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.STOPPED, Trigger.START): State.STARTING,
    (State.STARTING, Trigger.READY): State.READY,
    (State.STARTING, Trigger.REFITTED): State.STARTING,
    (State.STARTING, Trigger.CRASHED): State.BACKOFF,
    (State.STARTING, Trigger.GAVE_UP): State.FAILED,
    (State.STARTING, Trigger.STOP): State.DRAINING,
    (State.STARTING, Trigger.DUE): State.STARTING,
    (State.READY, Trigger.CRASHED): State.BACKOFF,
    (State.READY, Trigger.GAVE_UP): State.FAILED,
    (State.READY, Trigger.STOP): State.DRAINING,
    (State.DRAINING, Trigger.ENDED): State.STOPPED,
    (State.DRAINING, Trigger.DUE): State.DRAINING,
    (State.BACKOFF, Trigger.DUE): State.STARTING,
    (State.BACKOFF, Trigger.STOP): State.STOPPED,
}
"""An entry that is missing changes nothing."""


class Lifecycle:
    """One program's life. `handle` is its only writer."""

    def __init__(self, policy: Policy, *, was_ready: bool = False) -> None:
        self.state = State.STOPPED
        self.failures = 0
        """Failures in a row."""
        self.policy = policy
        self._due: float | None = None
        self._ready_since: float | None = None
        self.was_ready = was_ready
        """Whether it has ever been ready."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle one event at `now` (seconds of a monotonic clock) and return the commands."""
        trigger = self._meaning(event, now)
        target = TRANSITIONS.get((self.state, trigger)) if trigger else None
        if trigger is None or target is None:
            return []
        before, self.state = self.state, target
        overdue = trigger is Trigger.DUE and target is before
        # A starting program serves nobody yet, and vLLM hears SIGTERM only once its weights are loaded: half a minute.
        if overdue or (trigger is Trigger.STOP and before is State.STARTING):
            self._due = None
            return [Kill(overdue=overdue)]
        return self._enter(now)

    def _meaning(self, event: Event, now: float) -> Trigger | None:
        match event:
            case Tick():
                return Trigger.DUE if self._due is not None and now >= self._due else None
            case Exited() if self.state is State.DRAINING:
                return Trigger.ENDED
            case Exited(refitted=True) if self.state is State.STARTING:
                # Not a failure in a row: the next launch differs from the failed one.
                return Trigger.REFITTED
            case Exited(permanent):
                return self._failed(now, permanent=permanent)
            case _:
                return _PLAIN[type(event)]

    def _failed(self, now: float, *, permanent: bool) -> Trigger:
        if self._ready_since is not None and now - self._ready_since >= self.policy.steady_after:
            self.failures = 0
        self.failures += 1
        # A program that ran before may run again, whatever its last words were.
        hopeless = permanent and not self.was_ready
        return Trigger.GAVE_UP if hopeless or self.failures > self.policy.max_restarts else Trigger.CRASHED

    def _enter(self, now: float) -> list[Command]:
        self._due = None
        self._ready_since = now if self.state is State.READY else None
        match self.state:
            case State.STARTING:
                return [Launch(), self._wake(now + self.policy.start_timeout)]
            case State.READY:
                self.was_ready = True
                return []
            case State.DRAINING:
                return [Terminate(), self._wake(now + self.policy.stop_timeout)]
            case State.BACKOFF:
                return [self._wake(now + self.delay())]
            case State.STOPPED | State.FAILED:
                return []

    def delay(self) -> float:
        """Seconds from the last failure to the next launch."""
        doublings = min(self.failures - 1, 99)  # 1024 are no float any more
        return min(self.policy.backoff * 2.0**doublings, self.policy.max_backoff)

    def _wake(self, at: float) -> WakeAt:
        self._due = at
        return WakeAt(at)
