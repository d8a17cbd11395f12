"""A front and its owners, with delays, pauses, clocks that run apart, and connections that overtake each other."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.tier.fence import GIVEN_UP_AFTER, OBEYED_WITHIN, Allegiance, Epoch, Patience

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
    assert patience.lapses_at == 11.0 + GIVEN_UP_AFTER
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


# What holds whatever is late.


@dataclass
class Connection:
    """In order within each direction, as late as it likes."""

    owner: "Owner"
    patience: Patience
    term: object = None
    to_owner: deque = field(default_factory=deque)
    to_front: deque = field(default_factory=deque)


@dataclass
class Owner:
    epoch: Epoch
    offset: float
    rate: float
    snapshot: int

    def clock(self, now):
        return self.offset + self.rate * now


class Fenced(RuleBasedStateMachine):
    """One front; owners come and go. A dispatch names the connection over which its owner sent it."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.rate, self.offset = 1.0, 500.0
        self.allegiance = Allegiance()
        self.owners = [Owner(Epoch(1, "a"), 0.0, 1.0, 1)]
        self.connections = []
        self.snapshot = 0
        self.adopted = []

    def clock(self):
        return self.offset + self.rate * self.now

    @rule(seconds=st.sampled_from([0.001, 0.1, 0.25, 0.5, 0.9, 1.0, 1.1, 2.0, 2.2, 30.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(rate=st.sampled_from([0.9, 1.0, 1.1]), own=st.sampled_from([0.9, 1.0, 1.1]), higher=st.booleans())
    def another_owner_claims(self, rate, own, higher):
        last = self.owners[-1].epoch
        epoch = Epoch(last.number + higher, "a" if higher else last.owner + "a")
        self.owners.append(Owner(epoch, 1000.0 * len(self.owners) - rate * self.now, rate, len(self.owners) + 1))
        self.offset, self.rate = self.clock() - own * self.now, own

    @rule(data=st.data())
    def connect(self, data):
        owner = data.draw(st.sampled_from(self.owners))
        connection = Connection(owner, Patience(owner.clock(self.now)))
        connection.to_front.append(("welcome", owner.epoch, owner.snapshot))
        connection.term = self.allegiance.connected()
        self.connections.append(connection)

    def connection(self, data):
        return data.draw(st.sampled_from(self.connections))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def beat(self, data):
        connection = self.connection(data)
        connection.to_owner.append(connection.term.beat(self.clock()))

    @precondition(lambda self: self.connections)
    @rule(data=st.data(), most=st.integers(1, 5))
    def an_owner_hears(self, data, most):
        connection = self.connection(data)
        for _ in range(min(most, len(connection.to_owner))):
            number = connection.to_owner.popleft()
            if connection.patience.heard(connection.owner.clock(self.now)):
                connection.to_front.append(("returned", number))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def an_owner_looks(self, data):
        connection = self.connection(data)
        connection.patience.lapsed(connection.owner.clock(self.now))

    @precondition(lambda self: self.connections)
    @rule(data=st.data())
    def an_owner_dispatches(self, data):
        connection = self.connection(data)
        if not connection.patience.given_up:
            connection.to_front.append(("dispatch", connection.owner.epoch))

    @precondition(lambda self: self.connections)
    @rule(data=st.data(), most=st.integers(1, 5))
    def a_front_hears(self, data, most):
        connection = self.connection(data)
        for _ in range(min(most, len(connection.to_front))):
            match connection.to_front.popleft():
                case ("welcome", epoch, snapshot):
                    if self.allegiance.adopt(epoch):
                        self.snapshot = snapshot
                        self.adopted.append(epoch)
                case ("returned", number):
                    connection.term.returned(number)
                case ("dispatch", epoch):
                    if connection.term.obeys(epoch, self.clock()):
                        self.obeyed(connection)

    def obeyed(self, connection):
        assert not connection.patience.given_up, "its owner had given this front up"
        assert connection is self.connections[-1], "it came over an earlier connection"
        assert connection.owner.epoch == max(self.adopted), "the front follows another owner"
        assert connection.owner.snapshot == self.snapshot, "the front has the snapshot of another owner"

    @invariant()
    def never_back(self):
        assert self.adopted == sorted(self.adopted)


TestFenced = Fenced.TestCase
TestFenced.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
