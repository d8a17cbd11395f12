"""PURE. The election of the gateway that decides for all of a tier, as one candidate sees it.

Each machine has one candidate. Every `Terms.beat` it asks Redis (`campaign.py`), which keeps what `redis_lease.py`
describes, and learns who the owner is. Time is the candidate's own monotonic clock, in seconds; nobody goes by the
clock of Redis. An owner may decide for `Terms.term`, counted from before it asked. Another candidate takes its place
only after it has seen, for the longer `Terms.patience`, that the owner did not ask again. So two never decide at once
as long as Redis forgets nothing.

The right to decide ends at a time counted from before the question to Redis, never from its answer. A process that was
stopped and goes on finds that time over, and asks before it decides again.

The table, `NEXT` (`-`: no change):

| standing     | granted | refused     | failed      | over        | outbid      | deserted    | found       |
|--------------|---------|-------------|-------------|-------------|-------------|-------------|-------------|
| standing by  | owning  | standing by | standing by | -           | standing by | alone       | standing by |
| owning       | owning  | standing by | owning      | lapsed      | standing by | -           | -           |
| lapsed       | owning  | standing by | cut off     | -           | standing by | cut off     | -           |
| cut off      | owning  | standing by | cut off     | lapsed      | standing by | -           | -           |
| alone        | owning  | standing by | alone       | standing by | standing by | alone       | standing by |

*Owning*: with the lease. *Lapsed*: the term ended before Redis answered; it dispatches nothing. *Cut off*: Redis did
not answer a question asked since; the owner goes on within the share of the members still connected. *Alone*: neither
Redis nor an owner can be reached; each gateway decides for itself within `tier.fallback_share`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.tier.epoch import BEFORE_ALL, Epoch

UNOWNED = " "
"""The holder of a lease that nobody has ever had, as far as Redis knows: the first start, or all is forgotten."""
_LATELY = 60.0
"""Seconds for which a member counts as one of the tier after it was last seen."""
_FORGET = 10.0
"""Seconds of silence after which the owner has Redis forget a member."""


class Standing(StrEnum):
    """What a candidate is."""

    STANDING_BY = "standing by"
    OWNING = "owning"
    LAPSED = "lapsed"
    CUT_OFF = "cut off"
    ALONE = "alone"


class Event(StrEnum):
    """What a candidate hears."""

    GRANTED = "granted"
    """Redis: the lease is its own."""
    REFUSED = "refused"
    """The lease is another's, must be waited for, or is given back."""
    FAILED = "failed"
    """Redis did not answer."""
    OVER = "over"
    """The time for which it might decide has ended."""
    OUTBID = "outbid"
    """There is an epoch above its own."""
    DESERTED = "deserted"
    """Redis did not answer, and no owner was heard of for `Terms.grace`."""
    FOUND = "found"
    """The fronts of this machine are connected with an owner."""


