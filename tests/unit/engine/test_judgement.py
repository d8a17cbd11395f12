from dataclasses import replace

import pytest

from engine.diagnosis.sign import Diagnosis, Kind
from engine.judgement import judge
from engine.memory_ladder import Stop
from engine.program import Program, Refit, Role

PROGRAM = Program("e", Role.ENGINE, ("x",), {}, final_codes=frozenset({2}))
LESS = replace(PROGRAM, argv=("x", "less"))
SHORT = Diagnosis("It needs 2.0 GiB, and 1.5 are there.", "Give it more.", kind=Kind.MEMORY)


def test_a_final_code_or_a_permanent_cause_ends_it() -> None:
    assert judge(PROGRAM, SHORT, 2, None, starting=True).permanent
    assert judge(PROGRAM, replace(SHORT, permanent=True), 1, None, starting=True).permanent
    assert not judge(PROGRAM, SHORT, 1, None, starting=True).permanent


@pytest.mark.parametrize(
    ("before", "starting", "permanent"),
    [
        (replace(SHORT, cause="It needs 2.0 GiB, and 1.75 are there."), True, True),
        (replace(SHORT, cause="It needs 2.0 GiB, and 1.75 are there."), False, False),
        (Diagnosis("The port is taken."), True, False),
    ],
)
def test_the_same_reason_twice_is_enough_until_it_has_run(
    before: Diagnosis, *, starting: bool, permanent: bool
) -> None:
    assert judge(PROGRAM, SHORT, 1, before, starting=starting).permanent is permanent


def test_what_has_run_before_keeps_what_it_ran_with() -> None:
    fitting = replace(PROGRAM, refit=lambda _: Refit(LESS, "less", 1))
    assert judge(fitting, SHORT, 1, None, starting=False).refit is None
    refit = judge(fitting, SHORT, 1, SHORT, starting=True).refit
    assert refit is not None
    assert refit.program is LESS


def test_the_verdict_follows_the_remedy_and_tries_that_failed_are_not_repeated() -> None:
    stopped = judge(replace(PROGRAM, refit=lambda _: Stop("It was tried.", tried=True)), SHORT, 1, None, starting=True)
    assert stopped.diagnosis.remedy == "Give it more. It was tried."
    assert stopped.permanent
    quiet = judge(replace(PROGRAM, refit=lambda _: Stop()), SHORT, 1, None, starting=True)
    assert (quiet.diagnosis, quiet.permanent) == (SHORT, False)
