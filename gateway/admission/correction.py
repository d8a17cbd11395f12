"""What an endpoint's gauge says of its KV cache beyond our ledger."""

from collections import deque
from math import inf
from typing import NamedTuple

from gateway.admission.low_pass import LowPass
from gateway.admission.policy import FRESH_POLLS

SMOOTHING_POLLS = 2.0
"""Polls over which the difference is smoothed."""
GRAIN = 0.01
"""Seconds between two entries of the history: finer than any engine's step."""


class Account(NamedTuple):
    """The ledger's bounds around one time: blocks confirmed, blocks held, sequences without a token."""

    confirmed: int
    held: int
    unconfirmed_sequences: int


class History:
    """The ledger's totals of the last seconds, so that a sample is compared with the time it was taken at."""

    __slots__ = ("_accounts", "_span")

    def __init__(self, span: float) -> None:
        self._span = span
        self._accounts: deque[tuple[float, int, int, int]] = deque([(-inf, 0, 0, 0)])

    def record(self, at: float, confirmed: int, held: int, unconfirmed_sequences: int) -> None:
        """Note the totals as they are from this time on. Within `GRAIN` the later ones replace the earlier."""
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
        """The fewest blocks confirmed, the most held and the most sequences without a token since a time."""
        _, confirmed, held, unconfirmed = self._accounts[-1]
        for entry in reversed(self._accounts):
            confirmed = min(confirmed, entry[1])
            held = max(held, entry[2])
            unconfirmed = max(unconfirmed, entry[3])
            if entry[0] <= at:
                break
        return Account(confirmed, held, unconfirmed)


class Correction:
    """Blocks to add to what the ledger holds: traffic that goes around us, or sharing that we cannot see.

    What we dispatched may or may not be in the engine yet, so only what is above all we held, or below what was
    confirmed, differs. Differences are smoothed. A sample counts in full while it is fresh (`FRESH_POLLS`) and
    fades to nothing over as long again: a gauge that is old or frozen must not rule.
    """

    __slots__ = ("_difference", "_poll", "_sampled_at")

    def __init__(self, poll_interval: float) -> None:
        self._difference = LowPass(SMOOTHING_POLLS * poll_interval)
        self._poll = poll_interval
        self._sampled_at = 0.0

    def sample(self, blocks: float, account: Account, sampled_at: float, *, waiting: bool) -> None:
        """Compare a sample of the gauge with the account of its time.

        Args:
            blocks: in use by the gauge.
            account: the ledger at the time of the sample.
            sampled_at: that time, seconds.
            waiting: whether requests waited in the engine. A preempted one waits without its blocks: what is
                missing then is no sharing, and will come back.
        """
        difference = 0.0
        if blocks > account.held:
            difference = blocks - account.held
        elif blocks < account.confirmed and not waiting:
            difference = blocks - account.confirmed
        self._difference.sample(difference, sampled_at)
        self._sampled_at = sampled_at

    def read(self, now: float) -> float:
        """Blocks to add now; negative where the engine holds less than we think."""
        value = self._difference.value
        if not value:
            return 0.0
        left = 2.0 - (now - self._sampled_at) / self._poll / FRESH_POLLS
        if left >= 1.0:
            return value
        return value * left if left > 0.0 else 0.0

    def reset(self) -> None:
        """Start over: nothing of ours is in flight."""
        self._difference.reset()
