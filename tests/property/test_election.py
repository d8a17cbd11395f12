"""Several candidates and one Redis, whatever is late, lost, stopped, killed or forgotten.

Every question may be given up before or after Redis took it, and Redis may take it long after. Each candidate's clock
has an origin of its own.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.tier.election import Claim, Election, Kept, Standing
from gateway.tier.epoch import BEFORE_ALL, Epoch
from tests.fakes.redis_lease import FakeRedisLease

PLACES = 3
places = st.integers(0, PLACES - 1)


@dataclass
class Candidate:
    election: Election
    origin: float
    pending: Claim | None = None
    taken: Kept | None = None
    adopted: Epoch = BEFORE_ALL
    late: list[Claim] = field(default_factory=list)


class Elections(RuleBasedStateMachine):
    """With a Redis that keeps its word."""

    forgets = False

    @initialize(origins=st.lists(st.floats(-1e6, 1e6), min_size=PLACES, max_size=PLACES))
    def begin(self, origins):
        self.now = 0.0
        self.born = 0
        self.redis = FakeRedisLease()
        self.earlier = self.redis.copy()
        self.granted = BEFORE_ALL
        self.stray: list[tuple[str, str, Claim]] = []
        self.candidates = [self.new(place, origin) for place, origin in enumerate(origins)]

    def new(self, place, origin):
        self.born += 1
        # Ids in another order than births: the order of ids must not matter.
        me = f"{(self.born * 7919) % 1000:03}"
        election = Election(me, f"m{place}:1", "k", members=3, fallback_share=None, now=self.now + origin)
        return Candidate(election, origin)

    def clock(self, candidate):
        return self.now + candidate.origin

    def take(self, me, address, claim):
        kept = self.redis.ask(me, address, "k", claim)
        epoch = Epoch(kept.epoch, kept.holder)
        if kept.holder == me and kept.beat == claim.beat:
            assert epoch.number >= claim.least
            if not self.forgets:
                assert epoch >= self.granted
                assert epoch.number > self.granted.number or epoch == self.granted
            self.granted = epoch
        return kept

    # What happens.

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.4, 0.5, 1.2, 1.6, 5.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(place=places)
    def one_asks(self, place):
        candidate = self.candidates[place]
        if candidate.pending is None:
            candidate.pending = candidate.election.claim(self.clock(candidate))

    @rule(place=places)
    def redis_takes(self, place):
        candidate = self.candidates[place]
        if candidate.pending is not None and candidate.taken is None:
            election = candidate.election
            candidate.taken = self.take(election.me, election.address, candidate.pending)

    @rule(place=places)
    def one_hears_the_answer(self, place):
        candidate = self.candidates[place]
        if candidate.pending is not None and candidate.taken is not None:
            candidate.election.answered(candidate.pending, candidate.taken, self.clock(candidate))
            candidate.pending = candidate.taken = None

    @rule(place=places, denied=st.booleans())
    def one_gives_up(self, place, denied):
        candidate = self.candidates[place]
        if candidate.pending is not None:
            if candidate.taken is None:
                self.stray.append((candidate.election.me, candidate.election.address, candidate.pending))
            candidate.election.failed(candidate.pending, self.clock(candidate), denied=denied)
            candidate.pending = candidate.taken = None

    @rule(place=places)
    def all_goes_well(self, place):
        self.one_asks(place)
        self.redis_takes(place)
        self.one_hears_the_answer(place)

    @precondition(lambda self: self.stray)
    @rule(which=st.integers(0, 9))
    def redis_takes_what_was_given_up(self, which):
        self.take(*self.stray.pop(which % len(self.stray)))

    @rule(place=places, other=places)
    def one_hears_of_an_epoch(self, place, other):
        """By a front that obeyed the other."""
        candidate = self.candidates[place]
        candidate.election.heard(self.candidates[other].adopted, self.clock(candidate))

    @rule(place=places, other=places)
    def fronts_follow(self, place, other):
        deciding = self.candidates[other].election
        if place != other and deciding.may_decide(self.clock(self.candidates[other])):
            self.candidates[place].election.followed(self.clock(self.candidates[place]))

    @rule(place=places)
    def fronts_connect_with(self, place):
        others = [other.election.address for other in self.candidates]
        self.candidates[place].election.connected(others, others)

    @rule(place=places)
    def one_resigns(self, place):
        candidate = self.candidates[place]
        candidate.election.resign(self.clock(candidate))
        self.redis.leave(candidate.election.me)

    @rule(place=places)
    def one_ends_and_another_begins(self, place):
        candidate = self.candidates[place]
        if candidate.pending is not None and candidate.taken is None:
            self.stray.append((candidate.election.me, candidate.election.address, candidate.pending))
        self.candidates[place] = self.new(place, candidate.origin)

    # What holds.

    @invariant()
    def nobody_decides_beside_an_owner_with_a_lease(self):
        if self.forgets:
            return
        owners = [
            candidate.election.me
            for candidate in self.candidates
            if candidate.election.may_decide(self.clock(candidate))
            and candidate.election.view(self.clock(candidate)).standing is Standing.OWNING
        ]
        assert len(owners) <= 1

    @invariant()
    def no_epoch_goes_back(self):
        for candidate in self.candidates:
            view = candidate.election.view(self.clock(candidate))
            if view.decides:
                assert view.epoch is not None
                assert view.epoch >= candidate.adopted
                candidate.adopted = view.epoch

    @invariant()
    def a_share_is_a_share(self):
        for candidate in self.candidates:
            view = candidate.election.view(self.clock(candidate))
            assert (0 < view.share <= 1) if view.decides else view.share == 0

    def teardown(self):
        """When all is well again, one decides, under the highest epoch that anyone has heard of."""
        if not hasattr(self, "candidates"):
            return
        for place in range(PLACES):
            self.one_gives_up(place, denied=False)
        for _ in range(20):
            self.now += 0.4
            for place in range(PLACES):
                self.all_goes_well(place)
                for other in range(PLACES):
                    self.one_hears_of_an_epoch(other, place)
        views = [candidate.election.view(self.clock(candidate)) for candidate in self.candidates]
        (owner,) = [view for view in views if view.decides]
        assert owner.standing is Standing.OWNING
        assert all(view.epoch == owner.epoch for view in views)
        assert all(candidate.adopted <= owner.epoch for candidate in self.candidates)
        assert all(view.members == PLACES for view in views)


class Forgetful(Elections):
    """With a Redis that is flushed, or goes back to what a replica had."""

    forgets = True

    @rule()
    def redis_forgets_all(self):
        self.redis.forget()

    @rule()
    def a_replica_copies(self):
        self.earlier = self.redis.copy()

    @rule()
    def redis_goes_back(self):
        self.redis.restore(self.earlier)


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=150, stateful_step_count=60)
TestForgetful = Forgetful.TestCase
TestForgetful.settings = settings(max_examples=150, stateful_step_count=60)
