"""The rules by which an endpoint refuses a request: one table, a row per rule, in the order of evaluation.

Refusals, the room that must become free before a request fits, the reasons of a closed endpoint, backfill and the
documentation's table all come from this table. A new rule is a new row; it finds the settings in `endpoint.policy`. A
head that is refused keeps its endpoints from other lanes and less urgent bands.

A rule that holds back one flow says `Next.OTHER_FLOWS`: the flow is set aside, and keeps nothing. It stands before
every row that keeps something: else such a row could refuse its head first, and keep an endpoint that it may not use.
These first rows are asked only while `Policy.holds_back_flows`, so a new one adds its setting there. `Ask.measure`
is not called for them: such a row reads the request and the endpoint (`EndpointRecord.usage`). `share` alone holds back
a flow as the last row: it refuses only what would go otherwise.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import takewhile
from math import inf
from typing import Final

from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.tuning import TUNING


class Unit(StrEnum):
    """Unit of a shortage."""

    SECONDS = "seconds"
    SEQUENCES = "sequences"
    BLOCKS = "blocks"


class Next(Enum):
    """Requests that may be offered to an endpoint after it refused one."""

    NOBODY = auto()
    SMALLER = auto()
    """Smaller requests of its lane: they may fit."""
    OTHER_FLOWS = auto()
    """Requests of other flows. Its own is set aside for this offer, and no endpoint is kept for it."""


_NOBODY: Final = Next.NOBODY  # Python 3.11 looks a member up by a call, and each event asks for several
_OTHER_FLOWS: Final = Next.OTHER_FLOWS
_SMALLER: Final = Next.SMALLER


class Ask:
    """A request and an endpoint at one time. A request of None stands for the smallest possible request."""

    __slots__ = ("_short_at_peak", "beyond", "blocks", "endpoint", "first", "now", "request", "short")

    def __init__(self, endpoint: EndpointRecord, request: RequestRecord | None, now: float) -> None:
        self.endpoint = endpoint
        self.request = request
        self.now = now

    def measure(self, blocks: int) -> None:
        """Measure the request against a KV cache of this many blocks."""
        endpoint, request = self.endpoint, self.request
        self.blocks = blocks
        self.first = 1 if request is None else endpoint.first_blocks(request)
        """Blocks that the request would add with its first token."""
        self.beyond = endpoint.beyond(self.now)
        """Blocks in use that the ledger does not know of."""
        self.short = max(0.0, endpoint.ledger.used + self.beyond) + self.first - endpoint.most * blocks
        """Blocks by which the request would take the cache over its fence; negative if room is left."""
        self._short_at_peak: float | None = None

    @property
    def short_at_peak(self) -> float:
        """Blocks by which the predicted peak with the request is over what the forecast may fill."""
        short = self._short_at_peak
        if short is None:
            endpoint, request = self.endpoint, self.request
            if request is None or not endpoint.forecasts:
                short = -inf
            else:
                short = endpoint.peak_with(request, self.first) + self.beyond - endpoint.fill * self.blocks
            self._short_at_peak = short
        return short


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to refuse a request.

    Attributes:
        name: Name in `/kvgate/explain`, `/kvgate/state`, the event log and the documentation.
        says_no: The condition under which it refuses, for people.
        shortage: Amount missing, in `unit`; 0 or less if nothing is missing.
        unit: Unit of the shortage; None if it only says whether the rule refuses.
        after: Requests that may be offered to the endpoint next.
        frees: Whether the shortage must become free before the request goes, and so adds to its predicted wait.
        closes: Whether the rule can refuse every request, and so closes the endpoint.
        foresees: Whether its shortage follows from the forecast.
        lasts: Whether it refuses until a request leaves the endpoint, a scrape or a change of it comes, or its
            `next_change` passes, whatever progress is made meanwhile. The rows before it are alike.
        idle: Whether the rule also applies to an endpoint without requests of ours. Other rules do not: a request that
            exceeds a limit would wait for ever.
        measures: Whether the rule needs `Ask.measure`. Skipped while the size of the KV cache is unknown.
    """

    name: str
    says_no: str
    shortage: Callable[[Ask], float]
    unit: Unit | None = None
    after: Next = Next.NOBODY
    frees: bool = False
    closes: bool = False
    foresees: bool = False
    lasts: bool = False
    idle: bool = False
    measures: bool = False


