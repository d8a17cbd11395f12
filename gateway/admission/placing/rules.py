"""The rules by which an endpoint declines a request: one table, a row per rule, in the order of evaluation.

Placement, the room that must become free before a request fits, the reasons of a closed endpoint, backfill and the
documentation's table all come from this table. An endpoint that declines a head is kept for it: other lanes and less
urgent bands do not get it. A rule that throttles the head's flow keeps none.

To add a rule, touch these, and run `make docs` for its documentation:

- here its function, and its row in `RULES`;
- what it tells people to do, in `docs/symptoms.md` ("Requests wait though the cache has room");
- its setting, if it has one: a field of `Policy` (`gateway/admission/policy.py`), which the rule reads from
  `ask.endpoint.policy`, and one of the same name and default in `AdmissionSettings` (`gateway/config/admission.py`). A
  setting for all is live with that; one of each API key goes the way of `kv_share`: auth.py, admission.py and
  reloadable.py of `gateway/config`, `app/owner.py`, and lines.py and replay.py of `gateway/record`;
- a case in `SAY_NO` (`tests/unit/admission/placing/test_rules.py`), where every row is tried. A rule with a setting
  also gets a policy in `POLICIES` (`tests/property/test_admission.py`), which holds it to the core's invariants.

A rule that throttles a flow has `after=Next.OTHER_FLOWS`: the flow is set aside, and no endpoint is kept for it. Such a
rule stands at the top of the table: below a rule that keeps endpoints it would come too late. `closes` and `lasts` stay
False. Its `in_force` names its setting. It may read `ask.request` (None if none is asked for), `ask.endpoint.policy`
and `ask.endpoint.usage(ask.now)` (None if unknown), but not what `Ask.measure` sets. It leaves `idle` False if traffic
that does not go through kvgate can make it decline: on an endpoint without requests of ours the flow would wait for
ever. While such a rule is in force, no arrival goes past the empty queue (`AdmissionController._bypass_queue`).
`sequence_share` and `share`, the last that does not measure and the last of all, set a flow aside from further below,
for others of its band (`Next.ITS_BAND`): they decline what has a place, and what has room.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import takewhile
from math import inf
from typing import Final

from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.policy import Policy
from gateway.admission.tuning import TUNING


class Unit(StrEnum):
    """Unit of a shortage."""

    SECONDS = "seconds"
    SEQUENCES = "sequences"
    BLOCKS = "blocks"


class Next(Enum):
    """Requests that may be offered to an endpoint after it declined one."""

    NOBODY = auto()
    SMALLER = auto()
    """Smaller requests of its lane: they may fit."""
    OTHER_FLOWS = auto()
    """Requests of other flows. Its own are set aside until a later offer, and no endpoint is kept for it."""
    ITS_BAND = auto()
    """The same, but of its band and more urgent ones: the room that it leaves free is for these."""


_NOBODY: Final = Next.NOBODY  # constants: in Python 3.11 each access to an enum member is a function call
_OTHER_FLOWS: Final = Next.OTHER_FLOWS
_ITS_BAND: Final = Next.ITS_BAND
_SMALLER: Final = Next.SMALLER


class Ask:
    """A request and an endpoint at one time. A request of None stands for the smallest possible request."""

    __slots__ = ("_short_at_peak", "cache_blocks", "endpoint", "first", "now", "request", "short", "unaccounted")

    def __init__(self, endpoint: EndpointRecord, request: RequestRecord | None, now: float) -> None:
        self.endpoint = endpoint
        self.request = request
        self.now = now

    def measure(self, blocks: int) -> None:
        """Measure the request against a KV cache of this many blocks."""
        endpoint, request = self.endpoint, self.request
        self.cache_blocks = blocks
        self.first = 1 if request is None else endpoint.first_blocks(request)
        """Blocks that the request would add with its first token."""
        self.unaccounted = endpoint.unaccounted(self.now)
        """Blocks in use that the ledger does not know of."""
        self.short = max(0.0, endpoint.ledger.used + self.unaccounted) + self.first - endpoint.max_usage * blocks
        """Blocks by which the request would take the cache over what a dispatch may use; negative if room is left."""
        self._short_at_peak: float | None = None

    @property
    def short_at_peak(self) -> float:
        """Blocks by which the predicted peak with the request is over what the forecast may fill.

        If the request surely ends before, a peak that is too high is none of its doing: the most until its end counts.
        """
        short = self._short_at_peak
        if short is None:
            endpoint, request = self.endpoint, self.request
            if request is None or not endpoint.forecasts:
                short = -inf
            else:
                peak = endpoint.peak_with(request, self.first) + self.unaccounted
                most = endpoint.forecast_limit * self.cache_blocks
                short = peak - most
                if short > 0 and (use := endpoint.use_until_end(request, self.first)) is not None:
                    short = use + self.unaccounted - most
            self._short_at_peak = short
        return short


def _always(_: Policy) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to decline a request.

    Attributes:
        name: Name in `/kvgate/explain`, `/kvgate/state`, the event log and the documentation.
        says_no: The condition under which it declines, for people.
        shortage: Amount missing, in `unit`; 0 or less if nothing is missing.
        unit: Unit of the shortage; None if it only says whether the rule declines.
        after: Requests that may be offered to the endpoint next.
        frees: Whether the shortage is KV blocks that must become free before the request goes. The largest of these
            shortages (`tokens_to_free`) is part of its predicted wait.
        closes: Whether the rule can decline every request, and so closes the endpoint.
        foresees: Whether its shortage follows from the forecast.
        lasts: Whether progress cannot end it: it declines until a request leaves the endpoint, a scrape or a change of
            the endpoint comes, or `next_change` passes. Only rows that throttle a flow stand above such rows.
        in_force: Whether it can decline anything under a policy. Asked of the top rows, which throttle a flow: without
            one in force, the core spares all work for flows that are set aside.
        idle: Whether the rule also applies to an endpoint without requests of ours. Other rules do not apply there: a
            request over a limit would wait for ever. One that measures applies there only if the engine reserves a
            request's whole limit: it never preempts, and could fail other clients' requests to make room for ours.
        measures: Whether the rule needs `Ask.measure`. Skipped while the size of the KV cache is unknown.
        spares: Whether it also declines where the engine may not work: on trial, failing or cold. Observe mode goes by
            it, too, if another endpoint is there. A row that measures cannot have it.
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
    spares: bool = False
    in_force: Callable[[Policy], bool] = _always


def _kv_share(ask: Ask) -> float:
    return 0 if ask.request is None else ask.request.over_share / ask.endpoint.capacity.block_size


def _busy(ask: Ask) -> float:
    return ask.endpoint.busy_for(ask.now)


def _failing(ask: Ask) -> float:
    return ask.endpoint.beside_sound and ask.endpoint.failing(ask.now)


def _sequences(ask: Ask) -> float:
    limit = ask.endpoint.sequence_limit.value
    if limit is None:
        return 0
    # One free place is enough for a request of several sequences. They begin as places become free: to keep these until
    # all are would leave the engine idle meanwhile.
    return ask.endpoint.ledger.sequences + 1 - limit


def _cold(ask: Ask) -> float:
    endpoint = ask.endpoint
    return endpoint.cold and not endpoint.all_cold and not endpoint.idle


def _gate(ask: Ask) -> float:
    return ask.endpoint.gate.closed


def _engine_waiting(ask: Ask) -> float:
    return ask.endpoint.gate.engine_waits(ask.now)


def _engine_backlog(ask: Ask) -> float:
    return ask.endpoint.engine_backlog(ask.now) - TUNING.engine_backlog


def _sequence_share(ask: Ask) -> float:
    limit = ask.endpoint.sequence_limit.value
    if ask.request is None or not ask.request.spare_places or limit is None:
        return 0
    kept = min(ask.request.spare_places, round(TUNING.most_places_spared * limit))
    begin = ask.request.sequences if ask.request.as_a_whole else 1
    return ask.endpoint.ledger.sequences + begin + kept - limit


def _prefill(ask: Ask) -> float:
    prefilling = ask.endpoint.ledger.prefilling_blocks if ask.endpoint.grows else 0
    return prefilling + ask.first - TUNING.prefilling_share * ask.cache_blocks if prefilling else 0


def _kv(ask: Ask) -> float:
    return ask.short


def _forecast(ask: Ask) -> float:
    return ask.short_at_peak


def _share(ask: Ask) -> float:
    if ask.request is None or not ask.request.spare:
        return 0
    kept = min(ask.request.spare / ask.endpoint.capacity.block_size, TUNING.most_spared * ask.cache_blocks)
    return kept + max(ask.short, ask.short_at_peak)


RULES = (
    Rule(
        "kv_share",
        "the requests of its key would hold more than their `kv_share` of the model's KV cache",
        _kv_share,
        Unit.BLOCKS,
        after=Next.OTHER_FLOWS,
        idle=True,
        in_force=lambda policy: bool(policy.kv_shares),
    ),
    Rule(
        "busy",
        "the engine refused a request as it is busy, and has as many of ours as then: for a second, or until the next "
        "scrape",
        _busy,
        Unit.SECONDS,
        closes=True,
        lasts=True,
        idle=True,
    ),
    Rule(
        "failing",
        "the endpoint failed on three requests in a row, and another endpoint has not: until a later one has a token, "
        "for which one is tried every five seconds",
        _failing,
        closes=True,
        idle=True,
        spares=True,
    ),
    Rule(
        "sequences",
        "the endpoint runs as many sequences as its limit, configured or learned",
        _sequences,
        Unit.SEQUENCES,
        closes=True,
        lasts=True,
        spares=True,
    ),
    Rule(
        "cold",
        "the endpoint has a request and generated nothing since it came up, and another endpoint has",
        _cold,
        closes=True,
        lasts=True,
        spares=True,
    ),
    Rule(
        "gate",
        "effective usage went over `kv_high` (0.90) and is not yet under `kv_low` (0.80)",
        _gate,
        after=Next.SMALLER,
        closes=True,
    ),
    Rule(
        "engine_waiting",
        "requests that we cannot account for wait in the engine, in two consecutive scrapes",
        _engine_waiting,
        closes=True,
    ),
    Rule(
        "engine_backlog",
        "the prompts that wait in the engine are over a second of its work: it is slow, or at a limit of its own",
        _engine_backlog,
        Unit.SECONDS,
        closes=True,
    ),
    Rule(
        "sequence_share",
        "its flow has its share of the sequences, and the free places are kept for other flows",
        _sequence_share,
        Unit.SEQUENCES,
        after=Next.ITS_BAND,
    ),
    Rule(
        "prefill",
        "streams without a token would hold over a third of the cache: they have yet to grow",
        _prefill,
        Unit.BLOCKS,
        after=Next.SMALLER,
        closes=True,
        measures=True,
    ),
    Rule(
        "kv",
        "with the request the endpoint would hold more than `kv_high` now",
        _kv,
        Unit.BLOCKS,
        after=Next.SMALLER,
        frees=True,
        idle=True,
        measures=True,
    ),
    Rule(
        "forecast",
        "the endpoint is predicted to hold more than the forecast may fill while the request runs",
        _forecast,
        Unit.BLOCKS,
        after=Next.SMALLER,
        frees=True,
        foresees=True,
        measures=True,
    ),
    Rule(
        "share",
        "the request fits, but its flow has its share, and the room is kept for other flows",
        _share,
        Unit.BLOCKS,
        after=Next.ITS_BAND,
        foresees=True,
        measures=True,
    ),
)
"""All rules in the order of evaluation; those that measure come last. The first that declines is the reason given."""
_THROTTLING = tuple(takewhile(lambda rule: rule.after is _OTHER_FLOWS, RULES))
"""The top rows, which throttle a flow."""
_PLAIN = tuple(rule for rule in RULES if not rule.measures and rule not in _THROTTLING)
_PLAIN_IDLE = tuple(rule for rule in _PLAIN if rule.idle)
_MEASURING = tuple(rule for rule in RULES if rule.measures)
_MEASURING_IDLE = tuple(rule for rule in _MEASURING if rule.idle)
_FREEING = tuple(rule for rule in RULES if rule.frees)
_SPARING = tuple(rule for rule in RULES if rule.spares)


def throttling(policy: Policy) -> tuple[Rule, ...]:
    """The top rows, which throttle a flow, as far as they are in force under a policy."""
    return tuple(rule for rule in _THROTTLING if rule.in_force(policy))


def declined_by(endpoint: EndpointRecord, request: RequestRecord, now: float, top: tuple[Rule, ...]) -> Rule | None:
    """The rule that declines the request on this endpoint now; None if it may go. Its prompts fit the endpoint.

    `top`: the `throttling` rows. The endpoint's account is up to date (`EndpointRecord.advance`), and its forecast has
    not expired.
    """
    ask = Ask(endpoint, request, now)
    idle = endpoint.idle
    if top and (rule := _throttled_by(ask, top, idle=idle)) is not None:
        return rule
    for rule in _PLAIN_IDLE if idle else _PLAIN:
        if rule.shortage(ask) > 0:
            return rule
    blocks = endpoint.capacity.kv_blocks
    if blocks is not None and not (idle and endpoint.grows):
        ask.measure(blocks)
        for rule in _MEASURING_IDLE if idle else _MEASURING:
            if rule.shortage(ask) > 0:
                return rule
    return None


def throttles(endpoint: EndpointRecord, request: RequestRecord, now: float, top: tuple[Rule, ...]) -> bool:
    """Whether the endpoint declines the request because its flow is throttled: it does not wait for room."""
    return _throttled_by(Ask(endpoint, request, now), top, idle=endpoint.idle) is not None


def _throttled_by(ask: Ask, top: tuple[Rule, ...], *, idle: bool) -> Rule | None:
    for rule in top:
        if (rule.idle or not idle) and rule.shortage(ask) > 0:
            return rule
    return None


def shortage_of(rule: Rule, endpoint: EndpointRecord, request: RequestRecord, now: float) -> float | None:
    """The shortage by which a rule declines the request, in the rule's unit; None if it has none."""
    if rule.unit is None:
        return None
    ask = Ask(endpoint, request, now)
    if rule.measures and endpoint.capacity.kv_blocks is not None:
        ask.measure(endpoint.capacity.kv_blocks)
    return rule.shortage(ask)