NEXT: Mapping[Standing, Mapping[Event, Standing]] = {
    Standing.STANDING_BY: {
        Event.GRANTED: Standing.OWNING,
        Event.REFUSED: Standing.STANDING_BY,
        Event.FAILED: Standing.STANDING_BY,
        Event.OVER: Standing.STANDING_BY,
        Event.OUTBID: Standing.STANDING_BY,
        Event.DESERTED: Standing.ALONE,
        Event.FOUND: Standing.STANDING_BY,
    },
    Standing.OWNING: {
        Event.GRANTED: Standing.OWNING,
        Event.REFUSED: Standing.STANDING_BY,
        Event.FAILED: Standing.OWNING,
        Event.OVER: Standing.LAPSED,
        Event.OUTBID: Standing.STANDING_BY,
        Event.DESERTED: Standing.OWNING,
        Event.FOUND: Standing.OWNING,
    },
    Standing.LAPSED: {
        Event.GRANTED: Standing.OWNING,
        Event.REFUSED: Standing.STANDING_BY,
        Event.FAILED: Standing.CUT_OFF,
        Event.OVER: Standing.LAPSED,
        Event.OUTBID: Standing.STANDING_BY,
        Event.DESERTED: Standing.CUT_OFF,
        Event.FOUND: Standing.LAPSED,
    },
    Standing.CUT_OFF: {
        Event.GRANTED: Standing.OWNING,
        Event.REFUSED: Standing.STANDING_BY,
        Event.FAILED: Standing.CUT_OFF,
        Event.OVER: Standing.LAPSED,
        Event.OUTBID: Standing.STANDING_BY,
        Event.DESERTED: Standing.CUT_OFF,
        Event.FOUND: Standing.CUT_OFF,
    },
    Standing.ALONE: {
        Event.GRANTED: Standing.OWNING,
        Event.REFUSED: Standing.STANDING_BY,
        Event.FAILED: Standing.ALONE,
        Event.OVER: Standing.STANDING_BY,
        Event.OUTBID: Standing.STANDING_BY,
        Event.DESERTED: Standing.ALONE,
        Event.FOUND: Standing.STANDING_BY,
    },
}


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of an election, in seconds.

    Attributes:
        beat: between two questions to Redis.
        timeout: longest wait for its answer.
        term: how long an owner may decide, from before it asked.
        patience: how long an owner must not have asked before another takes its place; longer than `term`, by all that
            clocks may differ over it and by the moment between the last look at the time and the dispatch.
        grace: how long no owner was heard of before a gateway says that it is not ready, or decides alone.
    """

    beat: float = 0.4
    timeout: float = 0.4
    term: float = 1.2
    patience: float = 1.6
    grace: float = 3.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A question to Redis.

    Attributes:
        beat: its number among those of this candidate.
        sent: the time before it was asked.
        seen: the highest number of an epoch that it has heard of.
        least: the number that its epoch must have.
        over: the holder that may be replaced, `ID BEAT`; "" for none.
        forget: silent members, `ID BEAT`.
    """

    beat: int
    sent: float
    seen: int
    least: int
    over: str
    forget: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """A candidate as it is in Redis.

    Attributes:
        beat: the number of its last question.
        address: HOST:PORT at which the others reach its machine.
        mark: tells whether it has the same secret.
    """

    beat: int
    address: str
    mark: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What Redis keeps, after it has taken a claim.

    Attributes:
        holder: id of who has the lease; "" if nobody ever had, `NOBODY` if it was given back.
        beat: of the holder's question that was granted last.
        epoch: number of its epoch.
        highest: the highest number that any candidate has reported.
        members: by id.
    """

    holder: str
    beat: int
    epoch: int
    highest: int
    members: Mapping[str, Member]

    @property
    def lease(self) -> str:
        """The holder and its beat, as `Claim.over` has them."""
        return f"{self.holder} {self.beat if self.holder else ''}"


NOBODY = "-"
"""The holder of a lease that was given back."""


@dataclass(frozen=True, slots=True)
class View:
    """An election as one candidate sees it.

    Attributes:
        standing: its own.
        decides: whether it may dispatch.
        epoch: that of the owner, itself or another; None where none is known.
        until: it may decide before this time only.
        share: of each engine's capacity that it may fill.
        address: HOST:PORT of the owner's machine, for its fronts to follow; None where none is known.
        ready: whether somebody decides for this machine, or did a moment ago.
        redis: whether Redis answered the last question.
        members: candidates that asked Redis a moment before it answered last.
        stranger: the owner has another secret: no connection with it can be made.
        unreachable: Redis sees an owner elsewhere that lives, but this machine has not reached it for `Terms.grace`.
            Nobody decides for this machine before that is mended.
    """

    standing: Standing
    decides: bool
    epoch: Epoch | None
    until: float
    share: float
    address: str | None
    ready: bool
    redis: bool
    members: int
    stranger: bool
    unreachable: bool


class Election:
    """One candidate.

    Args:
        me: its random id.
        address: HOST:PORT of its machine, as the others know it.
        mark: of its secret.
        members: how many gateways there are, while Redis has not told.
        fallback_share: of each engine, when alone; None is 1/`members`.
        now: the time.
    """

    def __init__(
        self,
        me: str,
        address: str,
        mark: str,
        *,
        members: int,
        fallback_share: float | None,
        now: float,
        terms: Terms | None = None,
    ) -> None:
        self.me = me
        self.address = address
        self.mark = mark
        self.terms = terms or Terms()
        self._members = members
        self._fallback_share = fallback_share if fallback_share is not None else 1 / members
        self._standing = Standing.STANDING_BY
        self._epoch = BEFORE_ALL
        self._highest = BEFORE_ALL
        self._until = now
        self._lapsed = now
        self._beat = 0
        self._due = now
        self._kept: Kept | None = None
        self._answers = False
        self._watched = ("", now)
        self._holder_since = now
        """Since when Redis has been seen to name the present holder, without a question that failed."""
        self._owner_seen = now
        self._met = False
        self._answered = now
        self._beats: dict[str, tuple[int, float]] = {}
        self._lately: dict[str, float] = {}
        self._connected: frozenset[str] = frozenset()
        self._unaccounted: frozenset[str] = frozenset()

    # Redis.

    @property
    def due(self) -> float:
        """When to ask Redis next."""
        return min(self._due, self._until) if self._standing in _DECIDING else self._due

    def claim(self, now: float) -> Claim:
        """What to ask Redis now."""
        self.passed(now)
        self._beat += 1
        self._due = now + self.terms.beat
        seen = self._highest.number
        least = seen if self._highest.owner <= self.me else seen + 1
        lease, since = self._watched
        over = lease if now - since >= self.terms.patience else ""
        if self._standing in _OWNERS:  # one that Redis has forgotten takes its place again
            over = UNOWNED
        silent = tuple(f"{name} {beat}" for name, (beat, heard) in self._beats.items() if now - heard > _FORGET)
        return Claim(self._beat, now, seen, least, over, silent if self._standing is Standing.OWNING else ())

    def answered(self, claim: Claim, kept: Kept, now: float) -> None:
        """Redis took a claim, and this is what it keeps."""
        self.passed(now)
        self._answers = True
        self._answered = now
        if self._kept is None or kept.holder != self._kept.holder:
            self._holder_since = now
        self._kept = kept
        self._note_members(kept, now)
        if kept.holder == self.me and kept.beat == claim.beat:
            self._granted(claim, Epoch(kept.epoch, self.me), now)
            return
        self._watch(kept.lease, now)
        if kept.holder not in {"", NOBODY, self.me}:
            self._highest = max(self._highest, Epoch(kept.epoch, kept.holder))
        self._highest = max(self._highest, Epoch(kept.highest, ""))
        self._go(Event.REFUSED)

    def failed(self, claim: Claim, now: float, *, denied: bool = False) -> None:
        """Redis did not answer, or did not let this candidate in (`denied`)."""
        self.passed(now)
        known = self._kept is not None
        self._answers = False
        # Who could not ask Redis either is not gone.
        self._watched = ("", now)
        self._holder_since = now
        self._beats = {name: (beat, now) for name, (beat, _) in self._beats.items()}
        self._lately = dict.fromkeys(self._lately, now)
        if self._standing is Standing.LAPSED and claim.sent < self._lapsed:
            return  # it says nothing of Redis now
        deserted = now - self._owner_seen >= self.terms.grace and (known or not denied)
        self._go(Event.DESERTED if deserted else Event.FAILED)
        if self._standing in {Standing.CUT_OFF, Standing.ALONE}:
            self._until = claim.sent + self.terms.term

    def resign(self, now: float) -> None:
        """Decide no more: the lease is about to be given back."""
        self.passed(now)
        self._go(Event.REFUSED)

    # The fronts.

    def heard(self, epoch: Epoch, now: float) -> None:
        """A front, of whatever machine, has heard of an epoch."""
        self.passed(now)
        if epoch <= self._highest:
            return
        self._highest = epoch
        if self._standing in _DECIDING or self._standing is Standing.LAPSED:
            self._go(Event.OUTBID)
            self._due = now

    def followed(self, now: float) -> None:
        """The fronts of this machine are in touch with an owner on another one."""
        self.passed(now)
        self._owner_seen = now
        self._met = True
        self._go(Event.FOUND)

    def connected(self, addresses: Collection[str], whole: Collection[str]) -> None:
        """The machines of which a front is connected with this candidate and has declared what it has.

        None of these decides alone. Of those in `whole` each front has declared, so nothing of theirs is unaccounted.
        """
        self._connected = frozenset(addresses)
        self._unaccounted -= frozenset(whole)

    @property
    def complete(self) -> bool:
        """Whether no machine is left whose requests this owner does not know of."""
        return not self._unaccounted

    def accounted(self) -> None:
        """The engines' gauges, read since it became the owner, show what was in flight on machines that are gone."""
        self._unaccounted = frozenset()

    @property
    def others(self) -> tuple[str, ...]:
        """The addresses of the other machines, as Redis showed them last."""
        members = {} if self._kept is None else self._kept.members
        return tuple(sorted(member.address for name, member in members.items() if name != self.me))

    # Time.

    def passed(self, now: float) -> None:
        """Time has passed."""
        if self._standing in _DECIDING and now >= self._until:
            self._lapsed = self._until
            self._go(Event.OVER)
            self._due = now
        elif self._standing in _DECIDING and self._standing is not Standing.ALONE:
            self._owner_seen = now

    def may_decide(self, now: float) -> bool:
        """Whether it may dispatch at this instant."""
        return self._standing in _DECIDING and now < self._until

    def view(self, now: float) -> View:
        """How it stands."""
        self.passed(now)
        decides = self.may_decide(now)
        kept = self._kept
        other = None if kept is None or decides or kept.holder == self.me else kept.members.get(kept.holder)
        epoch = None if other is None or kept is None else Epoch(kept.epoch, kept.holder)
        if decides:
            epoch = self._epoch
        grace = self.terms.grace
        if not self._answers:  # whether each decides for itself is known once the next question has failed, too
            grace += self.terms.beat + self.terms.timeout
        out_of_reach = now - max(self._owner_seen, self._holder_since) >= self.terms.grace
        alive = self._answers and now - self._watched[1] < self.terms.patience
        return View(
            standing=self._standing,
            decides=decides,
            epoch=epoch,
            until=self._until,
            share=self._share() if decides else 0.0,
            address=self.address if decides else None if other is None else other.address,
            ready=decides or (self._met and now - self._owner_seen < grace),
            redis=self._answers,
            members=sum(self._answered - heard <= self.terms.patience for _, heard in self._beats.values()),
            stranger=other is not None and other.mark != self.mark,
            unreachable=other is not None and alive and out_of_reach,
        )

    def _share(self) -> float:
        most = max(len(self._lately), len(self._unaccounted) + 1) if self._lately else self._members
        match self._standing:
            case Standing.ALONE:
                return self._fallback_share
            case Standing.CUT_OFF:
                return min(1.0, len(self._connected | {self.address}) / most)
            case _:
                return 1 - len(self._unaccounted) / most

    def _granted(self, claim: Claim, epoch: Epoch, now: float) -> None:
        if epoch < self._highest:  # another was heard of since it asked
            self._go(Event.REFUSED)
            self._due = now
            return
        until = claim.sent + self.terms.term
        if until <= now:  # the answer comes too late to go by
            self._due = now
            return
        if epoch != self._epoch:  # who was connected in an earlier reign has declared nothing in this one
            self._connected = frozenset()
            self._unaccounted = frozenset(self._lately) - {self.address}
        self._epoch = self._highest = epoch
        self._until = until
        self._owner_seen = now
        self._met = True
        self._go(Event.GRANTED)

    def _watch(self, lease: str, now: float) -> None:
        """Note since when the owner has not asked."""
        if self._watched[0] != lease:
            self._watched = (lease, now)
        ends = self._watched[1] + self.terms.patience
        if now < ends < self._due:
            self._due = ends

    def _note_members(self, kept: Kept, now: float) -> None:
        for name, member in kept.members.items():
            if self._beats.get(name, (None, now))[0] != member.beat:
                self._beats[name] = member.beat, now
                self._lately[member.address] = now
        for name in self._beats.keys() - kept.members.keys():
            del self._beats[name]
        self._lately = {address: seen for address, seen in self._lately.items() if now - seen < _LATELY}
        if self.me in kept.members:  # else Redis has lost more than those who left
            self._unaccounted &= {member.address for member in kept.members.values()}

    def _go(self, event: Event) -> None:
        before, self._standing = self._standing, NEXT[self._standing][event]
        if self._standing is Standing.ALONE and before is not Standing.ALONE:
            self._epoch = self._highest = Epoch(self._highest.number + 1, self.me)


_OWNERS = frozenset({Standing.OWNING, Standing.LAPSED, Standing.CUT_OFF})
_DECIDING = frozenset({Standing.OWNING, Standing.CUT_OFF, Standing.ALONE})