def _kv_share(ask: Ask) -> float:
    return 0 if ask.request is None else ask.request.over_share / ask.endpoint.capacity.block_size


def _busy(ask: Ask) -> float:
    return ask.endpoint.gate.busy_until - ask.now


def _sequences(ask: Ask) -> float:
    limit = ask.endpoint.limit.value
    if limit is None:
        return 0
    return ask.endpoint.ledger.sequences + (1 if ask.request is None else ask.request.sequences) - limit


def _cold(ask: Ask) -> float:
    endpoint = ask.endpoint
    return endpoint.beside_warm and not endpoint.warm and not endpoint.idle


def _gate(ask: Ask) -> float:
    return ask.endpoint.gate.closed


def _engine_waiting(ask: Ask) -> float:
    return ask.endpoint.gate.engine_waits(ask.now)


def _prefill(ask: Ask) -> float:
    unseen = ask.endpoint.ledger.unseen if ask.endpoint.grows else 0
    return unseen + ask.first - TUNING.unseen_share * ask.blocks if unseen else 0


def _kv(ask: Ask) -> float:
    return ask.short


def _forecast(ask: Ask) -> float:
    return ask.short_at_peak


def _share(ask: Ask) -> float:
    if ask.request is None or not ask.request.spare:
        return 0
    kept = min(ask.request.spare / ask.endpoint.capacity.block_size, TUNING.most_spared * ask.blocks)
    return kept + max(ask.short, ask.short_at_peak)


KV_SHARE = Rule(
    "kv_share",
    "its key's requests would hold more than their `kv_share` of the model's KV cache",
    _kv_share,
    Unit.BLOCKS,
    after=Next.OTHER_FLOWS,
    idle=True,
)
BUSY = Rule(
    "busy",
    "it refused a request for lack of room: for a second, or until the next scrape",
    _busy,
    Unit.SECONDS,
    closes=True,
    lasts=True,
    idle=True,
)
SEQUENCES = Rule(
    "sequences",
    "it would run more sequences than its limit, configured or learned",
    _sequences,
    Unit.SEQUENCES,
    closes=True,
    lasts=True,
)
COLD = Rule(
    "cold",
    "it has a request and generated nothing since it came up, and another endpoint has",
    _cold,
    closes=True,
    lasts=True,
)
GATE = Rule(
    "gate",
    "effective usage went over `kv_high` (0.90) and is not yet under `kv_low` (0.80)",
    _gate,
    after=Next.SMALLER,
    closes=True,
)
ENGINE_WAITING = Rule(
    "engine_waiting",
    "requests that we cannot account for wait in the engine, in two consecutive scrapes",
    _engine_waiting,
    closes=True,
)
PREFILL = Rule(
    "prefill",
    "streams without a token would hold over a third of the cache: they have yet to grow",
    _prefill,
    Unit.BLOCKS,
    after=Next.SMALLER,
    closes=True,
    measures=True,
)
KV = Rule(
    "kv",
    "with the request it would hold more than `kv_high` now",
    _kv,
    Unit.BLOCKS,
    after=Next.SMALLER,
    frees=True,
    measures=True,
)
FORECAST = Rule(
    "forecast",
    "its predicted peak with the request is over what the forecast may fill",
    _forecast,
    Unit.BLOCKS,
    after=Next.SMALLER,
    frees=True,
    foresees=True,
    measures=True,
)
SHARE = Rule(
    "share",
    "it fits, but the request's flow has its share, and the room is kept for other flows",
    _share,
    Unit.BLOCKS,
    after=Next.OTHER_FLOWS,
    foresees=True,
    measures=True,
)

RULES = (KV_SHARE, BUSY, SEQUENCES, COLD, GATE, ENGINE_WAITING, PREFILL, KV, FORECAST, SHARE)
"""All rules in the order of evaluation; those that measure come last. The first that refuses is the reason given."""
_HOLDING = tuple(takewhile(lambda rule: rule.after is _OTHER_FLOWS, RULES))
"""Those that hold back one flow: asked first, and only while the policy holds back flows."""
_ASKED_IDLE = tuple(rule for rule in RULES if rule.idle and rule not in _HOLDING)
_PLAIN = tuple(rule for rule in RULES if not rule.measures and rule not in _HOLDING)
_MEASURING = tuple(rule for rule in RULES if rule.measures)
_FREEING = tuple(rule for rule in RULES if rule.frees)


