"""The account of what each tenant has used of its limits, over all models.

A request is charged on its arrival by the count of its prompts, and on its end by the output tokens that the
engine reports, else by those that were noted. So is an estimated prompt: a bound may be many times its tokens, and
would keep others out until it is corrected. Neither is foreseen: a tenant that ran over its tokens pays before its next
request. Requests at once are kept by id, so that nothing can leak.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from gateway.admission.events import Owed, RequestId
from gateway.admission.limits.gcra import Charge, Rate
from gateway.admission.limits.limit import Exceeded, Limit, Limits, Standing

_EARLIER = Charge(inf, inf)
"""A charge of an earlier owner: nobody here knows when."""


class _Account:
    """What one tenant has used."""

    __slots__ = ("concurrent", "in_flight", "requests", "tokens")

    def __init__(self, limits: Limits) -> None:
        self.requests: Rate | None = None
        self.tokens: Rate | None = None
        self.in_flight: dict[RequestId, int] = {}
        """Output tokens so far, by request that waits or runs."""
        self.govern(limits)

    def govern(self, limits: Limits) -> None:
        """Go by other limits; what was used stays used."""
        self.requests = _rate(self.requests, limits.requests_per_minute)
        self.tokens = _rate(self.tokens, limits.tokens_per_minute)
        self.concurrent = limits.concurrent


class _Charged(NamedTuple):
    """A request of a tenant."""

    account: _Account
    prompt_tokens: int
    estimate: int
    """Of its prompt, if that is charged at its end."""
    requests: Charge | None
    tokens: Charge | None


class Tenants:
    """The limits of all tenants. Times are monotonic seconds.

    Args:
        limits: by flow; a flow without an entry has none.
    """

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limits: Mapping[str, Limits] = {}
        self._share = 1.0
        self._accounts: dict[str, _Account] = {}
        self._charged: dict[RequestId, _Charged] = {}
        self.limited = False
        """Whether there are limits, or requests that were charged to one. Asked at each event, so not computed then."""
        self.govern(limits)

    def govern(self, limits: Mapping[str, Limits]) -> None:
        """Go by other limits. What was used and what is in flight stays."""
        self._limits = limits
        for flow in self._accounts.keys() - limits.keys():
            del self._accounts[flow]
        for flow, its in limits.items():
            account = self._accounts.get(flow)
            if account is None:
                self._accounts[flow] = _Account(its.part(self._share))
            else:
                account.govern(its.part(self._share))
        self._note_limited()

    def restrict(self, share: float) -> None:
        """Grant no more than this share of each limit from now on: others that cannot be asked grant the rest."""
        if share != self._share:
            self._share = share
            self.govern(self._limits)

    def charge(
        self, flow: str, request: RequestId, prompt_tokens: int, now: float, *, estimated: bool = False
    ) -> Exceeded | None:
        """Charge an arriving request to its tenant, or say which limit it exceeds. One that does is not charged."""
        account = self._accounts.get(flow)
        if account is None:
            return None
        now_due, estimate = (0, prompt_tokens) if estimated else (prompt_tokens, 0)
        if (exceeded := _exceeded(account, now_due, now)) is not None:
            return exceeded
        self._enter(request, _Charged(account, now_due, estimate, *_charge(account, 1, now_due, now)))
        return None

    def exceeded(self, flow: str, prompt_tokens: int, now: float, *, estimated: bool = False) -> Exceeded | None:
        """The limit that a request would exceed if it arrived now. Changes nothing."""
        account = self._accounts.get(flow)
        return None if account is None else _exceeded(account, 0 if estimated else prompt_tokens, now)

    def declare(
        self, flow: str, request: RequestId, prompt_tokens: int, generated: int = 0, *, estimated: bool = False
    ) -> None:
        """Note a request in flight that an earlier owner of the decisions has charged."""
        account = self._accounts.get(flow)
        if account is not None and request not in self._charged:
            charged, estimate = (0, prompt_tokens) if estimated else (prompt_tokens, 0)
            self._enter(request, _Charged(account, charged, estimate, _EARLIER, _EARLIER))
            account.in_flight[request] = generated

    def generated(self, counts: Iterable[tuple[RequestId, int]]) -> None:
        """Note output tokens so far, which are charged if the engine does not report them in the end."""
        for request, tokens in counts:
            charged = self._charged.get(request)
            if charged is not None:
                charged.account.in_flight[request] = tokens

    def refund(self, request: RequestId, now: float) -> None:
        """Give back what a request was charged that no engine got: it was refused, or its client left.

        What time has paid of it meanwhile is not given back: it may have been used again.
        """
        if (charged := self._charged.pop(request, None)) is not None:
            account = charged.account
            del account.in_flight[request]
            if account.requests is not None and charged.requests is not None:
                account.requests.refund(1, charged.requests, now)
            if account.tokens is not None and charged.tokens is not None:
                account.tokens.refund(charged.prompt_tokens, charged.tokens, now)
            self._note_limited()

    def settle(
        self, request: RequestId, completion_tokens: int | None, now: float, prompt_tokens: int | None = None
    ) -> None:
        """Charge the output of a request that has ended, and its prompt if that was estimated.

        None: as many output tokens as were noted, and as many of the prompt as were estimated.
        """
        if (charged := self._charged.pop(request, None)) is not None:
            noted = charged.account.in_flight.pop(request)
            output = noted if completion_tokens is None else completion_tokens
            _charge(charged.account, 0, output + (charged.estimate if prompt_tokens is None else prompt_tokens), now)
            self._note_limited()

    def standing(self, flow: str, now: float) -> Standing | None:
        """Where a tenant stands; None if it has no rates."""
        account = self._accounts.get(flow)
        return None if account is None else _standing(account, now)

    def standing_of(self, request: RequestId, now: float) -> Standing | None:
        """Where the tenant of a request in its charge stands; None if it has no rates."""
        charged = self._charged.get(request)
        return None if charged is None else _standing(charged.account, now)

    def owed(self, now: float) -> tuple[Owed, ...]:
        """What tenants have used, for the next owner of the decisions."""
        owed = [
            Owed(flow, *[0.0 if rate is None else rate.debt(now) for rate in (account.requests, account.tokens)])
            for flow, account in self._accounts.items()
        ]
        return tuple(its for its in owed if its.requests or its.tokens)

    def restore(self, owed: Iterable[Owed], at: float) -> None:
        """Take over what an earlier owner of the decisions had charged at that time, if it is more."""
        for its in owed:
            account = self._accounts.get(its.flow)
            if account is None:
                continue
            for rate, seconds in ((account.requests, its.requests), (account.tokens, its.tokens)):
                if rate is not None:
                    rate.full_at = max(rate.full_at, at + seconds)

    def _note_limited(self) -> None:
        self.limited = bool(self._accounts or self._charged)

    def _enter(self, request: RequestId, charged: _Charged) -> None:
        self._charged[request] = charged
        charged.account.in_flight[request] = 0


def _exceeded(account: _Account, prompt_tokens: int, now: float) -> Exceeded | None:
    if account.concurrent is not None and len(account.in_flight) >= account.concurrent:
        return Exceeded(Limit.CONCURRENT, account.concurrent, len(account.in_flight) + 1, None)
    asked = ((Limit.REQUESTS, account.requests, 1), (Limit.TOKENS, account.tokens, prompt_tokens))
    for which, rate, amount in asked:
        if rate is not None and (missing := rate.missing(amount, now)) > 0:
            return Exceeded(which, rate.limit, amount, missing if missing < float("inf") else None)
    return None


def _standing(account: _Account, now: float) -> Standing | None:
    if account.requests is None and account.tokens is None:
        return None
    quotas = [None if rate is None else rate.quota(now) for rate in (account.requests, account.tokens)]
    return Standing(*quotas)


def _charge(account: _Account, requests: int, tokens: int, now: float) -> tuple[Charge | None, Charge | None]:
    return (
        None if account.requests is None else account.requests.charge(requests, now),
        None if account.tokens is None else account.tokens.charge(tokens, now),
    )


def _rate(rate: Rate | None, limit: int | None) -> Rate | None:
    if rate is None or limit is None:
        return None if limit is None else Rate(limit)
    rate.limit = limit
    return rate
