"""PURE. What is known of one failure, and what a log says of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto


class Kind(Enum):
    """What a failure is about. `MEMORY` is what a launch may try again with less (`fit: auto`)."""

    ARGUMENT = "launch arguments"
    MEMORY = "memory"
    MODEL = "model files and hub"
    TOKENIZER = "tokenizer"
    PARALLEL = "GPUs and communication"
    NETWORK = "network"
    CLIENT = "clients"
    """Of a client's log: it did not reach its server, or got no whole answer."""
    DEATH = "death"
    SERVICE = "service"
    """It runs, and not as it could."""
    UNKNOWN = "not known"


class Weight(IntEnum):
    """How much a sign tells. Of several signs in one log the heaviest counts, then the first."""

    HINT = auto()
    """It ends nothing: something works, but not as it could. Only `doctor` tells of it."""
    TAIL = auto()
    """The last words of every failed run: somebody else failed before."""
    EFFECT = auto()
    """Something failed, and a line before it may say why: that one is shown."""
    CAUSE = auto()
    """This is why."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a program ended, or what is wrong with it.

    Attributes:
        cause: What happened, in one sentence.
        remedy: What to do about it.
        evidence: The line of the log that says so, or what was measured.
        permanent: Whether the next start must fail in the same way.
        kind: What it is about.
        facts: What the evidence gives by name: the named groups of its pattern, and what follows from them.
        sign: Name of the sign that was found; empty where no sign was.
    """

    cause: str
    remedy: str = ""
    evidence: str = ""
    permanent: bool = False
    kind: Kind = Kind.UNKNOWN
    facts: Mapping[str, str] = field(default_factory=dict)
    sign: str = ""

    def __str__(self) -> str:
        evidence = self.evidence if self.evidence not in self.cause else ""
        return "\n".join(part for part in (self.cause, self.remedy, evidence and f"vLLM said: {evidence}") if part)


Facts = Mapping[str, str]


def nothing_more(_: Facts) -> Facts:
    """What follows from the facts of most signs."""
    return {}


@dataclass(frozen=True, slots=True)
class Sign:
    """A text in the log and what it means.

    Attributes:
        name: What the documentation and the tests call it.
        pattern: Found in one line of the log.
        cause: What happened; takes the facts.
        remedy: What to do; takes the facts.
        kind: What it is about.
        weight: How much it tells.
        permanent: Whether the next start must fail in the same way.
        within: Found in the stack above the line, where the line alone does not say enough.
        derive: What follows from the named groups: numbers for the remedy.
        example: What the documentation shows of a pattern that is a shape and has no words.
    """

    name: str
    pattern: str
    cause: str
    remedy: str
    kind: Kind
    weight: Weight = Weight.CAUSE
    permanent: bool = True
    within: str = ""
    derive: Callable[[Facts], Facts] = nothing_more
    example: str = ""

    def read(self, line: str, stack: str = "") -> Diagnosis | None:
        """The diagnosis of a line, or None where it does not show this sign."""
        match = re.search(self.pattern, line)
        if match is None or (self.within and not re.search(self.within, stack)):
            return None
        facts = match.groupdict("")
        facts |= self.derive(facts)
        return Diagnosis(
            self.cause.format(**facts),
            self.remedy.format(**facts),
            line,
            self.permanent,
            self.kind,
            facts,
            self.name,
        )
