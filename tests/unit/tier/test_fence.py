"""A front and its owners, with delays, pauses, clocks that run apart, and connections that overtake each other."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tier.epoch import Epoch
from gateway.tier.fence import OBEYED_WITHIN, Allegiance, Patience, Term

FIRST = Epoch(1, "a")
SECOND = Epoch(2, "b")


@pytest.fixture
def allegiance():
    allegiance = Allegiance()
    assert allegiance.adopt(FIRST)
    return allegiance


@pytest.fixture
def term(allegiance):
    return allegiance.connected()


def test_a_front_obeys_from_the_first_heartbeat_that_came_back_until_a_second_after_it_was_sent(term):
    number = term.beat(10.0)
    assert not term.obeys(FIRST, 10.0)
    term.returned(number)
    assert term.obeys(FIRST, 10.0 + OBEYED_WITHIN)
    assert not term.obeys(FIRST, 10.001 + OBEYED_WITHIN)


def test_each_heartbeat_that_comes_back_prolongs_a_term_and_none_shortens_it(term):
    first, second, third = term.beat(10.0), term.beat(10.2), term.beat(10.4)
    term.returned(second)
    term.returned(first)
    assert term.obeys(FIRST, 11.2)
    assert not term.obeys(FIRST, 11.3)
    term.returned(third)
    assert term.obeys(FIRST, 11.3)


def test_a_woken_front_does_not_obey_what_waited_for_it(term):
    number = term.beat(10.0)
    term.beat(60.0)
    term.returned(number)
    assert not term.obeys(FIRST, 60.0)


@pytest.mark.parametrize("number", [0, -1, 2, 10**9])
def test_a_number_that_was_never_sent_counts_for_nothing(term, number):
    term.beat(10.0)
    term.returned(number)
    assert not term.obeys(FIRST, 10.0)


def test_heartbeats_that_never_come_back_are_forgotten(term):
    for number in range(10_000):
        term.beat(number * 0.25)
    assert len(term._sent) <= OBEYED_WITHIN / 0.25 + 1


def test_a_new_connection_ends_the_term_of_the_one_before(allegiance, term):
    term.returned(term.beat(10.0))
    later = allegiance.connected()
    assert not term.obeys(FIRST, 10.0)
    later.returned(later.beat(10.0))
    assert not term.obeys(FIRST, 10.0)
    assert later.obeys(FIRST, 10.0)


def test_a_front_follows_the_greatest_epoch_that_it_heard_of_and_never_goes_back(allegiance):
    assert allegiance.adopt(FIRST)
    assert allegiance.adopt(SECOND)
    assert not allegiance.adopt(FIRST)
    assert not allegiance.adopt(Epoch(2, "a"))
    assert allegiance.epoch == SECOND


def test_with_another_owner_on_the_same_connection_a_new_term_begins(allegiance, term):
    before = term.beat(10.0)
    term.returned(before)
    during = term.beat(10.1)
    allegiance.adopt(SECOND)
    term.returned(during)
    assert not term.obeys(SECOND, 10.1)
    term.returned(term.beat(10.2))
    assert term.obeys(SECOND, 10.2)
    assert not term.obeys(FIRST, 10.2)


def test_the_same_owner_again_changes_nothing(allegiance, term):
    term.returned(term.beat(10.0))
    assert allegiance.adopt(FIRST)
    assert term.obeys(FIRST, 10.0)


def test_an_owner_gives_a_front_up_two_seconds_after_its_last_heartbeat_and_for_good():
    patience = Patience(10.0)
    assert patience.heard(11.0)
    assert not patience.lapsed(13.0)
    assert patience.lapsed(13.001)
    assert patience.given_up
    assert not patience.lapsed(14.0), "it is given up once"
    assert not patience.heard(14.0)
    assert patience.given_up


def test_an_owner_that_was_stopped_hears_what_waited_before_it_gives_a_front_up():
    patience = Patience(10.0)
    assert patience.heard(60.0)
    assert not patience.lapsed(60.0)


# What holds whatever is late. Each step is a quarter of a second: a front beats, owners hear, look and dispatch, and
# the front hears, unless they are stopped.

STEP = 0.25
RATES = st.sampled_from([0.9, 1.0, 1.1])
STEPS = st.one_of(
    st.just(("nothing",)),
    st.just(("nothing",)),
    st.tuples(st.just("up takes"), st.integers(0, 16)),
    st.tuples(st.just("down takes"), st.integers(0, 16)),
    st.tuples(st.just("front stops"), st.integers(1, 16)),
    st.tuples(st.just("owners stop"), st.integers(1, 16)),
    st.tuples(st.just("connect"), st.integers(0, 3)),
    st.tuples(st.just("claim"), st.integers(0, 3)),
)


class Way:
    """One direction of a connection: in order, and as late as it likes."""

    def __init__(self):
        self.coming = deque()
        self.takes = 0.0

    def send(self, now, message):
        last = self.coming[-1][0] if self.coming else 0.0
        self.coming.append((max(last, now + self.takes), message))

    def arrived(self, now):
        while self.coming and self.coming[0][0] <= now:
            yield self.coming.popleft()[1]


@dataclass(eq=False)
class Owner:
    rate: float
    epoch: Epoch | None = None

    def clock(self, now):
        return 1000.0 + self.rate * now


@dataclass(eq=False)
class Connection:
    owner: Owner
    term: Term
    patience: Patience
    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)


class World:
    """A front that hears every connection it ever had, and owners of which each thinks it is the one."""

    def __init__(self, rates, *, looks_first):
        self.now = 0.0
        self.rate, *owners = rates
        self.looks_first = looks_first
        self.front_stops = self.owners_stop = 0.0
        self.allegiance = Allegiance()
        self.snapshot = None
        self.adopted = []
        self.claimed = 0
        self.owners = [Owner(rate) for rate in owners]
        self.connections = []
        self.obeyed = 0
        self.claim(0)
        self.connect(0)

    def claim(self, which):
        self.claimed += 1
        owner = self.owners[which % len(self.owners)]
        owner.epoch = Epoch((self.claimed + 1) // 2, "ab"[self.claimed % 2])  # now and then the lesser of two
        self.tell(owner)

    def tell(self, owner):
        for connection in self.connections:
            if connection.owner is owner:
                connection.down.send(self.now, ("snapshot", owner.epoch))

    def connect(self, which):
        owner = self.owners[which % len(self.owners)]
        if owner.epoch is not None:
            now = owner.clock(self.now)
            self.connections.append(Connection(owner, self.allegiance.connected(), Patience(now)))
            self.connections[-1].down.send(self.now, ("snapshot", owner.epoch))

    def step(self, what, count=0):
        self.befall(what, count)
        if self.now >= self.front_stops:
            for connection in self.connections:
                connection.up.send(self.now, connection.term.beat(self.clock()))
        if self.now >= self.owners_stop:
            for connection in self.connections:
                self.owner_turns(connection)
        if self.now >= self.front_stops:
            for connection in self.connections:
                self.front_hears(connection)
        self.now += STEP

    def befall(self, what, count):
        match what:
            case "up takes":
                self.connections[-1].up.takes = count * STEP
            case "down takes":
                self.connections[-1].down.takes = count * STEP
            case "front stops":
                self.front_stops = self.now + count * STEP
            case "owners stop":
                self.owners_stop = self.now + count * STEP
            case "connect":
                self.connect(count)
            case "claim":
                self.claim(count)

    def clock(self):
        return 500.0 + self.rate * self.now

    def owner_turns(self, connection):
        now = connection.owner.clock(self.now)
        if self.looks_first:
            connection.patience.lapsed(now)
        for number in connection.up.arrived(self.now):
            if connection.patience.heard(now):
                connection.down.send(self.now, ("returned", number))
        connection.patience.lapsed(now)
        if not connection.patience.given_up:
            connection.down.send(self.now, ("dispatch", connection.owner.epoch))

    def front_hears(self, connection):
        for kind, value in connection.down.arrived(self.now):
            if kind == "snapshot" and self.allegiance.adopt(value):
                self.snapshot = value
                self.adopted.append(value)
            elif kind == "returned":
                connection.term.returned(value)
            elif kind == "dispatch" and connection.term.obeys(value, self.clock()):
                self.obeyed += 1
                assert not connection.patience.given_up, "its owner had given this front up"
                assert connection is self.connections[-1], "it came over an earlier connection"
                assert value == max(self.adopted), "the front follows another owner"
                assert value == self.snapshot, "the front has the snapshot of another owner"
        assert self.adopted == sorted(self.adopted)


@settings(max_examples=300)
@given(st.tuples(RATES, RATES, RATES), st.booleans(), st.lists(STEPS, min_size=30, max_size=60))
def test_no_front_obeys_an_owner_that_has_given_it_up_or_is_not_its_own(rates, looks_first, steps):
    world = World(rates, looks_first=looks_first)
    for step in steps:
        world.step(*step)


def test_where_nothing_is_late_every_dispatch_is_obeyed_after_the_first_heartbeat():
    world = World((1.0, 1.0, 1.0), looks_first=False)
    for _ in range(40):
        world.step("nothing")
    assert world.obeyed == 39
