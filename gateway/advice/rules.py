"""PURE. The rules of advice: what to change for one model, judged by its history, and what that gains.

Every rule is a row of `RULES`. It judges one thing and reports what was seen. If that calls for a change, it adds the
change and its gain in figures. A rule that lacks a figure is silent.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.plan.traffic import LOW_HIT_RATE, Traffic
from engine.sequences import enough, more, too_many
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.ops.pace import Pace

ENOUGH = 100
"""Fewest answered requests for any advice: a p99 of fewer is just the longest."""
RESERVE = 1.25
"""Factor of headroom over the observed maximum."""
FEW = 0.01
"""Smallest share of requests with refusals or preemptions that is a reason for change."""
MANY_WAIT = 0.05
"""Smallest share of time with a queue that is a reason for change."""
AROUND = 0.1
"""Share of an engine's tokens that our own count may miss, because of interrupted answers."""
FULL, HALF = 0.85, 0.5
"""Shares of a KV cache: nearly always at the limit `kv_high`, and never needed."""
SLOWER = 0.5
"""An endpoint below this share of its first pace got slower for a reason worth finding."""
FULLER = 0.15
"""Share by which the KV cache must be fuller, with as much in flight, to be that reason."""
BETTER_WAIT = 0.8
"""An alternative is worth a try if its p99 wait is at most this share."""
LONG = 8192
"""Contexts of at least this many tokens are printed in thousands."""
GIB = 2**30
_LOGITS = 128_256 * 4
"""Bytes of one row in the sampler's warm-up: 4 for each token of the vocabulary (Llama 3's)."""


@dataclass(frozen=True, slots=True)
class EndpointPast:
    """The capacity and history of one endpoint. None stands for unknown.

    Attributes:
        max_model_len: tokens.
        sequence_limit: its `max_num_seqs`, configured or learned.
        kv_tokens: of its KV cache.
        peak_sequences: the most of ours at once.
        usage_p99: its KV cache usage stayed below this share for 99 % of the time.
        usage_most: its highest KV cache usage.
        preemptions: since the watch began.
        pace: its speed at first and at last, if it was in steady use for long enough.
    """

    id: str
    max_model_len: int | None = None
    sequence_limit: int | None = None
    kv_tokens: int | None = None
    peak_sequences: int = 0
    usage_p99: float | None = None
    usage_most: float | None = None
    preemptions: int | None = None
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """The result of other settings on a recorded load. `changes` is empty for those that ran.

    Attributes:
        dispatched: requests that got to an endpoint.
        wait_p99: seconds that they waited.
    """

    changes: tuple[str, ...]
    dispatched: int
    wait_p99: float


@dataclass(frozen=True, slots=True)
class Past:
    """The history of one model. None stands for unknown.

    Attributes:
        traffic: of the requests that were answered.
        outcomes: number of requests by outcome; each attempt counts.
        returns: number of attempts after a refusal for lack of room.
        busy: share of time with a request waiting.
        around: share of its engines' generated tokens that bypassed kvgate.
        shareable: share of prompt tokens that repeat the beginning of an earlier prompt: the hits of an unlimited
            prefix cache.
        alternatives: results of settings, those that ran first.
    """

    model: str
    traffic: Traffic
    endpoints: tuple[EndpointPast, ...] = ()
    outcomes: Mapping[str, int] = field(default_factory=dict)
    returns: int = 0
    busy: float | None = None
    around: float | None = None
    shareable: float | None = None
    alternatives: tuple[Alternative, ...] = ()

    @property
    def requests(self) -> int:
        """Requests that could have been answered. Each counts once, however often it came."""
        return (
            self.lost
            + self.refused(Outcome.CONTEXT_LENGTH_EXCEEDED, Outcome.NO_ENDPOINT)
            + max(self.traffic.requests, self.refused(Outcome.COMPLETED))
        )

    @property
    def lost(self) -> int:
        """Requests that were refused for lack of room and did not come back."""
        return max(0, self.refused(*FOR_WANT_OF_ROOM) - self.returns)

    def refused(self, *outcomes: Outcome) -> int:
        """Number of requests with one of these outcomes."""
        return sum(self.outcomes.get(outcome, 0) for outcome in outcomes)

    @property
    def max_model_len(self) -> int | None:
        """The longest request that any endpoint takes."""
        return max((e.max_model_len for e in self.endpoints if e.max_model_len is not None), default=None)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of the smallest KV cache."""
        return min((e.kv_tokens for e in self.endpoints if e.kv_tokens is not None), default=None)

    @property
    def usage_most(self) -> float | None:
        """The highest usage of any KV cache."""
        return max((e.usage_most for e in self.endpoints if e.usage_most is not None), default=None)

    @property
    def usage_p99(self) -> float | None:
        """The same for 99 % of the time."""
        return max((e.usage_p99 for e in self.endpoints if e.usage_p99 is not None), default=None)

    @property
    def pressed(self) -> bool:
        """Whether waits or refusals were frequent enough to matter."""
        return (self.busy or 0.0) >= MANY_WAIT or self.refused(*FOR_WANT_OF_ROOM) >= FEW * self.requests > 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one rule. `change` is None if there is nothing to change; `gain` belongs to the change."""

    subject: str
    seen: str
    change: str | None = None
    gain: str | None = None


