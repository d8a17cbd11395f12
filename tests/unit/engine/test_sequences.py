import pytest

from engine.diagnosis.at_work import ENOUGH_LINES, Observed, judge
from engine.sequences import enough, fewer, more, too_many
from gateway.advice.rules import advise
from tests.unit.advice.test_rules import past


@pytest.mark.parametrize(("most", "limit"), [(0, 8), (1, 8), (4, 8), (5, 16), (20, 40), (100, 200), (128, 256)])
def test_a_limit_leaves_room_for_as_many_again(most: int, limit: int) -> None:
    assert enough(most) == limit
    assert not too_many(limit, most)
    assert not too_many(2 * limit - 1, most)
    assert too_many(2 * limit, most)


def test_a_limit_is_doubled_or_halved_but_never_nothing() -> None:
    assert more(32) == 64
    assert fewer(256) == 128
    assert fewer(1) == 1


@pytest.mark.parametrize("most", [1, 3, 7, 11, 33, 64, 65, 100, 127, 128])
def test_doctor_and_advise_say_the_same_of_the_same_engine(most: int) -> None:
    doctor = [found.remedy for found in judge(Observed(most_running=most, max_num_seqs=256, busy=ENOUGH_LINES))]
    findings = advise(past(endpoint={"peak_sequences": most, "sequence_limit": 256}))
    assert findings is not None
    (advised,) = (found.change for found in findings if found.subject == "sequences")
    assert [remedy.startswith(f"Give {advised}:") for remedy in doctor] == ([True] if advised else [])
