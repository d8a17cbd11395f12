"""PURE. The diagnosis of one failure, and the sign in a log that leads to it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto


class Kind(Enum):
    """The subject of a failure. After `MEMORY` a launch may try again with less (`fit: auto`)."""

    ARGUMENT = "launch arguments"
    MEMORY = "memory"
    MODEL = "model files and hub"
    TOKENIZER = "tokenizer"
    PARALLEL = "GPUs and communication"
    NETWORK = "network"
    CLIENT = "clients"
    """In a client's log: it did not reach its server, or got no whole answer."""
    DEATH = "death"
    SERVICE = "service"
    """It runs, but worse than it could."""
    UNKNOWN = "not known"


class Weight(IntEnum):
    """The weight of a sign. Of several in one log the heaviest counts, and among equals the first."""

    HINT = auto()
    """It ends nothing: something works worse than it could. Only `doctor` reports it."""
    TAIL = auto()
    """The last words of every failed run: another process failed before."""
    EFFECT = auto()
    """Something failed. An earlier line may say why, and is then shown."""
    CAUSE = auto()
    """The cause itself."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a program ended, or what is wrong with it.

    Attributes:
        cause: What happened, in one sentence.
        remedy: What to do about it.
        evidence: The log line that shows it, or a measurement.
        permanent: Whether the next start would fail in the same way.
        kind: Its subject.
        facts: Facts by name: the named groups of the sign's pattern, and values derived from them.
        sign: Name of the sign; empty if none matched.
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
        return "\n".join(part for part in (self.cause, self.remedy, evidence and f"It said: {evidence}") if part)


Facts = Mapping[str, str]


def nothing_more(_: Facts) -> Facts:
    """The derivation for most signs: nothing."""
    return {}


@dataclass(frozen=True, slots=True)
class Sign:
    """A text in the log and its meaning.

    Attributes:
        name: Its name in the documentation and the tests.
        pattern: Matches one line of the log.
        cause: What happened; a template for the facts.
        remedy: What to do; a template for the facts.
        kind: Its subject.
        weight: Its weight among several signs.
        permanent: Whether the next start would fail in the same way.
        within: Must match in the stack above, for a line that is not enough alone.
        derive: Derives further facts from the named groups, such as numbers for the remedy.
        example: Shown in the documentation for a pattern that has a shape but no words.
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
        """The diagnosis from a line, or None if it does not show this sign."""
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
