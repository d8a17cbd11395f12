import pytest

from gateway.admission.events import Arrived, Capacity, Demand, EndpointUp
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.request_lifecycle import Trigger
from gateway.admission.policy import Policy
from gateway.admission.pool import Pool
from gateway.admission.queueing.jitter import CAP

NOW = 5.0


@pytest.fixture
def pool():
    """A pool that drains 100 tokens of service a second, and in which 2000 wait."""
    pool = Pool(Policy(ttft_target=5.0))
    pool.endpoints.apply(EndpointUp("a", Capacity(10_000, 100)), 0.0)
    for second in range(5):
        pool.waits.drain_rate.pressed(float(second))
        pool.waits.drain_rate.completed(100.0, second + 0.5)
    waiting = request(pool, cost=2000.0)
    waiting.apply(Trigger.ARRIVED)
    pool.queue.push(waiting, waiting.lane)
    return pool


def request(pool, cost=100.0, key=0):
    arrival = Arrived(1, Demand((100,), 10), key=key)
    made = RequestRecord(arrival, 0.0, pool.predictor.kind(arrival))
    made.cost = cost
    made.queue_budget = pool.waits.queue_budget(made)
    made.lane = pool.lane(made)
    return made


def test_a_refused_request_comes_when_its_wait_would_fit_its_target(pool):
    wait = pool.waits.predicted(request(pool), NOW)
    assert pool.retry_after.until_turn(request(pool), Outcome.WAIT_TOO_LONG, NOW) == pytest.approx(wait - 5.0)
    assert pool.retry_after.until_turn(request(pool), Outcome.QUEUE_FULL, NOW) == pytest.approx(wait)


@pytest.mark.parametrize("outcome", [Outcome.DRAINING, Outcome.NO_ENDPOINT])
def test_nobody_can_tell_when_the_pool_itself_comes_back(pool, outcome):
    assert pool.retry_after.until_turn(request(pool), outcome, NOW) is None


def test_a_preview_is_the_time_that_is_then_granted_and_keeps_no_turn(pool):
    refused = request(pool, key=7)
    told = pool.retry_after.preview(refused, Outcome.QUEUE_FULL, NOW)
    assert pool.promises.find(7, NOW) is None
    assert pool.retry_after.grant(refused, Outcome.QUEUE_FULL, NOW) == told
    assert pool.promises.find(7, NOW).due == NOW + told


def test_who_comes_back_too_early_is_told_the_same_time(pool):
    pool.retry_after.grant(request(pool, key=7), Outcome.QUEUE_FULL, NOW)
    early = request(pool, key=7)
    early.promise = pool.promises.find(7, NOW + 1)
    assert pool.retry_after.preview(early, Outcome.QUEUE_FULL, NOW + 1) == early.promise.due - NOW - 1
    assert pool.retry_after.grant(early, Outcome.QUEUE_FULL, NOW + 1) == early.promise.due - NOW - 1


def test_without_a_fingerprint_the_time_is_jittered_and_within_a_minute(pool):
    request_of_nobody = request(pool)
    wait = pool.retry_after.until_turn(request_of_nobody, Outcome.QUEUE_FULL, NOW)
    granted = [pool.retry_after.grant(request_of_nobody, Outcome.QUEUE_FULL, NOW) for _ in range(20)]
    assert len(set(granted)) == 20
    assert all(wait <= time <= CAP for time in granted)
