"""A rate limit of one number: the generic cell rate algorithm (GCRA, ITU-T I.371), as virtual scheduling.

`full_at` is the time at which all of the rate is there again. A charge moves it into the future; a charge is allowed
while it lies at most a minute ahead. So a tenant that was idle may use a minute's worth at once.
"""

from typing import NamedTuple

from gateway.admission.limits.limit import Quota

WINDOW = 60.0
"""Seconds over which a rate is given, and worth of it that an idle tenant may use at once."""
_ROUNDING = 1e-6
"""Share of a charge by which sums of fractions may miss it."""


class Charge(NamedTuple):
    """When an amount was charged, and when time alone will have paid it if no earlier charge is refunded."""

    at: float
    paid_at: float


class Rate:
    """What one tenant has used of one rate.

    Attributes:
        limit: allowed in a minute.
        full_at: monotonic seconds.
    """

    __slots__ = ("_returned", "full_at", "limit")

    def __init__(self, limit: int, full_at: float = 0.0) -> None:
        self.limit = limit
        self.full_at = full_at
        self._returned = 0.0
        """Seconds' worth that was given back so far."""

    def missing(self, amount: int, now: float) -> float:
        """Seconds until this amount may be charged; 0 if it may be now. Infinite: it is over a minute's worth."""
        if amount > self.limit:
            return float("inf")
        wait = self.debt(now) + self._seconds(amount) - WINDOW
        return wait if wait > _ROUNDING * WINDOW else 0.0

    def charge(self, amount: int, now: float) -> Charge:
        """Charge an amount, also one that is over what is left: it is paid by the next."""
        self.full_at = max(self.full_at, now) + self._seconds(amount)
        return Charge(now, self.full_at + self._returned)

    def refund(self, amount: int, charge: Charge, now: float) -> None:
        """Refund what time has not yet paid of a charge. The oldest charges are paid first.

        Charges refunded meanwhile count as older ones, so that less of this one is left to refund.
        """
        seconds = self._seconds(amount)
        unpaid = max(0.0, charge.paid_at - self._returned - now, charge.at + seconds - now)
        returned = min(seconds, unpaid)
        self._returned += returned
        self.full_at = max(now, self.full_at - returned)

    def debt(self, now: float) -> float:
        """Seconds until all of it is there again."""
        return max(0.0, self.full_at - now)

    def quota(self, now: float) -> Quota:
        """What is left."""
        debt = self.debt(now)
        remaining = int((WINDOW - debt) / WINDOW * self.limit + _ROUNDING)
        return Quota(self.limit, max(0, remaining), debt)

    def _seconds(self, amount: int) -> float:
        return amount * WINDOW / self.limit
