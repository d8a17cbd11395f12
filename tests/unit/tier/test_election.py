import pytest

from gateway.tier import election as module
from gateway.tier.election import NEXT, NOBODY, Claim, Election, Event, Kept, Member, Standing, Terms
from gateway.tier.epoch import Epoch
from tests.fakes.redis_lease import FakeRedisLease

TERMS = Terms(beat=1.0, timeout=1.0, term=3.0, patience=4.0, grace=5.0)


class Place:
    """A candidate and the time."""

    def __init__(self, redis, me="a", *, now=0.0, members=3, fallback_share=None):
        self.redis = redis
        self.now = now
        self.election = Election(
            me, f"{me}:1", "k", members=members, fallback_share=fallback_share, now=now, terms=TERMS
        )

    @property
    def view(self):
        return self.election.view(self.now)

    def ask(self):
        claim = self.election.claim(self.now)
        self.election.answered(claim, self.redis.ask(self.election.me, self.election.address, "k", claim), self.now)
        return self.view

    def fail(self, **how):
        self.election.failed(self.election.claim(self.now), self.now, **how)
        return self.view

    def owning(self):
        """Take the lease of a Redis that was new."""
        while not self.ask().decides:
            self.now += 1.0
        return self


def test_the_table_in_the_docstring_is_the_one_in_force():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in module.__doc__.splitlines() if "|" in line
    ]
    head, _, *body = rows
    assert {row[0] for row in body} == set(Standing)
    for standing, *cells in body:
        for event, cell in zip(head[1:], cells, strict=True):
            assert NEXT[Standing(standing)][Event(event)] == (standing if cell == "-" else cell), (standing, event)
    assert all(row.keys() == set(Event) for row in NEXT.values())


def test_who_does_not_decide_decides_only_by_a_lease_or_alone():
    """Or, for an owner whose term ended, since Redis was asked and did not answer."""
    for standing in (Standing.STANDING_BY, Standing.LAPSED):
        deciding = {event for event, after in NEXT[standing].items() if after in module._DECIDING}
        assert deciding - {Event.GRANTED, Event.DESERTED} <= ({Event.FAILED} if standing is Standing.LAPSED else set())
    for row in NEXT.values():
        assert row[Event.REFUSED] is Standing.STANDING_BY


def test_an_empty_redis_is_watched_before_it_is_taken():
    place = Place(FakeRedisLease())
    assert not place.ask().decides
    assert place.election.due == 1.0
    for _ in range(3):
        place.now += 1.0
        assert not place.ask().decides
    place.now = 4.0
    assert place.ask().epoch == Epoch(1, "a")
    assert place.view.until == 7.0


def test_the_next_question_comes_when_patience_ends():
    redis = FakeRedisLease()
    Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    other.now = 103.5
    other.ask()
    assert other.election.due == 104.0


def test_time_counts_from_before_the_question():
    place = Place(FakeRedisLease()).owning()
    claim = place.election.claim(place.now)
    kept = place.redis.ask("a", "a:1", "k", claim)
    place.election.answered(claim, kept, place.now + 0.9)
    assert place.view.until == place.now + TERMS.term
    assert place.election.may_decide(place.now + 2.9)
    assert not place.election.may_decide(place.now + 3.0)


def test_a_stopped_owner_asks_before_it_decides_again():
    place = Place(FakeRedisLease()).owning()
    before = place.election.claim(place.now)
    kept = place.redis.ask("a", "a:1", "k", before)
    place.now += 60.0
    assert not place.election.may_decide(place.now)
    place.election.failed(before, place.now)
    assert place.view.standing is Standing.LAPSED, "what was asked before says nothing of Redis now"
    place.election.answered(before, kept, place.now)
    assert not place.view.decides, "an answer to what was asked before the term ended comes too late"
    assert place.election.due <= place.now
    assert place.ask().standing is Standing.OWNING


def test_a_stopped_owner_that_has_a_successor_stands_by():
    redis = FakeRedisLease()
    place = Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    for _ in range(6):
        other.now += 1.0
        other.ask()
    assert other.view.decides
    place.now += 60.0
    assert place.ask().standing is Standing.STANDING_BY
    assert (place.view.epoch, place.view.address) == (Epoch(2, "b"), "b:1")