def tokens_to_free(endpoint: EndpointRecord, request: RequestRecord, now: float) -> float:
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


def spared(endpoint: EndpointRecord, request: RequestRecord, now: float) -> bool:
    """Whether a rule that `spares` the endpoint declines the request. An idle one gets a request to try it with."""
    ask = Ask(endpoint, request, now)
    return any(rule.shortage(ask) > 0 for rule in _SPARING if rule.idle or not endpoint.idle)


def may_fit(endpoint: EndpointRecord, now: float) -> bool:
    """Whether a request might fit: no rule closes the endpoint without measuring."""
    ask = Ask(endpoint, None, now)
    for rule in _PLAIN:  # noqa: SIM110 - a generator would cost as much as the rules
        if rule.shortage(ask) > 0:
            return False
    return True


def all_closed_until(endpoints: Iterable[EndpointRecord], now: float) -> float:
    """Time up to which each endpoint declines all requests alike; -infinity if one may take somebody now.

    Alike: nobody may be offered next. The throttling rows are left out. If the result is after `now`, no endpoint opens
    before it, whatever progress is made.
    """
    until = inf
    for endpoint in endpoints:
        ask = Ask(endpoint, None, now)
        for rule in _PLAIN_IDLE if endpoint.idle else _PLAIN:
            if rule.shortage(ask) > 0:
                if rule.after is not _NOBODY:
                    return -inf
                lasting = rule.lasts and not endpoint.ledger.aborting  # progress may show that these have gone
                until = min(until, endpoint.next_change if lasting else now)
                break
        else:
            return -inf
    return until


def next_in_line(declined: Sequence[tuple[EndpointRecord, Rule]]) -> Next:
    """Requests that may be offered next, after all endpoints declined one."""
    after: Next = _NOBODY
    for _, rule in declined:
        if rule.after is _OTHER_FLOWS or rule.after is _ITS_BAND:
            return rule.after
        if rule.after is _SMALLER:
            after = _SMALLER
    return after
