"""PURE. The type of a remedy: a change, its condition, and its proposal for a situation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from engine.plan.budget import Budget, Request, Settings, measure


class Stage(StrEnum):
    """The stages of remedies, by how deep they cut."""

    TRIM = "trim"
    RESHAPE = "reshape"


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a remedy."""

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
    """One row of the table.

    Attributes:
        name: for a person.
        stage: how deep it cuts.
        flags: the remedy is skipped if any of these was given.
        condition: when it is proposed.
        propose: returns other settings, or None if the condition does not hold.
        always: whether it applies even if everything fits.
    """

    name: str
    stage: Stage
    flags: tuple[str, ...]
    condition: str
    propose: Callable[[Situation], Proposal | None]
    always: bool = False
