from gateway.admission.outcomes import Outcome
from gateway.ops.pictures.words import OUTCOMES


def test_each_outcome_has_words_of_its_own():
    assert set(OUTCOMES) == set(Outcome)
    assert len({called.words for called in OUTCOMES.values()}) == len(Outcome)