def advise(past: Past) -> tuple[Finding, ...] | None:
    """The findings of all rules, in order; None if too little was seen."""
    if past.traffic.requests < ENOUGH:
        return None
    found = (_rule(past) for _rule in RULES)
    return tuple(finding for finding in found if finding is not None)


def _context_length(past: Past) -> Finding | None:
    total, limit = past.traffic.total_tokens, past.max_model_len
    if total is None or limit is None:
        return None
    subject, refused = "context length", past.refused(Outcome.CONTEXT_LENGTH_EXCEEDED)
    if refused >= FEW * past.requests:
        return Finding(
            subject,
            f"{refused:,} of {past.requests:,} requests were longer than max_model_len, {limit:,} tokens",
            "raise --max-model-len, where the model and its KV cache allow it (`kvgate plan` tells)",
            f"serves up to {refused / past.requests:.1%} of requests that are refused now",
        )
    seen = f"p99 {total.p99} tokens, at most {total.most}, of max_model_len {limit:,}"
    wanted = _enough_length(past)
    if wanted is None or wanted == limit:
        return Finding(subject, seen)
    gain = f"the least KV cache that the engine starts with falls from {limit:,} to {wanted:,} tokens"
    if (tokens := past.kv_tokens) is not None:
        gain += (
            f"; its {tokens:,} tokens are {_few(tokens / wanted)} requests at full length, not {_few(tokens / limit)}"
        )
    return Finding(subject, seen, f"--max-model-len {wanted} (a client may then ask for no more max_tokens)", gain)


def _enough_length(past: Past) -> int | None:
    """A `max_model_len` that would have served every request, if under half of the current one; else that."""
    total, limit = past.traffic.total_tokens, past.max_model_len
    if total is None or limit is None:
        return limit
    wanted = _up(min(limit, total.most.high) * RESERVE, 1024 if limit > LONG else 128)
    return wanted if wanted * 2 <= limit else limit


def _sequences(past: Past) -> Finding | None:
    if not past.endpoints:
        return None
    subject, fullest = "sequences", max(past.endpoints, key=lambda e: e.peak_sequences / (e.sequence_limit or 2**31))
    peak, limit = fullest.peak_sequences, fullest.sequence_limit
    if limit is None:
        peak = max(e.peak_sequences for e in past.endpoints)
        return Finding(subject, f"at most {peak:,} at once on an engine; its max_num_seqs is not known")
    seen = f"at most {peak:,} at once on an engine, of max_num_seqs {limit:,}"
    total, usage = past.traffic.total_tokens, past.usage_p99
    if peak >= limit and past.pressed and past.kv_tokens and total is not None and usage is not None and usage < FULL:
        fits = int(past.kv_tokens * FULL) // max(1, total.p50.high)
        if fits > limit:
            return Finding(
                subject,
                f"{seen}; requests waited while the KV cache was under {usage:.0%}",
                f"--max-num-seqs {min(more(limit), fits)}",
                f"the KV cache holds about {fits:,} requests of the median length ({total.p50} tokens)",
            )
    if not too_many(limit, peak):
        return Finding(subject, seen)
    wanted = enough(peak)
    return Finding(
        subject,
        seen,
        f"--max-num-seqs {wanted}",
        f"fewer CUDA graphs to capture, and {(limit - wanted) * _LOGITS / GIB:.2f} GiB less in the sampler's warm-up "
        "for a vocabulary of 128,256",
    )


