"""The scripts of `gateway/tier/redis_lease.py` in Python, for elections without a Redis."""

import copy

from gateway.tier.election import NOBODY, Claim, Kept, Member


class FakeRedisLease:
    """What Redis keeps; `forget` and `restore` are what a Redis must not do."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.holder, self.beat, self.epoch, self.highest = "", None, 0, 0
        self.members = {}

    def copy(self):
        return copy.deepcopy(self.__dict__)

    def restore(self, earlier):
        self.__dict__.update(copy.deepcopy(earlier))

    def ask(self, me: str, address: str, mark: str, claim: Claim) -> Kept:
        if me not in self.members or self.members[me].beat < claim.beat:
            self.members[me] = Member(claim.beat, address, mark)
            highest = max(self.highest, claim.seen)
            lease = f"{self.holder} {'' if self.beat is None else self.beat}"
            if self.holder == me and self.epoch >= max(highest, claim.least):
                self.beat = claim.beat
            elif self.holder in {me, NOBODY} or lease == claim.over:
                highest += 1
                self.holder, self.beat, self.epoch = me, claim.beat, highest
            self.highest = highest
            for silent in claim.forget:
                name, beat = silent.split(" ")
                if name in self.members and self.members[name].beat == int(beat) and name != self.holder:
                    del self.members[name]
        return Kept(self.holder, self.beat or 0, self.epoch, self.highest, dict(self.members))

    def leave(self, me: str) -> None:
        self.members.pop(me, None)
        if self.holder == me:
            self.holder, self.beat = NOBODY, 0
