import pytest

from gateway.admission.events import Arrived, Capacity, Demand, EndpointDown, EndpointUp, Observed
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.endpoints import Endpoints
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.request_lifecycle import Trigger
from gateway.admission.policy import Band, Bounds, Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.queueing.queue import OfferResult, Queue
from gateway.admission.queueing.waits import Waits
from gateway.admission.tuning import TUNING

POLICY = Policy(
    bounds=Bounds.HYSTERESIS,
    ttl=60.0,
    no_endpoint_ttl=30.0,
    ttft_target=5.0,
    bands={1: Band(ttft_target=2.0)},
    max_requests=3,
    max_bytes=100,
)


class Pool:
    """Waits of a pool, and what they are made of."""

    def __init__(self, policy=POLICY, *, endpoint=True):
        self.predictor = Predictor()
        self.endpoints = Endpoints(policy, self.predictor)
        self.queue = Queue(bands=policy.bands, weights={}, max_passes=policy.max_passes)
        self.waits = Waits(policy, self.endpoints, self.queue)
        if endpoint:
            self.endpoints.apply(EndpointUp("a", Capacity(10_000, 100)), 0.0)

    def request(self, prompt=100, cost=100.0, now=0.0, **settings):
        arrival = Arrived(1, Demand((prompt,), 10), **settings)
        made = RequestRecord(arrival, now, self.predictor.kind(arrival))
        made.cost = cost
        made.queue_budget = self.waits.queue_budget(made)
        made.lane = self.endpoints.lane(made)
        return made

    def push(self, **settings):
        """Let one wait."""
        waiting = self.request(**settings)
        waiting.apply(Trigger.ARRIVED)
        waiting.deadline = self.waits.deadline(waiting)
        self.queue.push(waiting, waiting.lane)
        return waiting

    def drain(self, rate=100.0, seconds=5):
        """Until now, so much service was done in each second."""
        for second in range(seconds):
            self.waits.drain_rate.pressed(float(second))
            self.waits.drain_rate.completed(rate, second + 0.5)
        return seconds - 0.0

    def generating(self):
        """With a request in flight, to which the engine gave 20 tokens in each of 3 seconds."""
        endpoint = self.endpoints.get("a")
        endpoint.reserve(self.request(100), 0.0)
        for second in (1, 2, 3):
            endpoint.observe(Observed("a", float(second), 0.1, 1, 0, 20.0 * second), float(second))
        return self

    def prefill(self, seconds, tokens):
        self.endpoints.get("a").prefill.learn(seconds, tokens)


@pytest.mark.parametrize(
    ("settings", "target"),
    [({}, 5.0), ({"band": 1}, 2.0), ({"band": 7}, 5.0), ({"band": 1, "ttft_target": 9.0}, 9.0)],
)
def test_the_target_is_the_clients_else_its_bands_else_everybodys(settings, target):
    pool = Pool()
    assert pool.waits.target(pool.request(**settings)) == target


def test_prefill_is_that_of_the_endpoint_where_it_is_soonest():
    pool = Pool()
    assert pool.waits.prefill(pool.request()) == 0.0
    pool.prefill(2.0, 100)
    assert pool.waits.prefill(pool.request(50)) == 1.0
    pool.endpoints.apply(EndpointUp("b", Capacity(10_000, 100)), 0.0)
    pool.endpoints.get("b").prefill.learn(1.0, 100)
    assert pool.waits.prefill(pool.request(50)) == 0.5


def test_a_first_token_comes_after_the_prompts_that_wait_in_the_engine():
    pool = Pool()
    endpoint = pool.endpoints.get("a")
    pool.prefill(2.0, 100)
    endpoint.reserve(pool.request(150), 0.0)
    for tenth in range(1, 21):
        endpoint.ledger.begins.pressed(tenth / 10)
        endpoint.ledger.begins.completed(10, tenth / 10)
    assert pool.waits.prefill(pool.request(50)) == 1.0
    endpoint.observe(Observed("a", 2.0, 0.1, 1, 1, 5.0), 2.0)
    assert pool.waits.prefill(pool.request(50)) == pytest.approx(1.0 + 1.5, rel=0.1)