def _preemptions(past: Past) -> Finding | None:
    known = [e.preemptions for e in past.endpoints if e.preemptions is not None]
    if not known:
        return None
    subject, count, requests = "preemptions", sum(known), past.traffic.requests
    seen = f"{count:,} while {requests:,} requests were answered"
    if count < FEW * requests:
        return Finding(subject, seen)
    gain = f"each of the {count:,} was computed anew, while its reader waited"
    if past.around is not None and past.around >= AROUND:
        return Finding(
            subject,
            f"{seen}; {past.around:.0%} of the engines' tokens went around kvgate",
            "send what goes around kvgate through it, and close the engine's own port",
            gain,
        )
    return Finding(subject, seen, "admission.policy: both, or a lower admission.kv_high (0.85)", gain)


def _kv_cache(past: Past) -> Finding | None:
    most, p99, tokens = past.usage_most, past.usage_p99, past.kv_tokens
    if most is None or p99 is None or tokens is None:
        return None
    subject, total = "KV cache", past.traffic.total_tokens
    seen = f"under {most:.0%} full at its fullest, under {p99:.0%} for 99 % of the time, of {tokens:,} tokens"
    if p99 >= FULL and past.pressed and total is not None:
        holds = tokens // max(1, total.p50.high)
        return Finding(
            subject,
            f"{seen}, while requests waited",
            "--kv-cache-dtype fp8 if the cache is of 16 bits; else a larger --gpu-memory-utilization, smaller weights, "
            "or another replica",
            f"with fp8 it holds twice the tokens: {2 * holds:,} requests of the median length instead of {holds:,}",
        )
    length = _enough_length(past) or 0
    needed = max(_up(tokens * most * RESERVE / FULL, 1024), length)
    if most > HALF or needed > tokens * RESERVE * HALF:
        return Finding(subject, seen)
    return Finding(
        subject,
        seen,
        f"a smaller --gpu-memory-utilization, or --kv-cache-memory-bytes, for {needed:,} tokens"
        + (f" (with --max-model-len {length})" if length != past.max_model_len else ""),
        f"{1 - needed / tokens:.0%} of the KV cache's memory is free: for a second model, or a smaller card",
    )


def _prefix_cache(past: Past) -> Finding | None:
    rate = past.traffic.hit_rate
    if rate is None:
        return None
    subject, seen = "prefix cache", f"{rate:.0%} of prompt tokens were in it"
    if rate >= LOW_HIT_RATE:
        return Finding(subject, seen)
    if past.shareable is None:
        return Finding(subject, f"{seen}, which is low; an --event-log tells whether prompts could share more")
    seen += f", {past.shareable:.0%} began like an earlier prompt"
    if past.shareable < LOW_HIT_RATE:
        return Finding(
            subject,
            f"{seen}: prompts differ from their beginning on, so a larger cache would not help. Where they do have "
            "text in common, put it first, before dates, names and ids",
        )
    return Finding(
        subject,
        seen,
        "more KV cache (fp8 doubles it): what prompts share is evicted before it is asked for again",
        f"up to {past.shareable - rate:.0%} of all prompt tokens need not be computed",
    )


