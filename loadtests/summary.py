"""The figures of a run, from its records: goodput, latency and tokens."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from loadtests.arrivals import Segment
from loadtests.client import Record
from loadtests.figures import percentile, percentiles
from loadtests.scenario import Slo

RECOVERED = 0.9
"""Goodput has recovered at this share of its value before the spike."""
RECOVERY_SECONDS = 5
"""Seconds in a row at that share."""
SHARES = (*(share / 100 for share in range(100)), 0.995, 0.999, 1.0)
"""Points of a drawn distribution."""


class Outcome(StrEnum):
    """The ways a request ends for its client."""

    IN_SLO = "in SLO"
    LATE = "late"
    """Complete, but over the limit on the first token or on a gap."""
    REFUSED = "refused"
    """Told to come back later, before it got anything."""
    LOST = "lost"
    """Anything but a complete answer."""


def outcome(record: Record, slo: Slo) -> Outcome:
    """How a request ended."""
    if record.refused:
        return Outcome.REFUSED
    if record.loss is not None or record.ttft is None:
        return Outcome.LOST
    return Outcome.IN_SLO if record.ttft <= slo.ttft and record.worst_gap <= slo.gap else Outcome.LATE


@dataclass(frozen=True, slots=True)
class Judged:
    """A run's records, each with its outcome."""

    records: Sequence[Record]
    outcomes: Sequence[Outcome]
    seconds: float
    """Seconds during which requests arrived."""
    by_second: Mapping[str, Sequence[float]]
    """By flow, the tokens that reached its clients in each second of that time."""

    @classmethod
    def of(cls, records: Sequence[Record], slo: Slo, seconds: float) -> "Judged":
        """Judge the records of all client processes."""
        ordered = sorted(records, key=lambda record: record.arrived)
        return cls(ordered, [outcome(record, slo) for record in ordered], seconds, _tokens_by_second(ordered, seconds))

    @property
    def flows(self) -> list[str]:
        """The flows that sent requests."""
        return sorted({record.planned.flow for record in self.records})

    def flow(self, name: str) -> "Judged":
        """One flow's requests."""
        chosen = [(r, o) for r, o in zip(self.records, self.outcomes, strict=True) if r.planned.flow == name]
        return Judged(
            [record for record, _ in chosen],
            [ended for _, ended in chosen],
            self.seconds,
            {name: self.by_second.get(name, ())},
        )

    @property
    def whole(self) -> list[Record]:
        """The requests with complete answers."""
        return [record for record in self.records if record.loss is None]

    @property
    def reasons(self) -> dict[str, int]:
        """The reasons for refusals and losses, the commonest first."""
        failed = (r for r in self.records if r.loss is not None)
        return dict(Counter(f"{r.loss} {r.reason or r.code or ''}".strip() for r in failed).most_common())

    def tokens(self, ended: Outcome) -> int:
        """Generated tokens of requests with this outcome."""
        return sum(r.tokens for r, o in zip(self.records, self.outcomes, strict=True) if o is ended)

    def arrivals_by_second(self) -> tuple[list[int], list[int]]:
        """Requests by the second of their arrival: all, and those served in the SLO."""
        offered, served = [0] * _bins(self.seconds), [0] * _bins(self.seconds)
        for record, ended in zip(self.records, self.outcomes, strict=True):
            second = min(int(record.arrived), len(offered) - 1)
            offered[second] += 1
            served[second] += ended is Outcome.IN_SLO
        return offered, served


def figures(judged: Judged) -> dict[str, float]:
    """The client's side of a run."""
    records, count = judged.records, Counter(judged.outcomes)
    offered = len(records)
    whole = judged.whole
    ttft = [record.ttft for record in whole if record.ttft is not None]
    worst = [record.worst_gap for record in whole]
    gaps = list(itertools.chain.from_iterable(record.gaps for record in whole))
    span = max((record.ended for record in records), default=float("nan"))
    retry = [record.retry_after for record in records if record.refused and record.retry_after is not None]
    return {
        "offered": offered,
        "in SLO": count[Outcome.IN_SLO],
        "late": count[Outcome.LATE],
        "refused": count[Outcome.REFUSED],
        "lost": count[Outcome.LOST],
        "share in SLO": count[Outcome.IN_SLO] / offered if offered else float("nan"),
        "share refused": count[Outcome.REFUSED] / offered if offered else float("nan"),
        "SLO requests/s": count[Outcome.IN_SLO] / judged.seconds,
        "SLO tokens/s": judged.tokens(Outcome.IN_SLO) / judged.seconds,
        "output tokens/s": sum(map(sum, judged.by_second.values())) / judged.seconds,
        "output tokens/s to the end": sum(record.tokens for record in records) / span,
        "TTFT p50 s": percentile(ttft, 0.5),
        "TTFT p99 s": percentile(ttft, 0.99),
        "worst gap p50 s": percentile(worst, 0.5),
        "worst gap p99 s": percentile(worst, 0.99),
        "ITL p50 s": percentile(gaps, 0.5),
        "ITL p99 s": percentile(gaps, 0.99),
        "Retry-After p50 s": percentile(retry, 0.5),
        "seconds to the end": span,
    }


