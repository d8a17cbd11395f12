"""What holds of the admission core whatever happens, in whatever order."""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.commands import Dispatch, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    FRONT_BITS,
    Arrived,
    Back,
    Behind,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointUp,
    Finished,
    Observed,
    PolicyChanged,
    Prefix,
    Progress,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
    front_of,
)
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.policy import Band, Bounds, Policy
from gateway.admission.prediction.forecast import Forecast
from gateway.admission.tuning import TUNING

POLICY = Policy(ttl=10.0, no_endpoint_ttl=7.0, max_requests=5, max_bytes=4000, ttft_target=None, max_passes=0)
POLICIES = (
    replace(POLICY, bounds=Bounds.HYSTERESIS),
    POLICY,
    replace(POLICY, bounds=Bounds.HYSTERESIS, ttft_target=3.0),
    replace(POLICY, bounds=Bounds.FORECAST, ttft_target=3.0, max_passes=2),
    replace(POLICY, bounds=Bounds.FORECAST, max_passes=2, weights={"a": 3.0}),
    replace(POLICY, ttft_target=3.0, max_passes=2, bands={1: Band(ttft_target=1.0, reserved=0.3)}),
    replace(POLICY, ttft_target=3.0, max_passes=2, kv_shares={"a": 0.3, "b": 0.6}),
)
OTHERS = (*POLICIES, replace(POLICY, max_requests=2, ttl=4.0, kv_high=0.5, kv_low=0.3, weights={"b": 0.5}))
"""What the operator may change it to."""
TARGETS = (None, None, None, 0.5, 3.0, 30.0)
PREFIXES: tuple[Prefix, ...] = ((), (), ((32, 1), (64, 2)), ((32, 1), (96, 3)), ((32, 1),), ((64, 4),))
FLOWS = ("", "a", "b")
ENDPOINTS = ("a", "b", "c")
CAPACITIES = (
    Capacity(max_model_len=600, kv_blocks=40, block_size=16),
    Capacity(max_model_len=300, kv_blocks=40, block_size=16, max_num_seqs=4),
    Capacity(max_model_len=2000, kv_blocks=60, block_size=32, shares_prefix=False),
    Capacity(max_model_len=600, kv_blocks=None, block_size=16, max_num_seqs=3),
    Capacity(max_model_len=640, kv_blocks=640, block_size=1, max_num_seqs=4, shares_prefix=False, holds_limit=True),
)
LIMITED = ("", "cut", "refused over it", "refused")
"""What an endpoint that has no room for its output limit does with a request."""
STEPS = st.sampled_from([0.0, 0.001, 0.06, 0.4, 1.0, 3.0, 7.0])


def fits(demand: Demand, capacity: Capacity, length: int = 0) -> bool:
    """By the promise: the longest prompt and one token more, or this length, in length and in blocks."""
    need = max(max(demand.prompts) + 1, length)
    if need > capacity.max_model_len:
        return False
    return capacity.kv_blocks is None or math.ceil(need / capacity.block_size) <= capacity.kv_blocks


def room(endpoints) -> int:
    """Tokens of these endpoints' caches."""
    return sum((p.capacity.kv_blocks or 0) * p.capacity.block_size for p in endpoints)


def brute_force_blocks(demand: Demand, capacity: Capacity, generated: int) -> int:
    """Block by block, each named by who shares it."""
    blocks = set()
    for index, prompt in enumerate(demand.prompts):
        for sequence in range(demand.n):
            for start in range(0, prompt + generated, capacity.block_size):
                shared = capacity.shares_prefix and start + capacity.block_size < prompt
                blocks.add((index, None if shared else sequence, start))
    return len(blocks)


def most_held(rows, shared: int) -> int:
    """The tokens held after the step with the most, of `(weight, remaining, holds, sequences)` each: only counting."""
    steps = {remaining for _, remaining, _, _ in rows} | {0}
    held = (sum(weight * (h + step * grows) for weight, r, h, grows in rows if r >= step) for step in steps)
    return shared + math.ceil(max(held))


