"""PURE. The times of a start's phases, and the estimate of the time a later start still needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.phases import StartPhase


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds that each phase of an engine's last start took."""

    seconds: Mapping[StartPhase, float] = field(default_factory=dict)

    def of(self, phase: StartPhase) -> float | None:
        """Seconds the phase took; None if unknown."""
        return self.seconds.get(phase)

    def left(self, phase: StartPhase) -> float | None:
        """Seconds from the beginning of the phase until ready; None if unknown."""
        return sum(took for later, took in self.seconds.items() if later >= phase) if phase in self.seconds else None


class Stopwatch:
    """Times the phases of one start. Times are those of a monotonic clock, in seconds.

    Args:
        now: When it was launched.
    """

    def __init__(self, now: float) -> None:
        self._phase = StartPhase.IMPORTING
        self._since = now
        self._seconds: dict[StartPhase, float] = {}

    def enter(self, phase: StartPhase, now: float) -> bool:
        """Note that the start has reached this phase. Returns whether it is a new one."""
        if phase is self._phase:
            return False
        self._seconds[self._phase] = now - self._since
        self._phase, self._since = phase, now
        return True

    def ready(self, now: float) -> StartTimes:
        """The times of a start that has just become ready."""
        return StartTimes({**self._seconds, self._phase: now - self._since})