def flow_figures(judged: Judged) -> dict[str, dict[str, float]]:
    """Each flow's figures. Its service is the prompt tokens of begun requests plus twice the generated tokens."""
    tokens = {name: sum(judged.by_second.get(name, ())) for name in judged.flows}
    service = {
        name: 2 * tokens[name]
        + sum(r.planned.prompt for r in judged.flow(name).records if r.first is not None and r.first <= judged.seconds)
        for name in judged.flows
    }
    table = {}
    for name in judged.flows:
        measured = figures(judged.flow(name))
        kept = ("offered", "in SLO", "late", "refused", "lost", "TTFT p50 s", "TTFT p99 s", "worst gap p99 s")
        table[name] = {
            **{figure: measured[figure] for figure in kept},
            "share of output tokens": tokens[name] / max(1.0, sum(tokens.values())),
            "share of service": service[name] / max(1.0, sum(service.values())),
        }
    return table


def beside(
    flow: str, among: Mapping[str, Mapping[str, float]], alone: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """A flow's waiting among others and alone: its figures of both runs."""
    with_others, by_itself = (table.get(flow, {}).get("TTFT p99 s", float("nan")) for table in (among, alone))
    return {
        f"{flow}: TTFT p99 s": with_others,
        f"{flow} alone: TTFT p99 s": by_itself,
        f"{flow}: TTFT p99 to alone": with_others / by_itself if by_itself else float("nan"),
    }


def client_figures(records: Sequence[Record], cpu: Sequence[float]) -> dict[str, float]:
    """The load clients' own cost, and whether they kept up. `cpu` is seconds of each process."""
    events = sum(len(record.gaps) + (record.first is not None) for record in records)
    return {
        "client us per event": sum(cpu) / events * 1e6 if events else float("nan"),
        "client busiest process": max(cpu) / max((record.ended for record in records), default=float("nan")),
        "client late p99 s": percentile([record.sent - record.arrived for record in records], 0.99),
    }


def series_figures(series: Mapping[str, Sequence[float]], offered: int) -> dict[str, float]:
    """The engine's and the gateway's side of a run. Series that no page had are missing."""
    found = {}
    for name, values in series.items():
        seen = [value for value in values if value == value]  # noqa: PLR0124 - not NaN
        if name == "preemptions":
            found["preemptions"] = seen[-1]
            found["preemptions per request"] = seen[-1] / offered if offered else float("nan")
        else:
            found[f"peak {name}"] = max(seen)
    return found


def recovery(judged: Judged, timeline: Sequence[Segment]) -> float:
    """Seconds from the end of the last spike until goodput recovers, in bins of a second; infinite if it does not.

    Goodput is the share of a second's arrivals that are served in the SLO. It has recovered at the first second from
    which on, over five seconds, it is nine tenths of its value before the first spike.
    """
    spikes = [segment for segment in timeline if segment.spike]
    offered, served = judged.arrivals_by_second()
    before = slice(0, int(spikes[0].start))
    usual = sum(served[before]) / max(1, sum(offered[before]))
    end = int(spikes[-1].end)
    for second in range(end, len(offered) - RECOVERY_SECONDS + 1):
        window = slice(second, second + RECOVERY_SECONDS)
        if usual and offered[second] and sum(served[window]) >= RECOVERED * usual * sum(offered[window]):
            return float(second - end)
    return float("inf")


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """A cumulative distribution: values, and the share below each."""
    return list(zip(percentiles(values, SHARES), SHARES, strict=True)) if values else []


def _tokens_by_second(records: Sequence[Record], seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * _bins(seconds))
    for record in records:
        if record.first is None:
            continue
        bins = found[record.planned.flow]
        weight = record.tokens / (len(record.gaps) + 1)  # an engine may put several tokens into an event
        for at in itertools.accumulate(record.gaps, initial=record.first):
            if at < seconds:
                bins[int(at)] += weight
    return dict(found)


def _bins(seconds: float) -> int:
    return max(1, -int(-seconds // 1))
