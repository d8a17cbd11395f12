"""PURE. The signs that something is wrong, or at its limit, and the one sentence at the top of the page."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.ops.pictures.picture import Endpoint, Level, Model, Sign

STALE = 10.0
"""Seconds without a scrape from which an endpoint's gauge says nothing."""
MANY = 20
"""Answers from which a quantile means something."""
FEW = 0.01
"""Share of requests below which refusals are no sign."""
_ORDER: tuple[Level, ...] = ("bad", "warn", "busy", "good")
_FAILED = frozenset({Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT, Outcome.INTERNAL_ERROR})
_REFUSED = FOR_WANT_OF_ROOM | {Outcome.NO_ENDPOINT, Outcome.GATEWAY_FULL, Outcome.RATE_LIMIT_EXCEEDED}
_MEANT = frozenset({"draining", "asleep", "scaling", "starting", "trial"})
"""States that somebody brought about, or that end by themselves."""
_ON_DEMAND = frozenset({"stopped"})
"""States of an engine that serves as soon as it is asked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the signs are read from."""

    at: float
    endpoints: tuple[Endpoint, ...]
    models: tuple[Model, ...]
    preempted: Mapping[str, int]
    """In the last 5 minutes, by endpoint."""
    kv_high: float
    kv_low: float

    def ended(self, outcomes: frozenset[Outcome]) -> int:
        """Requests that ended so in the last 5 minutes."""
        return sum(model.outcomes.get(outcome, 0) for model in self.models for outcome in outcomes)

    @property
    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(model.waiting for model in self.models)


def _no_endpoint(seen: Seen) -> Iterator[Sign]:
    if any(endpoint.healthy or endpoint.state in _ON_DEMAND for endpoint in seen.endpoints):
        return
    if not seen.endpoints:
        yield Sign(key="nothing", level="bad", text="Not serving: no endpoint is configured.", do="Add one.")
        return
    last = max(seen.endpoints, key=lambda endpoint: endpoint.since)
    others = f"None of {len(seen.endpoints)} endpoints is healthy: " if len(seen.endpoints) > 1 else ""
    yield Sign(
        key="nothing",
        level="bad",
        text=f"Not serving. {others}{_stands(last)}",
        do=_look(last),
        since=max(endpoint.since for endpoint in seen.endpoints),
    )


def _down(seen: Seen) -> Iterator[Sign]:
    if not any(endpoint.healthy for endpoint in seen.endpoints):
        return
    for endpoint in seen.endpoints:
        if not endpoint.healthy and endpoint.state not in _ON_DEMAND:
            yield Sign(
                key=f"down {endpoint.id}",
                level="busy" if endpoint.state in _MEANT else "warn",
                text=_stands(endpoint),
                do=_look(endpoint),
                since=endpoint.since,
            )


def _failing(seen: Seen) -> Iterator[Sign]:
    if failed := seen.ended(_FAILED):
        yield Sign(
            key="failed",
            level="warn",
            text=f"{_requests(failed)} failed in 5 min.",
            do="The access log names each one's endpoint; the engine's own log says why.",
        )


def _refusing(seen: Seen) -> Iterator[Sign]:
    refused, all_of_them = seen.ended(_REFUSED), seen.ended(frozenset(Outcome))
    if refused > FEW * all_of_them:
        yield Sign(
            key="refused",
            level="warn",
            text=f"{refused:,} of {_requests(all_of_them)} refused in 5 min.",
            do="`kvgate advise` says what to change; another engine serves more at once.",
        )


def _late(seen: Seen) -> Iterator[Sign]:
    for model in seen.models:
        target, ttft = model.ttft_target, model.ttft
        if target is not None and ttft is not None and ttft.count >= MANY and (ttft.p90 or 0.0) > target:
            yield Sign(
                key=f"late {model.model}",
                level="warn",
                text=f"One in ten first tokens of {model.model} takes over {ttft.p90:.3g} s (target {target:g} s).",
                do="Look whether prefill is slow (prompts, prefix cache) or requests wait.",
            )


def _drifting(seen: Seen) -> Iterator[Sign]:
    for model in seen.models:
        if drifted := sum(model.drifted.values()):
            counted = "1 prompt" if drifted == 1 else f"{drifted:,} prompts"
            yield Sign(
                key=f"drift {model.model}",
                level="warn",
                text=f"The engine counted {counted} of {model.model} otherwise than kvgate in 5 min.",
                do=f"See that kvgate has its tokenizer and chat template ({', '.join(sorted(model.drifted))}).",
            )


