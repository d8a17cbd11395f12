"""The difference between an engine's KV cache gauge and our ledger."""

from collections import deque
from math import inf
from typing import NamedTuple

from gateway.admission.account.ewma import Ewma
from gateway.admission.tuning import TUNING

GRAIN = 0.01
"""Least time between two history entries, seconds: finer than any engine's step."""


class Account(NamedTuple):
    """Bounds of the ledger since a time: fewest blocks confirmed, most blocks held, most sequences without a token."""

    confirmed: int
    held: int
    unconfirmed_sequences: int


class History:
    """The ledger's recent totals. A gauge sample is compared with the totals of its own time."""

    __slots__ = ("_accounts", "_span")

    def __init__(self, span: float) -> None:
        self._span = span
        self._accounts: deque[tuple[float, int, int, int]] = deque([(-inf, 0, 0, 0)])

    def record(self, at: float, confirmed: int, held: int, unconfirmed_sequences: int) -> None:
        """Record the totals that hold from this time on. Within `GRAIN`, later totals replace earlier ones."""
        accounts = self._accounts
        last = accounts[-1][0]
        if at - last < GRAIN:
            accounts[-1] = (last, confirmed, held, unconfirmed_sequences)
            return
        accounts.append((at, confirmed, held, unconfirmed_sequences))
        oldest = at - self._span
        while accounts[1][0] < oldest:
            accounts.popleft()

    def since(self, at: float) -> Account:
        """The bounds of the totals since a time."""
        _, confirmed, held, unconfirmed = self._accounts[-1]
        for entry in reversed(self._accounts):
            confirmed = min(confirmed, entry[1])
            held = max(held, entry[2])
            unconfirmed = max(unconfirmed, entry[3])
            if entry[0] <= at:
                break
        return Account(confirmed, held, unconfirmed)


class Correction:
    """Blocks to add to the ledger: positive for traffic that bypasses us, negative for sharing that we cannot see.

    A dispatched request may not have reached the engine yet. So a gauge between the blocks confirmed and the blocks
    held agrees with the ledger. An EWMA smooths the differences. A sample counts fully for `fresh_polls`, then fades
    to zero within as many more: an old or frozen gauge must not rule.

    An exact gauge tells what the requests in the engine may come to hold. It is taken as it is: they share nothing, and
    a difference smoothed would let a request go where those of others hold its room. What others hold is what the gauge
    shows beyond ours, of which all or only those confirmed are in it. Where both agree with what others held before,
    that is still true.
    """

    __slots__ = ("_difference", "_exact", "_poll", "_sampled_at")

    def __init__(self, poll_interval: float, *, exact: bool = False) -> None:
        self._difference = Ewma(TUNING.smoothing_polls * poll_interval)
        self._exact = exact
        self._poll = poll_interval
        self._sampled_at = 0.0

    def sample(self, blocks: float, account: Account, sampled_at: float, *, waiting: bool) -> None:
        """Compare a gauge sample with the ledger at the time of the sample.

        Args:
            blocks: Blocks in use, by the gauge.
            account: The ledger's bounds at the time of the sample.
            sampled_at: Time of the sample, seconds.
            waiting: Whether requests waited in the engine. Then a low gauge means preemption, not sharing, and is
                ignored: a preempted request waits without its blocks and will take them again.
        """
        difference = 0.0
        if self._exact:
            difference = max(0.0, blocks - account.held, min(self._difference.value, blocks - account.confirmed))
            self._difference.reset()
        elif blocks > account.held:
            difference = blocks - account.held
        elif blocks < account.confirmed and not waiting:
            difference = blocks - account.confirmed
        self._difference.sample(difference, sampled_at)
        self._sampled_at = sampled_at

    def read(self, now: float) -> float:
        """Blocks to add now; negative if the engine holds fewer than the ledger."""
        value = self._difference.value
        if not value:
            return 0.0
        left = 2.0 - (now - self._sampled_at) / self._poll / TUNING.fresh_polls
        if left >= 1.0:
            return value
        return value * left if left > 0.0 else 0.0

    def reset(self) -> None:
        """Forget all samples: nothing of ours is in flight."""
        self._difference.reset()