def test_without_redis_an_owner_goes_on_within_the_share_of_the_connected():
    redis = FakeRedisLease()
    place = Place(redis).owning()
    for other in "bc":
        Place(redis, other, now=50.0).ask()
    place.ask()
    place.election.connected(["a:1", "b:1"], [])
    for _ in range(2):
        place.now += 1.0
        assert place.fail().standing is Standing.OWNING, "its term is not over"
    place.now += 1.0
    assert place.view.standing is Standing.LAPSED
    assert place.view.share == 0
    assert place.fail().standing is Standing.CUT_OFF
    assert place.view.share == pytest.approx(2 / 3)
    place.election.connected([], [])
    assert place.view.share == pytest.approx(1 / 3), "itself"
    place.now += TERMS.term
    assert place.view.standing is Standing.LAPSED, "without an attempt to ask, it knows nothing any more"


def test_how_many_members_there_are_is_a_setting_where_redis_never_told():
    place = Place(FakeRedisLease(), members=4)
    for _ in range(6):
        view = place.fail()
        place.now += 1.0
    assert view.standing is Standing.ALONE
    assert view.share == 1 / 4
    chosen = Place(FakeRedisLease(), fallback_share=0.5, now=5.0)
    chosen.now = 10.0
    assert chosen.fail().share == 0.5


def test_a_new_owner_keeps_back_what_others_may_have_in_flight():
    redis = FakeRedisLease()
    first = Place(redis, "b").owning()
    place = Place(redis, "a", now=100.0)
    Place(redis, "c", now=50.0).ask()
    while not place.ask().decides:
        place.now += 1.0
    assert place.view.share == pytest.approx(1 / 3)
    assert place.election.others == ("b:1", "c:1")
    place.election.connected(["a:1", "c:1"], ["a:1"])
    assert place.view.share == pytest.approx(1 / 3), "another front of it has not declared"
    place.election.connected(["a:1", "c:1"], ["a:1", "c:1"])
    assert place.view.share == pytest.approx(2 / 3)
    assert not place.election.complete
    place.ask()
    redis.leave(first.election.me)
    assert place.ask().share == 1.0, "one that took its leave has nothing in flight"
    assert place.election.complete


def test_the_gauge_accounts_for_members_that_are_gone():
    redis = FakeRedisLease()
    Place(redis, "b").owning()
    place = Place(redis, "a", now=100.0)
    while not place.ask().decides:
        place.now += 1.0
    assert place.view.share < 1
    place.election.accounted()
    assert place.view.share == 1.0


def test_a_higher_epoch_ends_a_reign_and_is_claimed_above():
    place = Place(FakeRedisLease()).owning()
    place.election.heard(Epoch(1, "z"), place.now)
    assert place.view.standing is Standing.STANDING_BY
    assert place.election.due == place.now, "at once"
    assert place.ask().epoch == Epoch(2, "a")
    place.election.heard(Epoch(9, "0"), place.now)
    assert place.ask().epoch == Epoch(10, "a")
    place.election.heard(Epoch(9, "z"), place.now)
    assert place.view.decides, "a lower one is nothing"


def test_whoever_was_connected_in_one_reign_has_to_declare_in_the_next():
    redis = FakeRedisLease()
    place = Place(redis).owning()
    Place(redis, "b", now=50.0).ask()
    place.ask()
    place.election.connected(["b:1"], ["b:1"])
    place.election.heard(Epoch(5, "z"), place.now)
    view = place.ask()
    assert view.epoch == Epoch(6, "a")
    assert view.share == 1 / 2
    assert not place.election.complete


def test_a_grant_below_what_was_heard_of_meanwhile_is_none():
    place = Place(FakeRedisLease()).owning()
    claim = place.election.claim(place.now)
    kept = place.redis.ask("a", "a:1", "k", claim)
    place.election.heard(Epoch(5, "b"), place.now)
    place.election.answered(claim, kept, place.now)
    assert not place.view.decides
    assert place.ask().epoch == Epoch(6, "a")


def test_alone_only_if_neither_redis_nor_an_owner_is_there():
    redis = FakeRedisLease()
    Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    assert other.ask().ready is False, "no front of it is in touch with anybody yet"
    other.election.followed(other.now)
    for _ in range(10):
        other.now += 1.0
        other.election.followed(other.now)
        assert other.fail().standing is Standing.STANDING_BY
        assert other.view.ready
    other.now += 4.0
    assert (other.fail().standing, other.view.ready) == (Standing.STANDING_BY, True)
    other.now += 1.0
    assert (other.fail().standing, other.view.ready) == (Standing.ALONE, True)
    assert other.view.epoch == Epoch(2, "b"), "its fronts must obey it"
    other.election.followed(other.now)
    assert other.view.standing is Standing.STANDING_BY


