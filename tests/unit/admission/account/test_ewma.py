from math import exp

import pytest

from gateway.admission.account.ewma import Ewma


def test_the_first_sample_counts_whole():
    ewma = Ewma(2.0)
    ewma.sample(8.0, at=100.0)
    assert ewma.value == 8.0


def test_a_step_shows_to_63_percent_after_the_time_constant_however_often_it_is_sampled():
    once, often = Ewma(2.0), Ewma(2.0)
    once.sample(0.0, at=0.0)
    often.sample(0.0, at=0.0)
    once.sample(1.0, at=2.0)
    for step in range(1, 21):
        often.sample(1.0, at=step / 10)
    assert once.value == pytest.approx(1 - exp(-1))
    assert often.value == pytest.approx(1 - exp(-1))


def test_after_a_reset_it_starts_over():
    ewma = Ewma(2.0)
    ewma.sample(8.0, at=0.0)
    ewma.reset()
    assert ewma.value == 0.0
    ewma.sample(3.0, at=0.1)
    assert ewma.value == 3.0
