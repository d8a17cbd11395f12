"""What holds of the queue whatever happens, in whatever order; costs are tokens of service."""

from collections import defaultdict
from math import inf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.admission.events import EndpointId
from gateway.admission.placing.request import Charge, LaneKey, RequestRecord
from gateway.admission.policy import Band
from gateway.admission.queueing.band_queue import MANY
from gateway.admission.queueing.queue import OfferResult, Queue
from gateway.admission.tuning import TUNING
from tests.fakes.waiting import waiting

LANE: LaneKey = (1, frozenset(), None, None)
LANES: tuple[LaneKey, ...] = (LANE, (2, frozenset(), None, None), (1, frozenset({EndpointId("a")}), None, None))
FLOWS = ("", "a", "b", "c")
WEIGHTS = {"a": 2.0, "b": 0.5}
BANDS = {1: Band(reserved=0.25)}
MAX_PASSES = 3
COSTS = st.integers(1, 40)


def ended(queue, request):
    """It goes, and has taken what was expected."""
    queue.settle(request, queue.charge(request), request.cost, inf)


class Machine(RuleBasedStateMachine):
    """A queue, its twin that is told the same, and what waits in it."""

    def __init__(self):
        super().__init__()
        self.queues = [Queue(bands=BANDS, weights=WEIGHTS, max_passes=MAX_PASSES) for _ in range(2)]
        self.waiting: dict[int, list[RequestRecord]] = {}
        self.gone: list[list[RequestRecord]] = []
        self.names = 0

    @rule(
        flow=st.sampled_from(FLOWS),
        band=st.integers(0, 2),
        lane=st.sampled_from(LANES),
        cost=COSTS,
        size=st.integers(1, 5),
        deadline=st.integers(0, 9),
    )
    def push(self, *, flow, band, lane, cost, size, deadline):
        self.names += 1
        both = [
            waiting(self.names, flow=flow, band=band, cost=cost, size=size, deadline=deadline, body_bytes=cost)
            for _ in self.queues
        ]
        for queue, request in zip(self.queues, both, strict=True):
            queue.push(request, lane)
        self.waiting[self.names] = both
        may = [queue.may_go(request) for queue, request in zip(self.queues, both, strict=True)]
        assert may[0] == may[1]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        both = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        for queue, request in zip(self.queues, both, strict=True):
            queue.remove(request)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), lane=st.sampled_from(LANES))
    def come_back(self, data, lane):
        both = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        for queue, request in zip(self.queues, both, strict=True):
            queue.settle(request, Charge(0.0), 0.0, inf)
            queue.push(request, lane)
        self.waiting[both[0].arrival.request] = both

    @rule(flow=st.sampled_from(FLOWS), band=st.integers(0, 2), delta=st.integers(-60, 60))
    def settle(self, flow, band, delta):
        for queue in self.queues:
            if band in queue._bands:
                queue._bands[band].settle(flow, delta)

    @rule(
        room=st.integers(0, 12),
        charged_first=st.booleans(),
        closed=st.sets(st.sampled_from(LANES), max_size=1),
        held=st.sets(st.sampled_from(FLOWS)),
    )
    def offer(self, room, charged_first, closed, held):
        """A pool with so much room: whoever is larger does not fit; and some flows are throttled."""
        logs = [self.offered(queue, room, charged_first, closed, held) for queue in self.queues]
        assert logs[0] == logs[1], "same events, others asked"
        for name, answer in logs[0]:
            if answer is OfferResult.TAKEN:
                self.gone.append(self.waiting.pop(name))

    def offered(self, queue, room, charged_first, closed, held=frozenset()):
        log = []
        aside = set()
        heads = {}
        before = list(queue)

        def accept(request):
            nonlocal room
            stands = (request.arrival.band, request.lane)
            assert (stands, request.arrival.flow) not in aside, "asked after its flow was set aside"
            answer = OfferResult.TAKEN if request.size <= room else OfferResult.NO_ROOM
            if request.arrival.flow in held:
                answer = OfferResult.NOT_ITS_FLOW
            if request.lane in closed:
                answer = OfferResult.CLOSED
            if stands in heads:
                head, asked, over = heads[stands]
                assert not over, "asked after its lane had ended"
                assert request.size < head.size, "passed by one that is not smaller"
                assert head.backfilled < MAX_PASSES
                assert asked < TUNING.backfill_tries
                heads[stands] = (head, asked + 1, answer is OfferResult.CLOSED)
            elif answer is OfferResult.NOT_ITS_FLOW:
                aside.add((stands, request.arrival.flow))
            elif answer is not OfferResult.TAKEN:
                heads[stands] = (request, 0, answer is OfferResult.CLOSED)
            log.append((request.arrival.request, answer))
            if answer is OfferResult.TAKEN:
                room -= request.size
                if charged_first:
                    ended(queue, request)
                queue.remove(request)
                if not charged_first:
                    ended(queue, request)
            return answer

        queue.offer(accept)
        assert len({name for name, _ in log}) == len(log), "asked twice"
        asked = {(r.arrival.band, r.lane) for r in before if r.arrival.request in {name for name, _ in log}}
        assert asked == {(r.arrival.band, r.lane) for r in before}, "a lane was not asked"
        return log

    @rule(shift=st.integers(0, 2))
    def relane(self, shift):
        for queue in self.queues:
            queue.relane(lambda request: LANES[(request.arrival.request + shift) % len(LANES)])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), deadline=st.integers(0, 9))
    def reschedule(self, data, deadline):
        both = self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))]
        for queue, request in zip(self.queues, both, strict=True):
            request.deadline = deadline
            queue.reschedule()

    @invariant()
    def sums_are_over_those_who_wait(self):
        queue = self.queues[0]
        waiting = [both[0] for both in self.waiting.values()]
        assert {id(request) for request in queue} == {id(request) for request in waiting}
        assert queue.depth == len(waiting) == len(list(queue))
        assert queue.bytes == sum(request.arrival.body_bytes for request in waiting)
        assert queue.cost == sum(request.cost for request in waiting)
        assert queue.flows == len({(r.arrival.band, r.arrival.flow) for r in waiting})
        assert queue.bands == tuple(sorted({r.arrival.band for r in waiting}))
        for band in range(3):
            assert queue.depth_of(band) == sum(r.arrival.band == band for r in waiting)

    @invariant()
    def the_first_deadline_is_the_least(self):
        first = self.queues[0].first_deadline()
        waiting = [both[0] for both in self.waiting.values()]
        assert (None if first is None else first.deadline) == min((r.deadline for r in waiting), default=None)

    @invariant()
    def nobody_is_passed_too_often(self):
        assert all(both[0].backfilled <= MAX_PASSES for both in self.waiting.values())

    def teardown(self):
        """With room for all, all go, each once."""
        log = self.offered(self.queues[0], 10**9, charged_first=False, closed=set())
        assert sorted(name for name, _ in log) == sorted(self.waiting)
        assert self.queues[0].depth == self.queues[0].cost == self.queues[0].bytes == 0


