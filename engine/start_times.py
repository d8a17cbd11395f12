"""PURE. How long the phases of a start took, and what is left of one that follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.phases import Phase


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds that each phase of an engine's last start took."""

    seconds: Mapping[Phase, float] = field(default_factory=dict)

    def of(self, phase: Phase) -> float | None:
        """What the phase took; None where it is not known."""
        return self.seconds.get(phase)

    def left(self, phase: Phase) -> float | None:
        """Seconds from the beginning of the phase until it was ready; None where that is not known."""
        return sum(took for later, took in self.seconds.items() if later >= phase) if phase in self.seconds else None


class Stopwatch:
    """Times the phases of one start. Times are those of a monotonic clock, in seconds.

    Args:
        now: When it was launched.
    """

    def __init__(self, now: float) -> None:
        self._phase = Phase.IMPORTING
        self._since = now
        self._seconds: dict[Phase, float] = {}

    def enter(self, phase: Phase, now: float) -> bool:
        """Take in that the start has come to this phase; says whether it was not there before."""
        if phase is self._phase:
            return False
        self._seconds[self._phase] = now - self._since
        self._phase, self._since = phase, now
        return True

    def ready(self, now: float) -> StartTimes:
        """The times of a start that is ready now."""
        return StartTimes({**self._seconds, self._phase: now - self._since})
