"""PURE. What is known of one failure, and what a log says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """What a failure is about. `MEMORY` is what a launch may try again with less (`fit: auto`)."""

    ARGUMENT = "launch arguments"
    MEMORY = "memory"
    MODEL = "model files and hub"
    TOKENIZER = "tokenizer"
    PARALLEL = "GPUs and communication"
    DEATH = "death at work"
    NETWORK = "network"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a program ended.

    Attributes:
        cause: What happened, in one sentence.
        remedy: What to do about it.
        evidence: The line of the log that says so.
        permanent: Whether the next start must fail in the same way.
        kind: What it is about.
        facts: What the evidence gives by name: the named groups of its pattern. `engine.fit` reads `asked` and `fits`
            (tokens), `requests` (sequences of the warm-up), `node` and `free` (GiB), and `loading`.
    """

    cause: str
    remedy: str = ""
    evidence: str = ""
    permanent: bool = False
    kind: Kind = Kind.UNKNOWN
    facts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        evidence = self.evidence if self.evidence not in self.cause else ""
        return "\n".join(part for part in (self.cause, self.remedy, evidence and f"vLLM said: {evidence}") if part)


@dataclass(frozen=True, slots=True)
class Sign:
    """A text in the log and what it means. `cause` and `remedy` take the pattern's named groups."""

    pattern: str
    cause: str
    remedy: str
    permanent: bool = True
    kind: Kind = Kind.UNKNOWN

    def read(self, facts: Mapping[str, str], line: str) -> Diagnosis:
        """The diagnosis of a line that the pattern was found in."""
        return Diagnosis(
            self.cause.format(**facts), self.remedy.format(**facts), line, self.permanent, self.kind, facts
        )