Machine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
TestQueue = Machine.TestCase


def go(queue, count=1):
    """The next so many that go, with room for all of them."""
    went = []

    def accept(request):
        if len(went) == count:
            return OfferResult.CLOSED
        queue.remove(request)
        ended(queue, request)
        went.append(request)
        return OfferResult.TAKEN

    queue.offer(accept)
    return went


class Crowd:
    """Requests that wait, by name."""

    def __init__(self, **of):
        self.queue = Queue(**{"bands": {}, "weights": {}, "max_passes": 0, **of})
        self.names = 0

    def join(self, **of):
        self.names += 1
        request = waiting(self.names, **of)
        self.queue.push(request, LANE)
        return request


@given(data=st.data(), weights=st.tuples(*[st.sampled_from([0.5, 1.0, 3.0])] * 2), others=st.integers(0, 2))
@settings(max_examples=100)
def test_flows_that_wait_all_the_time_get_service_by_their_weights(data, weights, others):
    """VTC's bound: at no time do two differ by more than twice the largest cost, over the weight."""
    pair = dict(zip("xy", weights, strict=True))
    crowd = Crowd(weights=pair)
    served = dict.fromkeys(pair, 0.0)
    for flow in pair:
        crowd.join(flow=flow, cost=data.draw(COSTS))
        crowd.join(flow=flow, cost=data.draw(COSTS))
    for step in range(60):
        if others and step % 7 == 0:  # others come and go
            for number in range(others):
                crowd.join(flow=f"{step}-{number}", cost=data.draw(COSTS))
        (request,) = go(crowd.queue)
        flow = request.arrival.flow
        if flow in pair:
            served[flow] += request.cost / pair[flow]
            crowd.join(flow=flow, cost=data.draw(COSTS))
        assert abs(served["x"] - served["y"]) <= 2 * 40 / min(weights)


