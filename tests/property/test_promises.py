"""What holds of promises whatever is refused, whoever comes back, and when."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.outcomes import Outcome
from gateway.admission.queueing.jitter import FLOOR
from gateway.admission.queueing.promises import Pressure
from gateway.admission.tuning import TUNING
from tests.unit.admission.queueing.test_promises import Refusals

RATE, WAIT = 100.0, 3.0
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 7.0, 40.0]),  # seconds since the last step
        st.sampled_from(["refuse", "refuse", "refuse", "return", "give up"]),
        st.integers(1, 6),  # the body
        st.sampled_from(["", "a", "heavy"]),
        st.sampled_from([0, 0, 1]),  # the band
        st.sampled_from([1.0, 100.0, 700.0, 3000.0]),  # tokens of service
    ),
    max_size=60,
)


class Story:
    """Promises as they are told, and what they should be."""

    def __init__(self):
        self.refusals, self.now = Refusals(heavy=3.0), 0.0
        self.open, self.waiting, self.returned = [], [], []

    def tell(self, step):
        elapsed, what, body, flow, band, cost = step
        self.now += elapsed
        promises, fingerprint = self.refusals.promises, hash((body, flow, band)) & 0xFFFF or 1
        self.open = [promise for promise in self.open if promise.until >= self.now]
        if what == "give up":
            if self.waiting:
                promises.end(self.waiting.pop())
        elif what == "refuse":
            request = self.refusals.request(fingerprint, cost=cost, flow=flow, band=band)
            promises.expire(self.now)
            asked = promises.moment(request, Pressure(WAIT, RATE, 1.0), self.now)
            due = promises.grant(request, Outcome.QUEUE_FULL, Pressure(WAIT, RATE, 1.0), self.now)
            assert asked == due
            if due is not None:
                assert self.now + FLOOR <= due <= self.now + TUNING.promise_horizon
                self.open.append(max(promises._by_fingerprint[fingerprint], key=lambda promise: promise.order))
        elif (promise := promises.find(fingerprint, self.now)) is not None:
            assert promise in self.open
            assert promise.due == min(other.due for other in self.open if other.fingerprint == fingerprint)
            promises.use(promise, self.now)
            self.open.remove(promise)
            self.waiting.append(promise)
            self.returned.append(promise.order)
        else:
            assert not any(other.fingerprint == fingerprint for other in self.open)


@settings(max_examples=300)
@given(STEPS)
def test_each_is_used_once_and_all_is_accounted_for(steps):
    story = Story()
    for step in steps:
        story.tell(step)
        promises = story.refusals.promises
        alive = [promise for alike in promises._by_fingerprint.values() for promise in alike]
        assert len(promises) == len(alive) >= len(story.open)
        assert set(story.open) <= set(alive)
        for (band, flow), clock in promises._flows.items():
            owed = sum(p.cost for p in (*alive, *story.waiting) if (p.band, p.flow) == (band, flow))
            assert abs(clock.owed - owed) < 1e-3
    assert len(set(story.returned)) == len(story.returned)
    for promise in story.waiting:
        story.refusals.promises.end(promise)
    promises = story.refusals.promises
    promises.expire(story.now + 1000.0)
    assert [*promises._by_fingerprint, *promises._flows, *promises._bands] == []


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, 2.5]), st.floats(1.0, 2000.0)), max_size=80))
def test_one_flow_is_never_promised_more_than_drains(refused):
    """Between the moments of two of its promises, what was promised in between drains."""
    refusals, now, given_ = Refusals(), 0.0, []
    for key, (elapsed, cost) in enumerate(refused, 1):
        now += elapsed
        due = refusals.refuse(key, cost=cost, now=now, wait=WAIT, rate=RATE)
        if due is not None:
            given_.append((due, cost))
    for (due, cost), (following, _) in pairwise(given_):
        assert following - due >= cost / RATE - 1e-6
    assert sum(cost for due, cost in given_ if due > now + TUNING.promise_lead) <= RATE * TUNING.promise_horizon