def test_while_redis_is_silent_requests_wait_until_it_is_known_that_each_decides_for_itself():
    redis = FakeRedisLease()
    place, other = Place(redis).owning(), Place(redis, "b")
    place.ask()
    other.ask()
    other.election.followed(other.now)
    met = other.now
    other.now = met + TERMS.grace - 0.1
    other.fail()
    other.now = met + TERMS.grace + 0.1
    assert (other.view.decides, other.view.ready) == (False, True), "the next question tells"
    other.now = other.election.due + TERMS.timeout
    assert (other.fail().standing, other.view.ready) == (Standing.ALONE, True)


def test_who_cannot_reach_an_owner_that_redis_has_is_not_ready():
    redis = FakeRedisLease()
    owner = Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    other.election.followed(other.now)
    for _ in range(6):
        other.now += 1.0
        owner.now += 1.0
        owner.ask()
        other.ask()
    assert (other.view.standing, other.view.ready) == (Standing.STANDING_BY, False)


def unreachable(owner, other, seconds):
    """What `other` says in each of so many seconds, in which both ask and no front reaches the owner."""
    said = []
    for _ in range(seconds):
        other.now += 1.0
        owner.now += 1.0
        owner.ask()
        said.append(other.ask().unreachable)
    return said


@pytest.mark.parametrize("met", [True, False])
def test_an_owner_that_lives_and_is_not_reached_is_said_to_be_unreachable(met):
    redis = FakeRedisLease()
    owner = Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    if met:
        other.election.followed(other.now)
    assert unreachable(owner, other, 5) == [False] * 4 + [True]
    assert not owner.view.unreachable
    other.election.followed(other.now)
    assert not other.view.unreachable
    assert unreachable(owner, other, 5)[-1]
    assert not other.fail().unreachable, "soon each decides for itself"


def test_who_was_alone_has_time_to_reach_the_owner_once_redis_answers_again():
    redis = FakeRedisLease()
    owner = Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    other.election.followed(other.now)
    while other.fail().standing is not Standing.ALONE:
        other.now += 1.0
    assert unreachable(owner, other, 5) == [False] * 4 + [True]


def test_during_a_change_of_owner_none_is_unreachable_however_long_it_takes():
    redis = FakeRedisLease()
    Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    other.election.followed(other.now)
    other.now += TERMS.grace
    assert not other.view.unreachable, "the dead one does not ask any more"
    successor = Place(redis, "c", now=200.0).owning()
    assert unreachable(successor, other, 6) == [False] * 5 + [True], "it has as long to be reached"


def test_a_wrong_password_from_the_start_decides_nothing():
    place = Place(FakeRedisLease())
    for _ in range(10):
        place.now += 1.0
        assert not place.fail(denied=True).decides
    known = Place(FakeRedisLease())
    known.ask()
    known.now = 10.0
    assert known.fail(denied=True).standing is Standing.ALONE, "it worked, so the password was right"


def test_an_outage_is_no_silence_of_the_owner():
    redis = FakeRedisLease()
    Place(redis).owning()
    other = Place(redis, "b", now=100.0)
    other.ask()
    other.now += 3.0
    other.fail()
    other.election.followed(other.now)
    other.now += 2.0
    assert other.election.claim(other.now).over == ""
    assert not other.ask().decides


def test_the_owner_has_redis_forget_the_silent_and_nobody_else():
    redis = FakeRedisLease()
    place = Place(redis).owning()
    Place(redis, "b", now=50.0).ask()
    live = Place(redis, "c", now=50.0)
    for _ in range(12):
        place.now += 1.0
        live.ask()
        place.ask()
    assert set(redis.members) == {"a", "c"}
    assert place.view.members == 2


def test_another_secret_is_told():
    place = Place(FakeRedisLease())
    claim = place.election.claim(0.0)
    place.election.answered(claim, Kept("z", 1, 1, 1, {"z": Member(1, "z:1", "other")}), 0.0)
    assert (place.view.stranger, place.view.address) == (True, "z:1")


def test_a_lease_that_was_given_back_is_nobodys():
    place = Place(FakeRedisLease())
    place.election.answered(place.election.claim(0.0), Kept(NOBODY, 0, 3, 3, {}), 0.0)
    assert (place.view.epoch, place.view.address) == (None, None)
    assert place.election.claim(1.0) == Claim(2, 1.0, 3, 3, "")


def test_times_leave_a_margin():
    terms = Terms()
    assert terms.term + terms.beat <= terms.patience
    assert terms.beat + terms.timeout < terms.term, "one question may be lost"
    assert terms.patience < terms.grace