def test_the_queue_budget_is_the_target_less_the_prefill():
    pool = Pool()
    pool.prefill(2.0, 100)
    assert pool.waits.queue_budget(pool.request(100)) == 3.0


def test_a_long_prompt_may_still_wait_for_half_of_the_target():
    pool = Pool()
    pool.prefill(2.0, 100)
    assert pool.waits.queue_budget(pool.request(1000)) == 2.5


@pytest.mark.parametrize("target", [None, 500.0])
def test_nobody_waits_longer_than_the_time_to_live(target):
    pool = Pool(Policy(ttft_target=target))
    assert pool.waits.queue_budget(pool.request(100)) == 60.0


def test_the_deadline_counts_from_the_arrival_or_from_when_the_pool_came_up():
    pool = Pool(endpoint=False)
    early, late = pool.request(now=10.0), pool.request(now=40.0)
    assert pool.waits.deadline(early) == 40.0
    pool.endpoints.apply(EndpointUp("a", Capacity(10_000, 100)), 20.0)
    assert (pool.waits.deadline(early), pool.waits.deadline(late)) == (25.0, 45.0)
    pool.endpoints.apply(EndpointDown("a", "killed"), 23.0)
    assert pool.waits.deadline(early) == 53.0


def test_it_is_never_later_than_both_times_to_live():
    pool = Pool(endpoint=False)
    waiting = pool.request(now=0.0)
    pool.endpoints.apply(EndpointUp("a", Capacity(10_000, 100)), 89.0)
    assert pool.waits.deadline(waiting) == 90.0


def test_how_one_ends_whose_deadline_passed():
    pool = Pool(endpoint=False)
    assert pool.waits.overdue(pool.request()) is Outcome.NO_ENDPOINT
    pool.endpoints.apply(EndpointUp("a", Capacity(10_000, 100)), 0.0)
    assert pool.waits.overdue(pool.request()) is Outcome.WAIT_TOO_LONG
    assert pool.waits.overdue(pool.request(ttft_target=1000.0)) is Outcome.QUEUE_TIMEOUT


