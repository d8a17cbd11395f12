"""The results of a measurement: every run, and the medians of its rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from loadtests.client import Record
from loadtests.figures import medians
from loadtests.provenance import without_user
from loadtests.scenario import Scenario
from loadtests.summary import Judged, distribution
from loadtests.verdict import Finding, judge, passed


@dataclass(frozen=True, slots=True)
class Target:
    """A target of load, and the metrics pages that show the effect."""

    name: str
    url: str
    model: str
    metrics: tuple[str, ...] = ()

    def public(self) -> "Target":
        """The same without its secrets."""
        return replace(self, url=without_user(self.url), metrics=tuple(map(without_user, self.metrics)))


@dataclass(frozen=True, slots=True)
class Measured:
    """One run against one target."""

    target: str
    load: float
    round: int
    only: str | None
    """The only flow that was sent; None if all were."""
    figures: Mapping[str, float]
    flows: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, int]
    """Why requests were refused or lost."""
    distributions: Mapping[str, Sequence[tuple[float, float]]]
    """Distributions over complete answers: seconds, and the share below."""
    offered_by_second: Sequence[int]
    """Arrivals in each second."""
    served_by_second: Sequence[int]
    """The arrivals of each second that were served in the SLO."""
    tokens_by_second: Sequence[float]
    times: Sequence[float]
    """Times of the series, in seconds after the start."""
    series: Mapping[str, Sequence[float]]
    requests: Sequence[Mapping[str, object]] = ()
    """A row for each request, if requested."""


@dataclass(frozen=True, slots=True)
class Document:
    """Everything measured by one command."""

    name: str
    provenance: Mapping[str, object]
    scenario: Scenario
    capacity: float
    """Requests per second at a load of 1."""
    targets: Sequence[Target]
    runs: list[Measured] = field(default_factory=list)

    @property
    def loads(self) -> list[float]:
        """The loads, in the order of their runs."""
        return list(dict.fromkeys(run.load for run in self.runs))

    def medians(self, load: float) -> dict[str, dict[str, float]]:
        """The medians of the rounds at one load, by target."""
        chosen = {
            target.name: [r.figures for r in self.runs if (r.target, r.load, r.only) == (target.name, load, None)]
            for target in self.targets
        }
        return {target: medians(rounds) for target, rounds in chosen.items() if rounds}

    @property
    def verdicts(self) -> dict[str, list[Finding]]:
        """The verdict on each target at the greatest load; empty if the scenario has no rules."""
        if not self.scenario.verdict:
            return {}
        return {target: judge(self.scenario.verdict, found) for target, found in self.medians(max(self.loads)).items()}

    @property
    def passed(self) -> list[str]:
        """The targets that break no rule."""
        return [target for target, findings in self.verdicts.items() if passed(findings)]

    @property
    def origin(self) -> str:
        """Provenance and scenario, for a reader."""
        told = {"provenance": self.provenance, "capacity": self.capacity, "scenario": self.scenario}
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()

    def write(self, path: Path) -> None:
        """Write everything as JSON. NaN, infinity and missing values become null."""
        loads = {f"{load:g}": self.medians(load) for load in self.loads}
        fields = {name: getattr(self, name) for name in ("name", "provenance", "scenario", "capacity", "targets")}
        document = {**fields, "medians": loads, "verdicts": self.verdicts, "runs": self.runs}
        path.write_bytes(msgspec.json.encode(document) + b"\n")


def distributions(judged: Judged) -> dict[str, list[tuple[float, float]]]:
    """The distributions over complete answers."""
    whole = judged.whole
    return {
        "TTFT": distribution([record.ttft for record in whole if record.ttft is not None]),
        "ITL": distribution([gap for record in whole for gap in record.gaps]),
        "worst gap": distribution([record.worst_gap for record in whole]),
    }


def rows_of(judged: Judged) -> list[dict[str, object]]:
    """A row for each request, without its gaps."""
    return [_row(record, str(ended)) for record, ended in zip(judged.records, judged.outcomes, strict=True)]


def _row(record: Record, ended: str) -> dict[str, object]:
    planned = record.planned
    asked = {name: getattr(planned, name) for name in ("flow", "kind", "prompt", "output", "max_tokens")}
    got = (
        "arrived",
        "sent",
        "ttft",
        "worst_gap",
        "ended",
        "tokens",
        "status",
        "code",
        "reason",
        "retry_after",
        "loss",
        "port",
    )
    return {**asked, "outcome": ended, **{name: getattr(record, name) for name in got}}
