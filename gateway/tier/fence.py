"""PURE. The fence between a front and its owner: the front must stop obeying before the owner gives it up.

A front sends numbered heartbeats, and the owner returns each number. A front obeys for `OBEYED_WITHIN` after it *sent*
the last heartbeat that came back. The owner gives a front up `GIVEN_UP_AFTER` after it *heard* the last one, and
returns none from then on. A heartbeat is heard after it was sent, so a front has stopped obeying before it is given
up, however late anything arrives, and whatever either clock shows: only durations are compared, each on one clock.

That two owners never decide at once is the part of `election.py`. Here a front obeys none that has given it up. Clocks
are monotonic and go on while a process is stopped.
"""

from gateway.tier.epoch import Epoch

BEAT = 0.25
"""Seconds between two heartbeats."""
OBEYED_WITHIN = 1.0
"""Seconds."""
GIVEN_UP_AFTER = 2.0
"""Seconds. More than `OBEYED_WITHIN`, by more than two clocks can drift apart meanwhile."""


class Allegiance:
    """The owner that a front follows. A front has one allegiance for its whole life."""

    def __init__(self) -> None:
        self.epoch: Epoch | None = None
        """Of the owner that it follows; the greatest that it ever followed."""
        self.term: Term | None = None
        """Of the present connection."""

    def adopt(self, epoch: Epoch) -> bool:
        """Follow an owner. If true, take its snapshot at once, before anything else it says; if false, leave it."""
        if self.epoch is not None and epoch < self.epoch:
            return False
        if epoch != self.epoch:
            self.epoch = epoch
            if self.term is not None:
                self.term.renew()
        return True

    def connected(self) -> "Term":
        """There is a new connection. The term of an earlier one is over."""
        self.term = Term(self)
        return self.term


class Term:
    """The time for which a front obeys what comes over one connection."""

    def __init__(self, allegiance: Allegiance) -> None:
        self._allegiance = allegiance
        self._number = 0
        self._sent: dict[int, float] = {}
        """When each heartbeat was sent that may still come back."""
        self._until = -float("inf")

    def renew(self) -> None:
        """Obey nothing until a heartbeat that is sent from now on came back: another owner is followed."""
        self._sent.clear()
        self._until = -float("inf")

    def beat(self, now: float) -> int:
        """The number of a heartbeat that is sent now."""
        for number in [number for number, sent in self._sent.items() if sent + OBEYED_WITHIN < now]:
            del self._sent[number]  # should it come back, it is too old
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def returned(self, number: int) -> None:
        """The owner has returned the number of a heartbeat."""
        if (sent := self._sent.pop(number, None)) is not None:
            self._until = max(self._until, sent + OBEYED_WITHIN)

    def obeys(self, epoch: Epoch, now: float) -> bool:
        """Whether to do what an owner says, that says it with this epoch."""
        allegiance = self._allegiance
        return allegiance.term is self and epoch == allegiance.epoch and now <= self._until


class Patience:
    """An owner's, with one front: whether it is given up.

    Args:
        now: when it came.
    """

    def __init__(self, now: float) -> None:
        self.given_up = False
        """For good: it has to come again, with all that it has."""
        self._heard_at = now

    def heard(self, now: float) -> bool:
        """A heartbeat has come. Return its number only if true."""
        if not self.given_up:
            self._heard_at = now
        return not self.given_up

    def lapsed(self, now: float) -> bool:
        """Whether to give it up now. If true, take what it has from it."""
        if not self.given_up and now - self._heard_at > GIVEN_UP_AFTER:
            self.given_up = True
            return True
        return False