@given(data=st.data(), flows=st.integers(2, 5), in_flight=st.integers(1, 6))
@settings(max_examples=60)
def test_what_was_really_used_is_shared_fairly(data, flows, in_flight):
    """Each is charged a guess when it goes and settled when it ends; what flows really used differs by a bound."""
    crowd = Crowd()
    names = [f"f{number}" for number in range(flows)]
    factor = {name: data.draw(st.sampled_from([0.25, 1.0, 2.0])) for name in names}  # how wrong guesses are
    used = dict.fromkeys(names, 0.0)
    flying = []
    for name in names * 2:
        crowd.join(flow=name, cost=data.draw(COSTS))
    for _ in range(150):
        (request,) = go(crowd.queue)
        flying.append(request)
        crowd.join(flow=request.arrival.flow, cost=data.draw(COSTS))
        if len(flying) > in_flight:
            first = flying.pop(0)
            used[first.arrival.flow] += first.cost * factor[first.arrival.flow]
            crowd.queue.settle(first, Charge(0.0), first.cost * factor[first.arrival.flow], inf)
    assert max(used.values()) - min(used.values()) <= 2 * 80 * (in_flight + 1)


@given(
    reserved=st.lists(st.sampled_from([0.0, 0.1, 0.3]), min_size=2, max_size=3),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_reserved_share_is_held_while_somebody_waits(reserved, data):
    bands = {number + 1: Band(reserved=share) for number, share in enumerate(reserved)}
    crowd = Crowd(bands=bands)
    service = defaultdict(float)
    for band in (0, *bands):
        crowd.join(band=band, cost=data.draw(COSTS))
        crowd.join(band=band, cost=data.draw(COSTS))
    for _ in range(200):
        (request,) = go(crowd.queue)
        band = request.arrival.band
        service[band] += request.cost
        crowd.join(band=band, cost=data.draw(COSTS))
        total = sum(service.values())
        for number, settings_of in bands.items():
            assert service[number] >= max(settings_of.reserved, TUNING.starved_share) * total - 3 * 40
    assert service[0] >= (1 - sum(max(share, TUNING.starved_share) for share in reserved)) * total - 3 * 40


@given(
    data=st.data(),
    band=st.integers(0, 3),
    debt=st.integers(0, 200),
    size=st.sampled_from([1, 9]),
    depth=st.integers(1, 8),
)
@settings(max_examples=100)
def test_nobody_starves(data, band, debt, size, depth):
    """Whatever comes, in more urgent bands and from ever new flows, who stays is served.

    The service given to others meanwhile is bounded by what its band waits for (its share of all service must pay
    for it), and in its band by what each flow gets until its debt is made good.
    """
    crowd = Crowd(max_passes=2)
    crowd.queue.push(waiting(10**6, flow="other", band=band, cost=1), LANE)
    victim = crowd.join(flow="victim", band=band, cost=20, size=size)
    crowd.queue._bands[band].settle("victim", debt)
    given_to_others = 0.0
    flows = depth + 3
    in_band = (debt + 2 * 40) * flows + 4 * 40 * flows
    bound = in_band if band == 0 else (in_band + 20) / TUNING.starved_share + 10 * 40 / TUNING.starved_share
    for step in range(10**6):
        for number in range(depth if not step else 1):
            urgent = data.draw(st.booleans()) if step < 20 else (step + number) % 2
            crowd.join(flow=f"{step}-{number}", band=0 if urgent else band, cost=data.draw(COSTS) if step < 20 else 40)
        while crowd.queue.depth > depth + 2:  # as many wait as before: more than that is refused
            last = max(crowd.queue, key=lambda request: (request is not victim, request.order))
            crowd.queue.remove(last)
        (request,) = go(crowd.queue)
        if request is victim:
            break
        given_to_others += request.cost
        assert given_to_others <= bound


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), room=st.integers(9, 20))
def test_one_that_does_not_fit_gets_its_turn_among_smaller_ones(sizes, room):
    """Small ones keep coming and ending; the large one is passed so often and then waited for."""
    crowd = Crowd(max_passes=MAX_PASSES)
    large = crowd.join(size=9, flow="large")
    flying = [(4, 1)] * (room // 4)  # the pool is full of others: (size, ends at)
    step = 0

    def accept(request):
        if sum(size for size, _ in flying) + request.size > room:
            return OfferResult.NO_ROOM
        flying.append((request.size, step + 5))
        crowd.queue.remove(request)
        crowd.queue.charge(request)
        return OfferResult.TAKEN

    for step in range(200):
        crowd.join(size=min(8, sizes[step % len(sizes)]), flow=f"f{step % 3}")
        flying[:] = [(size, ends) for size, ends in flying if ends > step]
        crowd.queue.offer(accept)
        if not large.ticket:
            return
    raise AssertionError("it waits for ever")


def replay(pushes, served, newcomer):
    """What is told to be ahead of a newcomer, and what really goes before it."""
    queues = []
    for _ in range(2):
        queue = Queue(bands={}, weights={"f0": 2.0, "f1": 0.25}, max_passes=0)
        for number, (flow, cost) in enumerate(pushes):
            queue.push(waiting(number, flow=f"f{flow}", cost=cost), LANE)
            if number in served:
                go(queue)
        queues.append(queue)
    told = queues[0].ahead(0, newcomer, LANE)
    request = waiting(-1, flow=newcomer, cost=1)
    queues[1].push(request, LANE)
    went = go(queues[1], queues[1].depth)
    return told, sum(other.cost for other in went[: went.index(request)])


@given(
    pushes=st.lists(st.tuples(st.integers(0, 5), COSTS), max_size=40),
    served=st.sets(st.integers(0, 40)),
    newcomer=st.sampled_from(["f0", "f1", "f2", "new"]),
)
@settings(max_examples=300)
def test_never_more_goes_before_a_newcomer_than_was_told(pushes, served, newcomer):
    told, truth = replay(pushes, served, newcomer)
    assert told.same >= truth - 1e-6
    assert told.same <= truth + 40 * 6, "by no more than one of each flow"
    assert told.urgent == told.yielded == 0


@given(
    costs=st.lists(COSTS, max_size=30), served=st.sets(st.integers(0, 30)), newcomer=st.sampled_from(["f0", "f1", "x"])
)
@settings(max_examples=200)
def test_what_is_told_to_be_ahead_is_exact_where_each_flow_has_one(costs, served, newcomer):
    told, truth = replay([(flow, cost) for flow, cost in enumerate(costs)], served, newcomer)
    assert abs(told.same - truth) <= 1e-6


@given(pushes=st.lists(COSTS, min_size=1, max_size=30), served=st.sets(st.integers(0, 30)))
def test_what_is_told_to_be_ahead_is_exact_in_one_flow(pushes, served):
    told, truth = replay([(2, cost) for cost in pushes], served, "f2")
    assert abs(told.same - truth) <= 1e-6


@given(
    pushes=st.lists(st.tuples(st.integers(0, 4 * MANY), COSTS), min_size=3 * MANY, max_size=6 * MANY),
    newcomer=st.sampled_from(["f0", "f1", "f2", "new"]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.large_base_example, HealthCheck.too_slow])
def test_among_many_flows_no_less_is_told_than_goes(pushes, newcomer):
    told, truth = replay(pushes, set(range(0, len(pushes), 5)), newcomer)
    assert told.same >= truth - 1e-6