def _pace(past: Past) -> Finding | None:
    known = [(e.id, e.pace) for e in past.endpoints if e.pace is not None]
    if not known:
        return None
    name, pace = min(known, key=lambda one: one[1].kept)
    first, last = pace.first, pace.last
    seen = (
        f"{name} completed {first.rate:.3g} requests a second in the first {first.seconds / 60:.0f} minutes and "
        f"{last.rate:.3g} in the last {last.seconds / 60:.0f}, with {first.in_flight:.3g} and {last.in_flight:.3g} "
        "in flight"
    )
    if pace.kept >= SLOWER:
        return Finding("pace", seen)
    seen += f", prompts and answers alike (on average {first.prompt:,} and {first.output:,} tokens)"
    fuller = None
    if first.usage is not None and last.usage is not None:
        seen += f"; its KV cache was {first.usage:.0%} full, then {last.usage:.0%}"
        fuller = last.usage - first.usage
    if fuller is not None and fuller >= FULLER:
        change = (
            "look for what else fills its KV cache: requests that go around kvgate (close the engine's own port), or "
            "blocks that an engine never frees (`kvgate reload` begins anew)"
        )
    else:
        change = (
            "look at the card (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE`: throttled, or shared with another process), "
            "at the machine (`vmstat 1`: swapping, a core at 100 %), and whether the prefix cache's hit rate fell; "
            "where `kvgate reload` brings the pace back, the engine's memory was in crumbs: tell its makers"
        )
    return Finding("pace", seen, change, f"{1 / max(pace.kept, 0.01):.1f} times the requests, as at first")


def _capacity(past: Past) -> Finding | None:
    if not past.requests:
        return None
    subject, lost, absent = "capacity", past.lost, past.refused(Outcome.NO_ENDPOINT)
    seen = f"{lost:,} of {past.requests:,} requests were refused for want of room"
    if past.returns:
        seen += f" for good, and {past.returns:,} times one was told to come back and did"
    if past.busy is not None:
        seen += f"; somebody waited in {past.busy:.1%} of the time"
    if absent >= FEW * past.requests:
        return Finding(
            subject,
            f"{absent:,} of {past.requests:,} requests found no engine at all",
            "find out why engines were away: `kvgate doctor`, `/kvgate/state`",
            f"serves {absent / past.requests:.1%} of requests that are refused now",
        )
    if past.refused(*FOR_WANT_OF_ROOM) < FEW * past.requests:
        return Finding(subject, seen)
    served = max(1.0, past.traffic.requests * (past.busy if past.busy is not None else 1.0))
    factor, engines = 1 + lost / served, max(1, len(past.endpoints))
    wanted = max(engines + 1, math.ceil(engines * factor))
    return Finding(
        subject,
        seen,
        f"up to {wanted} engines instead of {engines}, or a longer admission.ttft_target for those who can wait",
        f"serves the {lost / past.requests:.1%} that are refused"
        + (", and at once those who have to come back" if past.returns else "")
        + f": while there was a queue, at most {factor:.1f} "
        "times came what was served",
    )


def _settings(past: Past) -> Finding | None:
    if len(past.alternatives) < 2:  # noqa: PLR2004  # those that ran, and one to compare them with
        return None
    ran, *others = past.alternatives
    subject = "admission settings"
    seen = f"{ran.dispatched:,} requests dispatched, p99 wait {ran.wait_p99:.2f} s"
    best = max(others, key=lambda other: (other.dispatched, -other.wait_p99))
    more, sooner = best.dispatched - ran.dispatched, best.wait_p99 < BETTER_WAIT * ran.wait_p99
    preempted = sum(e.preemptions or 0 for e in past.endpoints) >= FEW * past.traffic.requests
    if preempted or more < 0 or not (more >= FEW * past.requests or (sooner and ran.wait_p99 >= 1)):
        return Finding(subject, f"{seen}; none of {len(others)} alternatives would have done better")
    return Finding(
        subject,
        seen,
        ", ".join(best.changes),
        f"would have dispatched {best.dispatched:,} with a p99 wait of {best.wait_p99:.2f} s, if the engines had been "
        "as fast; watch kvgate_engine_preemptions_total",
    )


RULES: tuple[Callable[[Past], Finding | None], ...] = (
    _context_length,
    _sequences,
    _preemptions,
    _kv_cache,
    _prefix_cache,
    _pace,
    _capacity,
    _settings,
)
"""The rules, in the order of the report."""


def _few(times: float) -> str:
    """Format a number of requests, with a decimal if it is small."""
    return f"{times:.1f}" if times < 10 else f"{times:,.0f}"  # noqa: PLR2004


def _up(value: float, step: int) -> int:
    """The next multiple of a step."""
    return -(-int(value) // step) * step