def sharing_saves(prefixes, block_size: int) -> int:
    """Blocks of these prompts' prefixes that are there already: each is named by the part it belongs to."""
    named = [
        (start, next(part for part in prefix if part[0] > start))
        for prefix in prefixes
        for start in range(0, prefix[-1][0] if prefix else 0, block_size)
    ]
    return len(named) - len(set(named))


@dataclass
class Known:
    """A request as the test knows it."""

    arrival: Arrived
    arrived_at: float
    """Or when its wait began anew, as an endpoint had it and did not answer."""
    early: bool = False
    """It was told to come back, and came before that."""
    told: tuple | None = None
    waiting: bool = True
    endpoint: str | None = None
    avoid: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    failures: int = 0
    seen: int = 0
    ends: int = 0
    behind: float | None = None
    """Since when its client is."""
    let_go: bool = False
    """It holds nothing any more, and its end is yet to come."""


@dataclass
class Pool:
    """An endpoint as the test knows it."""

    capacity: Capacity
    up: bool = True
    gone: bool = False
    sampled: list = field(default_factory=list)
    """The times of its scrapes, and whether each showed no request."""
    aborted: list = field(default_factory=list)


class Admission(RuleBasedStateMachine):
    """Random lives of requests and endpoints. Every event goes to two controllers, which must agree."""

    def __init__(self):
        super().__init__()
        self.policy = POLICY
        self.passes = 0
        self.controller = AdmissionController(POLICY)
        self.twin = AdmissionController(POLICY)
        self.arriving = 0
        self.now = 100.0
        self.known: dict[int, Known] = {}
        self.pool: dict[str, Pool] = {}
        self.unreached: dict[tuple[int, str], float] = {}
        """When a front may try an endpoint again that it could not connect to."""
        self.since = -math.inf
        self.wake_at = math.inf
        self.draining = False
        self.tokens = 0.0
        self.measured = False

    # What the test feeds

    @initialize(
        policy=st.sampled_from(POLICIES),
        capacities=st.lists(st.sampled_from(CAPACITIES), max_size=3),
        measured=st.booleans(),
    )
    def start(self, policy, capacities, measured):
        self.policy = policy
        self.passes = policy.max_passes
        self.controller, self.twin = AdmissionController(policy), AdmissionController(policy)
        self.measured = measured
        for name, capacity in zip(ENDPOINTS, capacities, strict=False):
            self.up(name, capacity)

    @rule(name=st.sampled_from(ENDPOINTS), capacity=st.sampled_from(CAPACITIES))
    def up(self, name, capacity):
        was = self.longest()
        if name in self.pool:
            known = self.pool[name]
            known.capacity, known.up, known.gone = capacity, True, False
        else:
            self.pool[name] = Pool(capacity)
        if was != self.longest():
            self.since = self.now
        self.unreached = {pair: until for pair, until in self.unreached.items() if pair[1] != name}
        self.feed(EndpointUp(name, capacity))

    @rule(name=st.sampled_from(ENDPOINTS), gone=st.booleans())
    def down(self, name, gone):
        was = self.longest()
        if name in self.pool:
            self.pool[name].up = False
            self.pool[name].gone |= gone
        if was != self.longest():
            self.since = self.now
        self.feed(EndpointGone(name) if gone else EndpointDown(name, "killed"))

    @rule(
        prompts=st.lists(st.one_of(st.integers(1, 100), st.integers(1, 700)), min_size=1, max_size=3),
        n=st.sampled_from([1, 1, 1, 2, 6]),
        max_tokens=st.integers(1, 400),
        limited=st.sampled_from(LIMITED),
        band=st.sampled_from([0, 0, 1, -5]),
        flow=st.sampled_from(FLOWS),
        body_bytes=st.integers(0, 2000),
        streamed=st.booleans(),
        ttft_target=st.sampled_from(TARGETS),
        prefix=st.sampled_from(PREFIXES),
        body=st.sampled_from([0, 0, 1, 2, 3]),
        asked=st.booleans(),
        waited=st.sampled_from([0.0, 0.0, 0.0, 0.5, 6.0, 20.0]),
        failures=st.sampled_from([0, 1]),
        avoid=st.sampled_from(ENDPOINTS),
    )
    def arrive(self, *, body, asked, waited, failures, avoid, **settings):
        """If it waited, it was in the queue of an earlier core."""
        request = self.next_request()
        key = body and 10 * FLOWS.index(settings["flow"]) + body
        failures, avoid = (failures, avoid) if waited and failures else (0, None)
        event = self.arrival(request, key=key, waited=waited, failures=failures, avoid=avoid, **settings)
        promise = self.controller._promises.find(key, self.now)
        promised = promise is not None and self.now < promise.due
        explanation = None
        if asked and not waited:
            self.feed(Tick())  # what time alone does is done by the next event
            explanation = self.controller.explain(event, self.now)  # the twin is not asked
        alone = not any(k.waiting for k in self.known.values())
        avoids = frozenset({avoid} - {None})
        known = Known(event, self.now - waited, early=promised, avoid=avoids, failures=failures)
        self.known[request] = known
        if promised:
            known.told = (promise.outcome, min(max(1.0, promise.due - self.now), 60.0))
        self.arriving = request
        commands = self.feed(event)
        self.arriving = 0
        if known.waiting and not waited:
            queue = self.controller.snapshot(self.now).queue
            assert queue.depth <= self.policy.max_requests
            assert queue.bytes <= self.policy.max_bytes
        if explanation is not None and alone:
            self.check_explanation(explanation, request, commands)

    @rule(
        endpoint=st.sampled_from(ENDPOINTS),
        prompts=st.lists(st.integers(1, 400), min_size=1, max_size=3),
        n=st.sampled_from([1, 1, 2]),
        max_tokens=st.integers(1, 400),
        limited=st.sampled_from(LIMITED),
        flow=st.sampled_from(FLOWS),
        streamed=st.booleans(),
        prefix=st.sampled_from(PREFIXES),
        share=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
        failures=st.sampled_from([0, 0, 1]),
        behind=st.booleans(),
        again=st.booleans(),
    )
    def declare(self, *, endpoint, share, behind, again, **settings):
        """An earlier core had dispatched it, and so much of its answer was seen."""
        request = self.next_request()
        event = self.arrival(request, **settings)
        generated = int(share * event.demand.max_tokens * event.demand.sequences)
        known = self.known[request] = Known(event, self.now, waiting=False, failures=event.failures, seen=generated)
        if any(shown.id == endpoint for shown in self.controller.snapshot(self.now).endpoints):
            known.endpoint = endpoint
            known.behind = self.now if behind else None
        else:
            known.ends += 1
        self.feed(Declared(event, endpoint, generated, behind))
        if again:
            self.feed(Declared(replace(event, demand=Demand((1,), 1)), endpoint))

    def next_request(self):
        """Requests of two fronts, in turn."""
        number = len(self.known) + 1
        return (number % 2 << FRONT_BITS) + number

    def arrival(self, request, *, prompts, n, max_tokens, limited, prefix, **settings) -> Arrived:
        if len(prompts) > 1 or (prefix and prefix[-1][0] >= prompts[0]):
            prefix = ()
        whole = max(prompts) + max_tokens
        least = {"cut": 0, "refused over it": max_tokens, "refused": whole}.get(limited, 0)
        demand = Demand(tuple(prompts), max_tokens, n, least, whole if limited else 0)
        return Arrived(request, demand, prefix=prefix, **settings)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data):
        request = self.any_request(data)
        known = self.known[request]
        if known.waiting:
            known.waiting = False
            known.ends += 1
        self.feed(Cancelled(request))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), more=st.integers(1, 200))
    def progress(self, data, more):
        some = data.draw(st.lists(st.sampled_from(sorted(self.known)), unique=True, max_size=4))
        items = []
        for request in some:
            known = self.known[request]
            ceiling = known.arrival.demand.max_tokens * known.arrival.demand.sequences
            seen = min(known.seen + more, ceiling)
            if known.endpoint is not None:
                known.seen = seen
            items.append((request, seen))
        self.feed(Progress(tuple(items)))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def fall_behind(self, data):
        self.behind(self.any_request(data))

    def behind(self, request):
        known = self.known[request]
        if known.endpoint is not None and known.behind is None:
            known.behind = self.now
        self.feed(Behind(request))

    @rule(name=st.sampled_from(ENDPOINTS), data=st.data())
    def rest(self, name, data):
        """An engine is done with all it had, and some clients have yet to read the last of it."""
        on_it = sorted(request for request, known in self.known.items() if known.endpoint == name)
        slow = data.draw(st.lists(st.sampled_from(on_it), unique=True)) if on_it else []
        for request in slow:
            self.behind(request)
        for _ in range(3):
            self.wait(1.0)
            self.observe(name, 0.0, 0, 0, 0.0)
        if name in self.pool and not self.pool[name].gone:
            assert all(known.let_go for known in map(self.known.get, slow) if known.endpoint == name)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), verdict=st.sampled_from(list(Verdict)), usage=st.booleans())
    def finish(self, data, verdict, usage):
        request = self.any_request(data)
        known = self.known[request]
        if known.endpoint is not None:
            if verdict is Verdict.ABORTED and not known.let_go:
                self.pool[known.endpoint].aborted.append((self.now, known))
            known.endpoint, known.let_go = None, False
            known.ends += 1
        self.feed(Finished(request, verdict, max(known.seen, 1) if usage else None))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), why=st.sampled_from(Back))
    def come_back(self, data, why):
        request = self.any_request(data)
        known = self.known[request]
        failed_twice = False
        if known.endpoint is not None:
            if why is Back.UNREACHED:
                self.unreached[front_of(request), known.endpoint] = self.now + TUNING.unreached
            if why is Back.FAILED or (why is Back.UNREACHED and known.endpoint not in known.avoid):
                known.arrived_at = self.now
            if why in {Back.UNREACHED, Back.LACKING}:
                known.avoid |= {known.endpoint}
            if why is Back.LACKING:
                known.lacking |= {known.endpoint}
            if why is Back.FAILED:
                known.failures += 1
                known.avoid = known.lacking | {known.endpoint}
                failed_twice = known.failures == 2
            known.endpoint, known.seen, known.waiting = None, 0, True
            known.behind, known.let_go = None, False
        commands = self.feed(Returned(request, why))
        if failed_twice and not self.draining:
            assert [c.outcome for c in commands if isinstance(c, Reject) and c.request == request] == [
                Outcome.UPSTREAM_ERROR
            ]

    @rule(
        name=st.sampled_from(ENDPOINTS),
        usage=st.one_of(st.none(), st.floats(0, 1)),
        running=st.integers(0, 8),
        waiting=st.integers(0, 5),
        tokens=st.sampled_from([0.0, 50.0, 500.0]),
    )
    def observe(self, name, usage, running, waiting, tokens):
        self.tokens += tokens
        counter = self.tokens if self.measured else None
        if name in self.pool:
            self.pool[name].sampled.append((self.now, not running and not waiting))
        self.feed(Observed(name, self.now, usage, running, waiting, counter))

    @rule(step=STEPS)
    def wait(self, step):
        """Time passes; the driver keeps its promise of a `Tick` at every wake."""
        until = self.now + step
        ticks = 0
        while self.wake_at <= until:
            ticks += 1
            assert ticks < 200, "woken for nothing"
            self.now = max(self.now, self.wake_at)
            self.wake_at = math.inf
            self.feed(Tick())
        self.now = until

    @rule(policy=st.sampled_from(OTHERS))
    def govern(self, policy):
        before = {request for request, known in self.known.items() if known.waiting}
        self.policy, self.passes = policy, max(self.passes, policy.max_passes)
        for command in self.feed(PolicyChanged(policy)):
            assert isinstance(command, WakeAt) or command.request in before
        for band in self.controller._queue._order:
            waiting = band.fairness.active.values()
            assert all(flow.weight == policy.weights.get(flow.name, 1.0) for flow in waiting)
            assert band.fairness.weight == sum(flow.weight for flow in waiting)

    @precondition(lambda self: len(self.known) > 12)
    @rule()
    def shut_down(self):
        self.draining = True
        self.feed(ShutdownStarted())

    # What must hold of every answer

    def any_request(self, data) -> int:
        alive = [r for r, k in self.known.items() if k.waiting or k.endpoint is not None]
        if alive and data.draw(st.integers(0, 9)):
            return data.draw(st.sampled_from(alive))
        return data.draw(st.sampled_from(sorted(self.known)))

    def eligible(self, known: Known) -> list[str]:
        front = front_of(known.arrival.request)
        unreached = {name for (whose, name), until in self.unreached.items() if whose == front and self.now < until}
        demand = known.arrival.demand
        length = max(demand.least_length, demand.whole_length)
        if not any(fits(demand, p.capacity, length) for p in self.pool.values() if p.up):
            length = self.needed(demand)
        names = [n for n, p in self.pool.items() if p.up and fits(demand, p.capacity, length)]
        names = [name for name in names if name not in unreached]
        others = [name for name in names if name not in known.avoid]
        return others or [name for name in names if name not in known.lacking] or names

    def target(self, known: Known) -> float | None:
        if known.arrival.ttft_target is not None:
            return known.arrival.ttft_target
        band = self.policy.bands.get(known.arrival.band, Band())
        return self.policy.ttft_target if band.ttft_target is None else band.ttft_target

    def deadline(self, known: Known, *, earliest: bool = False) -> float:
        """Prefill may take a part of the time that a target leaves."""
        live = self.is_served(known)
        target = self.target(known)
        queue_budget = self.policy.ttl
        if target is not None:
            queue_budget = min(queue_budget, target * TUNING.waiting_share if earliest else target)
        ttl = queue_budget if live else self.policy.no_endpoint_ttl
        longest = known.arrived_at + self.policy.ttl + self.policy.no_endpoint_ttl
        return min(max(known.arrived_at, self.since) + ttl, longest)

    def feed(self, event):
        commands = self.controller.handle(event, self.now)
        for request in self.controller._delivering:
            if not self.known[request].let_go:
                self.check_let_go(event, self.known[request])
        assert commands == self.twin.handle(event, self.now), "same events, other commands"
        before = self.controller.snapshot(self.now)
        for command in commands:
            match command:
                case Dispatch(request, endpoint, would):
                    known = self.known[request]
                    assert known.waiting, "dispatched without waiting"
                    assert would is None
                    assert self.now < self.deadline(known), "dispatched after its TTL"
                    assert not self.draining
                    assert endpoint in self.eligible(known), "dispatched to where it cannot go"
                    known.waiting, known.endpoint = False, endpoint
                case Reject(request, outcome, retry_after):
                    known = self.known[request]
                    assert known.waiting, "refused without waiting"
                    known.waiting = False
                    known.ends += 1
                    self.check_refusal(known, outcome, retry_after)
                case WakeAt(at):
                    self.wake_at = at
        for command in commands:
            if isinstance(command, Dispatch):
                self.check_dispatch(command, before)
        return commands

    def check_let_go(self, event, known):
        """Its engine was empty in two scrapes in a row since its client fell behind."""
        assert isinstance(event, Observed)
        assert event.endpoint == known.endpoint
        (first, was_empty), (last, is_empty) = self.pool[known.endpoint].sampled[-2:]
        assert was_empty
        assert is_empty
        assert known.behind < first < last
        assert last - known.behind >= TUNING.let_go_after
        known.let_go = True

    def is_served(self, known: Known) -> bool:
        demand = known.arrival.demand
        return any(p.up and fits(demand, p.capacity, self.needed(demand)) for p in self.pool.values())

    def needed(self, demand: Demand) -> int:
        """The length that it needs beside that of its prompt, if any endpoint has it."""
        known = [p.capacity for p in self.pool.values() if not p.gone]
        return demand.least_length if any(fits(demand, each, demand.least_length) for each in known) else 0

    def longest(self) -> int:
        """Of the prompts that some live endpoint serves."""
        rooms = ((p, p.capacity.kv_blocks) for p in self.pool.values() if p.up)
        lengths = (
            p.capacity.max_model_len
            if blocks is None
            else min(p.capacity.max_model_len, blocks * p.capacity.block_size)
            for p, blocks in rooms
        )
        return max(lengths, default=0)

    def check_refusal(self, known, outcome, retry_after):
        known_endpoints = [p for p in self.pool.values() if not p.gone]
        live = self.is_served(known)
        if known.early and outcome in FOR_WANT_OF_ROOM:
            assert (outcome, retry_after) == known.told, "told another thing than before"
        elif outcome is Outcome.CONTEXT_LENGTH_EXCEEDED:
            assert known_endpoints
            assert not any(fits(known.arrival.demand, p.capacity) for p in known_endpoints)
        elif outcome in (Outcome.QUEUE_TIMEOUT, Outcome.NO_ENDPOINT):
            assert self.deadline(known) <= self.now
            assert (outcome is Outcome.QUEUE_TIMEOUT) == live
        elif outcome is Outcome.WAIT_TOO_LONG:
            assert live
            assert self.target(known) is not None
            if known.arrival.request == self.arriving and not known.arrival.waited:
                assert self.controller.snapshot(self.now).drain_rate is not None, "refused on no grounds"
            else:
                assert self.deadline(known, earliest=True) <= self.now
        elif outcome is Outcome.DRAINING:
            assert self.draining
        elif outcome is Outcome.QUEUE_FULL:
            assert known.arrival.request != self.arriving or not known.arrival.waited
            others = [k for k in self.known.values() if k.waiting]
            size = sum(k.arrival.body_bytes for k in others) + known.arrival.body_bytes
            assert len(others) >= self.policy.max_requests or size > self.policy.max_bytes
        elif outcome is Outcome.RATE_LIMIT_EXCEEDED:
            demand = known.arrival.demand
            share = self.policy.kv_shares[known.arrival.flow] * room(known_endpoints)
            assert demand.prompt_tokens + demand.sequences > int(share)
        else:
            assert outcome is Outcome.UPSTREAM_ERROR
        no_retry = (Outcome.CONTEXT_LENGTH_EXCEEDED, Outcome.UPSTREAM_ERROR, Outcome.RATE_LIMIT_EXCEEDED)
        assert (retry_after is None) == (outcome in no_retry)
        assert retry_after is None or 1 <= retry_after <= 60

    def check_dispatch(self, command, state):
        """At the instant of a dispatch the limits hold, or nothing else is on the endpoint; nobody is overtaken."""
        (shown,) = [e for e in state.endpoints if e.id == command.endpoint]
        most = TUNING.forecast_share if self.policy.bounds is Bounds.FORECAST else self.policy.kv_high
        if shown.capacity.holds_limit:
            most = 1.0  # nothing there grows
        if shown.in_flight - sum(k.let_go for k in self.known.values() if k.endpoint == shown.id) > 1:
            assert shown.effective_usage is None or shown.effective_usage <= most + 1e-9
            here = [k.arrival.demand.sequences for k in self.known.values() if k.endpoint == shown.id and not k.let_go]
            assert shown.sequence_limit is None or shown.sequences - max(here) < shown.sequence_limit
        one = self.known[command.request].arrival
        holding = [k for k in self.known.values() if k.endpoint is not None and not k.let_go]
        flying = [k for k in holding if k.arrival.flow == one.flow]
        live = [p for p in self.pool.values() if p.up]
        if one.flow in self.policy.kv_shares and len(flying) > 1 and all(p.capacity.kv_blocks for p in live):
            alone = [k for k in flying if not k.arrival.prefix]  # what others share may count once
            held = sum(k.arrival.demand.prompt_tokens + k.seen for k in alone)
            assert held <= self.policy.kv_shares[one.flow] * room(live), "beyond its share"
        ahead = [k for k in self.known.values() if k.waiting and command.endpoint in self.eligible(k)]
        # A less urgent band may go first, now and then: it must not starve. Between flows it is by service.
        ahead = [k for k in ahead if k.arrival.band == one.band]
        orders = {request: known.order for request, known in self.controller._requests.items()}
        before = [k for k in ahead if k.arrival.flow == one.flow]
        if any(orders[k.arrival.request] < orders[one.request] for k in before):
            assert self.policy.max_passes, "overtook"
            assert any(k.arrival.demand.prompt_tokens > one.demand.prompt_tokens for k in ahead), (
                "overtook a smaller one"
            )

    def check_explanation(self, explanation, request, commands):
        """Where nobody waits, what it said is what happened."""
        (answer,) = [c for c in commands if not isinstance(c, WakeAt)] or [None]
        match answer:
            case Dispatch(_, endpoint):
                assert (explanation.verdict, explanation.endpoint) == ("dispatch", endpoint)
                assert explanation.rule == "fits"
            case Reject(_, outcome):
                assert explanation.verdict == outcome.value
                assert explanation.endpoint is None
            case None:
                assert explanation.verdict == "queue"
                assert self.known[request].waiting

    @rule(age=st.sampled_from([0.0, 0.5, 30.0]))
    def hand_over(self, age):
        """Another core takes over what this one knows of demand."""
        promises, now = self.controller._promises, self.now
        other = AdmissionController(self.policy)
        assert not [
            c for c in other.handle(replace(self.controller.warmth(now), age=age), now) if type(c) is not WakeAt
        ]
        for known in self.known.values():
            key = known.arrival.key
            here, there = promises.find(key, now + age), other._promises.find(key, now)
            assert (here is None) == (there is None)
            assert here is None or there.due == pytest.approx(here.due - age)

    @invariant()
    def at_most_one_outcome(self):
        for known in self.known.values():
            assert known.ends + known.waiting + (known.endpoint is not None) == 1

    @invariant()
    def the_queue_is_exact(self):
        queue = self.controller.snapshot(self.now).queue
        waiting = [k for k in self.known.values() if k.waiting]
        assert queue.depth == len(waiting) == sum(band.depth for band in queue.bands)
        assert queue.bytes == sum(k.arrival.body_bytes for k in waiting)
        oldest = min((k.arrived_at for k in waiting), default=self.now)
        assert queue.oldest_age == self.now - oldest

    @invariant()
    def nobody_waits_too_long_unnoticed(self):
        """A `Tick` is asked for by the next deadline."""
        for known in self.known.values():
            if known.waiting:
                assert self.wake_at <= self.deadline(known)

    @invariant()
    def no_head_waits_while_an_idle_endpoint_fits_it(self):
        for shown in self.controller.snapshot(self.now).endpoints:
            if shown.up and not shown.sequences and "busy" not in shown.closed_by:
                heads = [k for k in self.known.values() if k.waiting and shown.id in self.eligible(k)]
                kept = shown.capacity.holds_limit and [k for k in heads if self.may_wait(k, shown)]
                assert kept or not [k for k in heads if not self.may_wait(k, shown)], shown

    def may_wait(self, known, shown):
        """For its share, or where it would fail requests that are not ours."""
        blocks = shown.capacity.kv_blocks
        if shown.capacity.holds_limit and shown.effective_usage:
            whole = self.brute_force([(known.arrival.demand, 0)], shown.capacity)
            if shown.effective_usage * blocks + min(whole, blocks) > blocks:
                return True
        return self.may_wait_for_its_share(known)

    def may_wait_for_its_share(self, known):
        flow = known.arrival.flow
        holding = [k for k in self.known.values() if k.endpoint is not None and not k.let_go]
        its = [k for k in holding if k.arrival.flow == flow]
        return flow in self.policy.kv_shares and bool(its)

    @invariant()
    def the_ledger_holds_what_is_in_flight(self):
        for shown in self.controller.snapshot(self.now).endpoints:
            flying = [k for k in self.known.values() if k.endpoint == shown.id]
            holding = [k for k in flying if not k.let_go]
            demands = [(k.arrival.demand, k.seen) for k in holding]
            dying = [k for at, k in self.pool[shown.id].aborted if self.now - at < 1.0]
            aborted = [(k.arrival.demand, k.seen) for k in dying]
            least = self.brute_force(demands, shown.capacity)
            most = self.brute_force(demands + aborted, shown.capacity, longest=self.measured)
            assert least <= shown.held_blocks <= most
            assert shown.in_flight - shown.aborting == len(flying)
            least, most = (sum(k.arrival.demand.sequences for k in each) for each in (holding, holding + dying))
            assert least <= shown.sequences <= most

    @invariant()
    def forecasts_are_not_under_the_exact_peak(self):
        for endpoint in self.controller._endpoints:
            block, rows = endpoint.capacity.block_size, []
            for reservation in endpoint.ledger:
                prediction = endpoint.outlook[reservation]
                if reservation.generated >= prediction.review:  # it is predicted anew
                    break
                holds = reservation.held * block - reservation.shared
                weight = Fraction(1, len(prediction.lengths))
                ends = (max(0, length - reservation.generated) for length in prediction.lengths)
                rows.extend((weight, remaining, holds, reservation.sequences) for remaining in ends)
            else:
                peak = Forecast(endpoint.outlook._ends(block), TUNING.predictions).peak + endpoint.ledger.shared_tokens
                assert peak == most_held(rows, endpoint.ledger.shared_tokens)

    @invariant()
    def what_is_shared_is_held_once(self):
        for endpoint in self.controller._endpoints:
            ledger = endpoint.ledger
            saved = sharing_saves([r.prefix for r in ledger], endpoint.capacity.block_size)
            assert ledger.held - ledger.used == ledger.saved_blocks == saved
            assert saved == 0 or endpoint.capacity.shares_prefix

    @invariant()
    def what_flows_hold_is_what_is_in_flight(self):
        flights = self.controller._flights.values()
        assert self.controller._tokens._all.now == sum(flight.tokens for flight in flights)
        sequences = [self.controller._requests[number].sequences for number in self.controller._flights]
        assert self.controller._places._all.now == sum(sequences)

    @invariant()
    def promises_are_counted_exactly(self):
        promises = self.controller._promises
        open_ones = [promise for alike in promises._by_fingerprint.values() for promise in alike]
        assert len(promises) == len(open_ones)
        returned = [r.promise for r in self.controller._requests.values() if r.promise is not None and r.promise.used]
        waiting = [p for p in returned if not p.ended]
        assert len({p.order for p in open_ones + waiting}) == len(open_ones + waiting), "a turn was given twice"
        for (band, flow), clock in promises._flows.items():
            owed = sum(p.cost for p in open_ones + waiting if (p.band, p.flow) == (band, flow))
            assert abs(clock.owed - owed) < 1e-3
        assert {(p.band, p.flow) for p in open_ones + waiting} <= promises._flows.keys()

    @invariant()
    def nobody_is_passed_more_often_than_may_be(self):
        for request in self.controller._requests.values():
            assert request.backfilled <= self.passes

    def brute_force(self, demands, capacity, *, longest=False):
        total = 0
        for demand, seen in demands:
            generated = max(1, math.ceil(seen / demand.sequences))
            whole = longest or capacity.holds_limit
            total += brute_force_blocks(demand, capacity, max(1, demand.max_tokens) if whole else generated)
        return total

    def teardown(self):
        """Everything ends, and everything is given back."""
        self.shut_down()
        for request, known in self.known.items():
            if known.endpoint is not None:
                known.endpoint = None
                known.ends += 1
                self.feed(Finished(request, Verdict.FAILED))
        self.now += 1.0
        self.feed(Tick())
        state = self.controller.snapshot(self.now)
        assert state.queue.depth == state.queue.bytes == 0
        for shown in state.endpoints:
            assert shown.held_blocks == shown.in_flight == shown.sequences == shown.aborting == 0
            assert shown.unconfirmed_sequences == 0
        for endpoint in self.controller._endpoints:
            assert (endpoint.ledger.used, endpoint.ledger.shared_tokens, endpoint.ledger.prefilling_tokens) == (0, 0, 0)
            endpoint.refresh_forecast(self.now + 1.0)
            assert endpoint.forecast(self.now + 1.0) == endpoint._correction.read(self.now + 1.0)


SOME = settings(
    max_examples=100,
    stateful_step_count=50,
    report_multiple_bugs=False,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
TestAdmission = Admission.TestCase
TestAdmission.settings = SOME


class ForLong(Admission):
    """The same, with more lives."""


TestAdmissionForLong = pytest.mark.proof(pytest.mark.timeout(7200)(ForLong.TestCase))
TestAdmissionForLong.settings = settings(SOME, max_examples=2000)