def _preempting(seen: Seen) -> Iterator[Sign]:
    for endpoint, number in seen.preempted.items():
        if number:
            yield Sign(
                key=f"preempted {endpoint}",
                level="warn",
                text=f"{endpoint} preempted {_requests(number)} in 5 min.",
                do="Close the engine's port to clients that go around kvgate, or lower `admission.kv_high`.",
            )


def _over(seen: Seen) -> Iterator[Sign]:
    for endpoint in seen.endpoints:
        if endpoint.forecast is not None and endpoint.forecast > 1.0:
            yield Sign(
                key=f"forecast {endpoint.id}",
                level="warn",
                text=f"What runs on {endpoint.id} is predicted to fill {percent(endpoint.forecast)} of its KV cache.",
                do="Nothing more is sent there until it fits; it passes unless lengths have changed.",
            )


def _stale(seen: Seen) -> Iterator[Sign]:
    for endpoint in seen.endpoints:
        if endpoint.healthy and endpoint.scraped is not None and seen.at - endpoint.scraped > STALE:
            yield Sign(
                key=f"stale {endpoint.id}",
                level="warn",
                text=f"{endpoint.id} has not told its metrics for {seen.at - endpoint.scraped:.0f} s.",
                do="The ledger goes on alone; ask the engine's /metrics by hand.",
                since=endpoint.scraped,
            )


def _shut(seen: Seen) -> Iterator[Sign]:
    for endpoint in seen.endpoints:
        if endpoint.healthy and not endpoint.gate_open:
            filled = "" if endpoint.usage is None else f" at {percent(endpoint.usage)} of its KV cache"
            yield Sign(
                key=f"gate {endpoint.id}",
                level="busy",
                text=f"The gate of {endpoint.id} is closed{filled} ({', '.join(endpoint.closed_by)}).",
                do=f"It opens by itself {_opens(endpoint.closed_by, seen.kv_low)}.",
            )


def _opens(closed_by: tuple[str, ...], kv_low: float) -> str:
    return f"under {percent(kv_low)}" if "gate" in closed_by else "as its requests end"


_SIGNS: tuple[Callable[[Seen], Iterator[Sign]], ...] = (
    _no_endpoint,
    _down,
    _failing,
    _refusing,
    _late,
    _drifting,
    _preempting,
    _over,
    _stale,
    _shut,
)


def signs(seen: Seen) -> list[Sign]:
    """All signs, the worst first."""
    found = [sign for rule in _SIGNS for sign in rule(seen)]
    return sorted(found, key=lambda sign: _ORDER.index(sign.level))


def headline(seen: Seen, found: tuple[Sign, ...]) -> Sign:
    """The state in one sentence, and of what is wrong the worst."""
    usages = [endpoint.usage for endpoint in seen.endpoints if endpoint.healthy and endpoint.usage is not None]
    waiting, refused = seen.waiting, seen.ended(_REFUSED)
    facts = [f"KV {percent(max(usages))}"] if usages else []
    facts.append(f"{waiting:,} waiting" if waiting else "nothing waits")
    if not any(sign.key == "refused" for sign in found[:1]):
        facts.append(f"{refused:,} refused in 5 min")
    told = f"{', '.join(facts)}."
    if not found:
        return Sign(
            key="serving",
            level="busy" if waiting else "good",
            text=f"Serving{' at its limit' if waiting else ''}. {told}",
        )
    worst = found[0]
    if worst.level == "bad":
        return worst
    text = f"Serving at its limit. {told}" if worst.level == "busy" else f"{worst.text} {told}"
    return Sign(key=worst.key, level=worst.level, text=text, do=worst.do, since=worst.since)


def _stands(endpoint: Endpoint) -> str:
    """Its state, and why its engine ended where that is known."""
    return f"{endpoint.id} is {endpoint.state}.{'' if endpoint.cause is None else f' {endpoint.cause}'}"


def _look(endpoint: Endpoint) -> str:
    if endpoint.remedy:
        return endpoint.remedy
    if endpoint.state == "draining":
        step = "Undrain it once the work on it is done."
    elif endpoint.state in _MEANT:
        step = "It comes back by itself."
    else:
        step = "`kvgate doctor` beside the engine reads its log and names the cause."
    reason = endpoint.reason.rstrip(".")
    return f"{reason[:1].upper()}{reason[1:]}. {step}" if reason else step


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number:,} requests"


def percent(share: float) -> str:
    """A share for people."""
    return f"{share * 100:.0f} %"
