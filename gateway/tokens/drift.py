"""Holds counts against what engines report, and says when local counting cannot be trusted any longer."""

from collections import deque
from dataclasses import dataclass

from gateway.tokens.count import PromptCount, Source

WINDOW = 100
"""Local counts that are remembered."""
LIMIT = 3
"""Wrong ones among them that are no accident."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A count that differs from `usage.prompt_tokens`."""

    cause: str
    """Who counted, and what kind of request: `local chat+tools`."""
    counted: int
    reported: int
    first: bool
    """Whether this cause is seen for the first time."""


class DriftWatch:
    """What was counted against what was reported, over the last requests of a model."""

    def __init__(self) -> None:
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._causes: set[str] = set()

    @property
    def persists(self) -> bool:
        """Whether local counts drift too often."""
        return sum(self._recent) >= LIMIT

    def settle(self, count: PromptCount, reported: int) -> Drift | None:
        """Compare one count; an estimate is not held to it."""
        if count.source is Source.ESTIMATE:
            return None
        counted = sum(count.prompts)
        if count.source is Source.LOCAL:
            self._recent.append(counted != reported)
        if counted == reported:
            return None
        cause = f"{count.source} {count.kind}".strip()
        first = cause not in self._causes
        self._causes.add(cause)
        return Drift(cause, counted, reported, first)
