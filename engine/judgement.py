"""PURE. The judgement on a program's end: its cause, and whether and how to start again."""

import re
from dataclasses import dataclass, replace

from engine.diagnosis.sign import Diagnosis
from engine.memory_ladder import Stop
from engine.program import Program, Refit

_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The diagnosis to report, and the next step.

    Attributes:
        diagnosis: Why it ended, with the summary if nothing is left to try.
        permanent: Whether another start would fail in the same way.
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
        starting: Whether it was starting and has never been ready. Such a program is given up after two failures with
            one cause, so that a person hears of it within a minute, and may be tried with less if it does not fit. An
            engine that has run before keeps its arguments.
    """
    permanent = diagnosis.permanent or code in program.final_codes
    if not starting:
        return Judgement(diagnosis, permanent)
    repeated = before is not None and _gist(before) == _gist(diagnosis)
    match program.refit and program.refit(diagnosis):
        case Refit() as refit:
            return Judgement(diagnosis, permanent, refit)
        case Stop(summary, tried):
            told = replace(diagnosis, remedy=" ".join(filter(None, (diagnosis.remedy, summary))))
            return Judgement(told, permanent or tried or repeated)
        case _:
            return Judgement(diagnosis, permanent or repeated)


def _gist(diagnosis: Diagnosis) -> str:
    """The cause without its numbers, such as free bytes or a pid: they differ from start to start."""
    return _NUMBER.sub("", diagnosis.cause)