def refusal(endpoint: EndpointRecord, request: RequestRecord, now: float) -> Rule | None:
    """The rule that refuses the request on this endpoint now; None if it may go. Its prompts fit the endpoint.

    The endpoint's account is up to date (`EndpointRecord.settle`), and its forecast has not expired.
    """
    ask = Ask(endpoint, request, now)
    idle = endpoint.idle
    if endpoint.holds_back_flows and (rule := _held_by(ask, idle=idle)) is not None:
        return rule
    for rule in _ASKED_IDLE if idle else _PLAIN:
        if rule.shortage(ask) > 0:
            return rule
    blocks = endpoint.capacity.kv_blocks
    if blocks is not None and not idle:
        ask.measure(blocks)
        for rule in _MEASURING:
            if rule.shortage(ask) > 0:
                return rule
    return None


def holds_back(endpoint: EndpointRecord, request: RequestRecord, now: float) -> bool:
    """Whether the endpoint refuses the request for its flow's sake: it does not wait for room."""
    return _held_by(Ask(endpoint, request, now), idle=endpoint.idle) is not None


def _held_by(ask: Ask, *, idle: bool) -> Rule | None:
    for rule in _HOLDING:
        if (rule.idle or not idle) and rule.shortage(ask) > 0:
            return rule
    return None


def lacking(rule: Rule, endpoint: EndpointRecord, request: RequestRecord, now: float) -> float | None:
    """The shortage by which a rule refuses the request, in the rule's unit; None if it has none."""
    if rule.unit is None:
        return None
    ask = Ask(endpoint, request, now)
    if rule.measures and endpoint.capacity.kv_blocks is not None:
        ask.measure(endpoint.capacity.kv_blocks)
    return rule.shortage(ask)


def deficit(endpoint: EndpointRecord, request: RequestRecord, now: float) -> float:
    """Tokens that must become free on the endpoint before the request fits."""
    blocks = endpoint.capacity.kv_blocks
    if blocks is None:
        return 0.0
    ask = Ask(endpoint, request, now)
    ask.measure(blocks)
    return max(0.0, *[rule.shortage(ask) for rule in _FREEING]) * endpoint.capacity.block_size


def closed_by(endpoint: EndpointRecord, now: float) -> tuple[Rule, ...]:
    """The rules that close the endpoint to every request; empty while it is open."""
    ask = Ask(endpoint, None, now)
    blocks = endpoint.capacity.kv_blocks
    if blocks is not None:
        ask.measure(blocks)
    asked = RULES if blocks is not None else _PLAIN
    return tuple(rule for rule in asked if rule.closes and rule.shortage(ask) > 0)


def may_fit(endpoint: EndpointRecord, now: float) -> bool:
    """Whether a request might fit: no rule closes the endpoint without measuring."""
    ask = Ask(endpoint, None, now)
    for rule in _PLAIN:  # noqa: SIM110 - a generator would cost as much as the rules
        if rule.shortage(ask) > 0:
            return False
    return True


def shut_until(endpoints: Iterable[EndpointRecord], now: float) -> float:
    """Time up to which each endpoint refuses all requests alike; -infinity if one may take somebody now.

    Alike: nobody may be offered next, and no flow is set aside. If that holds beyond `now`, neither progress nor time
    changes it before.
    """
    until = inf
    for endpoint in endpoints:
        if endpoint.holds_back_flows:
            return -inf
        ask = Ask(endpoint, None, now)
        for rule in _ASKED_IDLE if endpoint.idle else _PLAIN:
            if rule.shortage(ask) > 0:
                if rule.after is not _NOBODY:
                    return -inf
                lasting = rule.lasts and not endpoint.ledger.aborting  # progress may show that these have gone
                until = min(until, endpoint.next_change if lasting else now)
                break
        else:
            return -inf
    return until


def next_in_line(refusals: Sequence[tuple[EndpointRecord, Rule]]) -> Next:
    """Requests that may be offered next, after all endpoints refused one."""
    after: Next = _NOBODY
    for _, rule in refusals:
        if rule.after is _OTHER_FLOWS:
            return _OTHER_FLOWS
        if rule.after is _SMALLER:
            after = _SMALLER
    return after
