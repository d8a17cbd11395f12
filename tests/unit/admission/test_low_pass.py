from math import exp

import pytest

from gateway.admission.low_pass import LowPass


def test_the_first_sample_counts_whole():
    low_pass = LowPass(2.0)
    low_pass.sample(8.0, at=100.0)
    assert low_pass.value == 8.0


def test_a_step_shows_to_63_percent_after_the_time_constant_however_often_it_is_sampled():
    once, often = LowPass(2.0), LowPass(2.0)
    once.sample(0.0, at=0.0)
    often.sample(0.0, at=0.0)
    once.sample(1.0, at=2.0)
    for step in range(1, 21):
        often.sample(1.0, at=step / 10)
    assert once.value == pytest.approx(1 - exp(-1))
    assert often.value == pytest.approx(1 - exp(-1))


def test_after_a_reset_it_starts_over():
    low_pass = LowPass(2.0)
    low_pass.sample(8.0, at=0.0)
    low_pass.reset()
    assert low_pass.value == 0.0
    low_pass.sample(3.0, at=0.1)
    assert low_pass.value == 3.0