class TestPredicted:
    def test_nobody_knows_before_anything_was_measured(self):
        pool = Pool()
        pool.push()
        assert pool.waits.predicted(pool.request(), 0.0) is None
        assert not pool.waits.in_vain(pool.request(), 0.0)

    def test_it_is_what_goes_before_over_the_rate(self):
        pool = Pool()
        now = pool.drain(100.0)
        rate = pool.waits.rate(now)
        assert rate == pytest.approx(100.0, rel=0.1)
        assert pool.waits.predicted(pool.request(), now) == 0.0
        pool.push(cost=300.0)
        assert pool.waits.predicted(pool.request(), now) == pytest.approx(300 / rate)

    def test_one_that_waits_is_not_before_itself(self):
        pool = Pool()
        now = pool.drain(100.0)
        pool.push(cost=300.0)
        last = pool.push(cost=50.0)
        assert pool.waits.predicted(last, now) == pytest.approx(300 / pool.waits.rate(now))

    def test_another_flow_is_before_it_only_as_far_as_is_fair(self):
        pool = Pool()
        now = pool.drain(100.0)
        for _ in range(20):
            pool.push(cost=100.0, flow="noisy")
        wait = pool.waits.predicted(pool.request(flow="quiet"), now)
        assert wait <= 200 / pool.waits.rate(now) < pool.waits.predicted(pool.request(flow="noisy"), now) / 9

    def test_what_must_become_free_for_it_is_before_it_too(self):
        pool = Pool()
        now = pool.drain(100.0)
        endpoint = pool.endpoints.get("a")
        endpoint.reserve(pool.request(50 * 16 - 1), now)
        assert pool.waits.predicted(pool.request(40 * 16 - 1), now) == 0.0
        wait = pool.waits.predicted(pool.request(45 * 16 - 1), now)  # 95 of 90 blocks
        assert wait == pytest.approx(5 * 16 / pool.waits.rate(now))

    def test_in_vain_is_what_is_surely_too_long(self):
        pool = Pool()
        now = pool.drain(100.0)
        rate = pool.waits.rate(now)
        pool.push(cost=5.0 * rate * TUNING.sure_multiple - 1)
        assert not pool.waits.in_vain(pool.request(), now)
        pool.push(cost=2.0)
        assert pool.waits.in_vain(pool.request(), now)
        assert not pool.waits.in_vain(pool.request(ttft_target=6.0), now)

    def test_nothing_is_in_vain_that_may_be_backfilled(self):
        pool = Pool()
        now = pool.drain(100.0)
        pool.push(prompt=100, cost=3000.0)
        small = pool.request(prompt=99)
        assert pool.waits.in_vain(small, now)
        pool.queue.offer(lambda _: OfferResult.NO_ROOM)
        assert not pool.waits.in_vain(small, now)
        assert pool.waits.in_vain(pool.request(prompt=100), now)

    def test_nothing_is_in_vain_beside_those_who_wait_for_a_longer_endpoint(self):
        pool = Pool()
        now = pool.drain(100.0)
        pool.endpoints.apply(EndpointUp("long", Capacity(20_000, 2000)), now)
        pool.push(prompt=11_000, cost=3000.0)
        assert pool.waits.in_vain(pool.request(), now)
        pool.endpoints.apply(EndpointDown("long", "killed"), now)
        assert not pool.waits.in_vain(pool.request(), now)

    def test_nothing_is_in_vain_without_a_target_or_an_endpoint(self):
        for pool in (Pool(Policy(ttft_target=None)), Pool()):
            now = pool.drain(100.0)
            pool.push(cost=1e6)
            pool.endpoints.apply(EndpointDown("a", "killed"), now)
            assert not pool.waits.in_vain(pool.request(), now)
        pool = Pool(Policy(ttft_target=None))
        now = pool.drain(100.0)
        pool.push(cost=1e6)
        assert not pool.waits.in_vain(pool.request(), now)

    def test_asking_leaves_no_trace(self):
        pool = Pool()
        now = pool.drain(100.0)
        pool.push(cost=300.0)
        asked = [(pool.waits.rate(now), pool.waits.predicted(pool.request(), now + after)) for after in (9, 0, 9, 0)]
        assert asked[:2] == asked[2:]


class TestRate:
    def test_unmeasured_it_is_what_those_in_flight_take(self):
        pool = Pool()
        endpoint = pool.endpoints.get("a")
        endpoint.reserve(pool.request(100), 0.0)
        assert pool.waits.rate(0.0) is None
        for second in (1, 2, 3):
            endpoint.observe(Observed("a", float(second), 0.1, 1, 0, 20.0 * second), float(second))
        assert pool.waits.rate(3.0) == pytest.approx(20 * (100 + 2 * 10) / 10)

    def test_measured_under_pressure_it_goes_by_that(self):
        pool = Pool().generating()
        assert pool.waits.rate(pool.drain(50.0)) == pytest.approx(50, rel=0.1)

    def test_while_hardly_anything_completes_it_is_what_is_generated(self):
        pool = Pool().generating()
        assert pool.waits.rate(pool.drain(5.0)) == pytest.approx(40)
        assert pool.waits.rate(10.0) == pytest.approx(5, rel=0.1)  # an engine that tells nothing any more

    def test_what_an_engine_that_froze_seems_to_generate_is_no_rate(self):
        pool = Pool()
        endpoint = pool.endpoints.get("a")
        endpoint.reserve(pool.request(100), 0.0)
        for second in range(1, 60):
            endpoint.observe(Observed("a", float(second), 0.1, 1, 0, 20.0 * min(second, 3)), float(second))
            pool.waits.drain_rate.pressed(float(second))
        assert 0 < endpoint.generation_rate(59.0) < 1
        assert pool.waits.rate(59.0) == 0


def test_a_queue_is_full_by_requests_or_by_bytes():
    pool = Pool()
    pool.push(body_bytes=40)
    last = pool.push(body_bytes=40)
    assert not pool.waits.full_with(last)
    assert not pool.waits.full_with(pool.request(body_bytes=20))
    assert pool.waits.full_with(pool.request(body_bytes=21))
    pool.push()
    assert pool.waits.full_with(pool.request())
    last = pool.push()
    assert pool.waits.full_with(last)
