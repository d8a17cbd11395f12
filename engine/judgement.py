"""PURE. What the end of a program's process means for its next start."""

import re
from dataclasses import dataclass, replace

from engine.diagnosis.sign import Diagnosis
from engine.fit import Stop
from engine.program import Program, Refit

_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be told, and done.

    Attributes:
        diagnosis: Why it ended, with the verdict where nothing is left to try.
        permanent: Whether another start must fail in the same way.
        refit: What to launch instead, at once.
    """

    diagnosis: Diagnosis
    permanent: bool
    refit: Refit | None = None


def judge(program: Program, diagnosis: Diagnosis, code: int, before: Diagnosis | None, *, starting: bool) -> Judgement:
    """Judge one end.

    Args:
        program: What ended.
        diagnosis: Why.
        code: Its exit code.
        before: Why it ended the time before, if it did.
        starting: Whether it was starting and has never been ready: then what fails twice for one reason is given up,
            so that a person hears of it within a minute, and what does not fit may be tried with less. An engine that
            has run before keeps what it ran with.
    """
    permanent = diagnosis.permanent or code in program.final_codes
    if not starting:
        return Judgement(diagnosis, permanent)
    repeated = before is not None and _gist(before) == _gist(diagnosis)
    match program.refit and program.refit(diagnosis):
        case Refit() as refit:
            return Judgement(diagnosis, permanent, refit)
        case Stop(verdict, tried):
            told = replace(diagnosis, remedy=" ".join(filter(None, (diagnosis.remedy, verdict))))
            return Judgement(told, permanent or tried or repeated)
        case _:
            return Judgement(diagnosis, permanent or repeated)


def _gist(diagnosis: Diagnosis) -> str:
    """The cause without its numbers, which differ from start to start: what was free, who was killed."""
    return _NUMBER.sub("", diagnosis.cause)
