from itertools import pairwise

from gateway.admission.queueing.jitter import CAP, FLOOR, Jitter
from gateway.admission.tuning import TUNING


def test_it_keeps_to_its_bounds():
    jitter = Jitter()
    assert all(FLOOR <= jitter.after(-3.0) <= FLOOR * 1.25 for _ in range(100))
    assert all(CAP / 1.25 <= jitter.after(1e6) <= CAP for _ in range(100))


def test_unknown_is_a_few_seconds():
    assert TUNING.retry_unknown <= Jitter().after(None) <= TUNING.retry_unknown * 1.25


def test_those_refused_together_are_spread_evenly():
    jitter = Jitter()
    times = sorted(jitter.after(10.0) for _ in range(100))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] >= 10.0
    assert max(gaps) < 3 * (times[-1] - times[0]) / len(gaps)
