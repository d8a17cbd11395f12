from itertools import pairwise

import pytest

from gateway.admission.events import Arrived, Capacity, Demand
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.policy import Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.tuning import TUNING

BLOCK = 16
PREFIX = ((32, 1), (64, 2))
LATER = 10.0


class Pool:
    """One endpoint, and its outlook in tokens."""

    def __init__(self):
        self.predictor = Predictor()
        self.endpoint = EndpointRecord("a", Capacity(10_000, 1000, BLOCK), Policy(), self.predictor)
        self.outlook = self.endpoint.outlook

    def send(self, prompt=79, max_tokens=101, prefix=(), now=LATER):
        """79 tokens and the first fill 5 blocks, and cold 100 more are expected."""
        arrival = Arrived(1, Demand((prompt,), max_tokens), prefix=prefix)
        return self.endpoint.reserve(RequestRecord(arrival, now, self.predictor.kind(arrival)), now)

    def learn(self, length, times=1, max_tokens=500):
        """Of requests like those that are sent with so many."""
        kind = self.predictor.kind(Arrived(1, Demand((79,), max_tokens)))
        for _ in range(times):
            self.predictor.learn(kind, length, max_tokens)

    def leave(self, reservation, now=LATER):
        self.endpoint.release(reservation, None, now, aborted=False)

    def peak(self, now=LATER):
        """After the forecast was made anew, where that is due."""
        self.endpoint.refresh_forecast(now)
        return self.outlook.peak


@pytest.fixture
def pool():
    return Pool()


def test_an_empty_endpoint_comes_to_nothing(pool):
    assert pool.peak() == 0
    assert pool.outlook.peak_with((100, 80, 1)) == 180


def test_one_comes_to_what_it_holds_at_its_end(pool):
    pool.send()
    assert pool.peak() == pool.peak(LATER + 1) == 80 + 100


def test_a_new_request_counts_in_full_until_the_next_forecast(pool):
    pool.send(max_tokens=1)
    pool.peak()
    pool.send(max_tokens=101)
    assert pool.peak() == 80 + 180
    later = LATER + 2 * TUNING.forecast_age_per_request
    assert pool.peak(later) == max(80 + 80, 180)  # the first ends before the second grows


def test_a_request_that_left_counts_until_the_next_forecast(pool):
    one, _ = pool.send(), pool.send()
    pool.peak()
    pool.leave(one)
    assert pool.peak() == 2 * 180
    assert pool.peak(LATER + 1.5 * TUNING.forecast_age_per_request) == 180


def test_the_more_are_there_the_longer_it_holds(pool):
    for _ in range(20):
        pool.send()
    pool.peak()
    gone = pool.send()
    pool.leave(gone)
    assert pool.peak(LATER + 19 * TUNING.forecast_age_per_request) == 21 * 180
    assert pool.peak(LATER + 21 * TUNING.forecast_age_per_request) == 20 * 180


def test_it_is_made_anew_now_and_then_although_nobody_comes_or_goes(pool):
    one = pool.send()
    pool.peak(LATER + 1)
    pool.endpoint.ledger.progress(one, 500, LATER + 1)
    assert pool.peak(LATER + 1 + TUNING.forecast_age / 2) == 180
    assert pool.peak(LATER + 1 + TUNING.forecast_age) > 180


def test_those_that_go_on_do_not_change_it(pool):
    one, two = pool.send(), pool.send()
    pool.peak()
    before = pool.peak()
    for step in range(1, 81):
        pool.endpoint.ledger.progress(one, step, LATER)
        pool.endpoint.ledger.progress(two, step, LATER)
        assert pool.peak(LATER + 1) == pytest.approx(before, abs=2 * BLOCK)


def test_a_request_near_its_prediction_is_predicted_again(pool):
    pool.learn(450, times=30)
    one = pool.send(max_tokens=500)
    assert set(pool.outlook[one].lengths) == {450}
    pool.learn(480, times=60)
    pool.endpoint.ledger.progress(one, 200, LATER)
    pool.peak(LATER + 1)
    assert set(pool.outlook[one].lengths) == {450}
    pool.endpoint.ledger.progress(one, 400, LATER)
    pool.peak(LATER + 2)
    assert max(pool.outlook[one].lengths) == 480
    assert pool.outlook[one].review > 400


def test_those_in_flight_are_predicted_to_end_as_so_many_do(pool):
    """Of lengths from 1 to 100, a range from the middle on is predicted evenly, not one length for all."""
    for length in range(1, 101):
        pool.learn(length)
    pool.outlook.quantiles.fill(0.94)  # a lower end of 0.5
    lengths = sorted(length for _ in range(25) for length in pool.outlook[pool.send(max_tokens=500)].lengths)
    assert 50 <= lengths[0] <= 55
    assert 95 <= lengths[-1] <= 100
    assert all(later - earlier <= 5 for earlier, later in pairwise(lengths))


def test_one_of_few_counts_as_the_mean_of_what_it_may_come_to(pool):
    """Half of them end with 2 tokens, the others with 100: at the end of these, half of the request is there."""
    pool.learn(2, times=50)
    pool.learn(100, times=50)
    pool.outlook.quantiles.fill(0.0)  # free room is caution enough: the range begins at 0
    one = pool.send(max_tokens=500)
    assert pool.outlook[one].lengths == [2, 2, 100, 100]
    assert pool.peak(LATER + 1) == (80 + 99 + 1) / 2


def test_the_more_are_in_flight_the_fewer_predictions_each_has(pool):
    assert [len(pool.outlook[pool.send()].lengths) for _ in range(130)] == [4] * 64 + [2] * 64 + [1] * 2


def test_what_several_share_is_there_once(pool):
    for _ in range(3):
        pool.send(max_tokens=1, prefix=PREFIX)
    pool.peak(LATER + 1)
    assert pool.peak(LATER + 1) == 64 + 3 * 16


def test_one_that_shares_and_leaves_does_not_take_it_along(pool):
    one, _ = (pool.send(max_tokens=1, prefix=PREFIX) for _ in range(2))
    pool.peak(LATER + 1)
    pool.leave(one, LATER + 1)
    assert pool.peak(LATER + 1) >= 80
    assert pool.peak(LATER + 2) == 80


def test_one_that_comes_and_shares_with_one_that_goes_holds_it_all(pool):
    pool.send(max_tokens=101)
    one = pool.send(max_tokens=1, prefix=PREFIX)
    pool.peak(LATER + 1)
    pool.send(max_tokens=101, prefix=PREFIX, now=LATER + 1)
    pool.leave(one, LATER + 1)
    assert pool.peak(LATER + 1) >= pool.peak(LATER + 2) == 2 * (80 + 100)
