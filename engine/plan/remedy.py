"""PURE. What a remedy is: something to change, its condition, and what it proposes for a situation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from engine.plan.budget import Budget, Request, Settings, measure


class Stage(StrEnum):
    """How deep a remedy cuts."""

    TRIM = "trim"
    RESHAPE = "reshape"


@dataclass(frozen=True, slots=True)
class Situation:
    """What a remedy looks at."""

    request: Request
    settings: Settings
    budget: Budget

    def then(self, settings: Settings) -> "Situation":
        """The same request with other settings."""
        return Situation(self.request, settings, measure(self.request, settings))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Other settings, the words for vLLM's command line, and the reason with its figures."""

    settings: Settings
    words: tuple[str, ...]
    reason: str
    environ: tuple[tuple[str, str], ...] = ()
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One line of the table.

    Attributes:
        name: for a person.
        stage: how deep it cuts.
        flags: any of these given, and it is left out.
        condition: when it is proposed.
        propose: other settings, or None where the condition does not hold.
        always: whether it is asked even where everything fits.
    """

    name: str
    stage: Stage
    flags: tuple[str, ...]
    condition: str
    propose: Callable[[Situation], Proposal | None]
    always: bool = False
