"""What the tuned constants of admission are worth: each out, halved and doubled, over many simulated workloads.

    python -m tests.proof.ablation [CONSTANT ...] [NAME=VALUE[,NAME=VALUE] ...] [--cells TEXT ...] [--requests N]

Without arguments it takes all constants of `gateway/admission/tuning.py`; `NAME=VALUE,...` is one more variant, of
several at once. A cell is a workload at a load under a policy. The cells are the 24 of `simulation.py`, four further
parts of its trace, the trace of code, and five flows of which one sends ten times as much as each of the others;
`--cells` takes those whose name contains one of the texts.

The first row is the goodput of the constants as they are: tokens of requests in SLO, as a share of the oracle's, in the
worst, the mean and the best cell. Each other row is a variant: its goodput less that, in points, and preemptions per
1,000 requests, before and after, in the mean and the worst cell. With five flows also: the 99th percentile of the TTFT
of the four, seconds, in the worst cell. A change without meaning moves single cells up and down: a worst and a best of
the same size are noise.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from random import Random
from typing import Any

from gateway.admission import tuning
from gateway.admission.tuning import TUNING

# Nothing of the core is imported here: each process replaces the constants before it does so.

OUT: Mapping[str, float] = {
    "smoothing_polls": 1e-9,
    "sample_weight": 1.0,
    "gauge_lag": 0.0,
    "prefill_deviations": 0.0,
    "stream_pace": 1.0,
    "recheck_tokens": 1,
    "report_span": 0.0,
    "lengths_kept": 1 << 30,
    "lengths_enough": 1,
    "prior_quantile": 0.5,
    "tail_lengths": 1,
    "review_divisor": 1 << 30,
    "predictions": 1,
    "most_predictions": 1 << 30,
    "forecast_age_per_request": 0.0,
    "forecast_share": 1.0,
    "quantile_top": 1.0 - 1e-9,
    "caution_start": 0.0,
    "caution_margin": 0.0,
    "caution_fewest": 1,
    "caution_raise": 0.0,
    "caution_fade": 1e-9,
    "caution_full": 2.0,
    "prefilling_share": 1.0,
    "engine_backlog": 1e9,
    "most_spared": 0.0,
    "most_places_spared": 0.0,
    "refused_span": 0.0,
    "prefix_pull": 0.0,
    "closing_samples": 1,
    "busy_span": 0.0,
    "failing_after": 1 << 30,
    "failing_span": 0.0,
    "probe_after": 1e9,
    "max_failures": 1,
    "output_weight": 1,
    "starved_share": 1e-9,
    "band_credit": 1e9,
    "backfill_window": 0,
    "backfill_tries": 1 << 30,
    "drain_least_span": 0.0,
    "drain_pressed": 0.0,
    "sure_multiple": 1.0,
    "waiting_share": 0.0,
    "retry_jitter": 0.0,
    "promise_late": 0.0,
    "promise_late_share": 0.0,
    "promise_lead": 0.0,
    "kept_flows": 1 << 30,
    "holdings_window": 1e-9,
    "over_share": 1.0,
}
"""The value with which a constant has no effect; one without an entry can only be halved and doubled."""
NEAR_ONE = frozenset({"prior_quantile", "forecast_share", "quantile_top", "caution_start", "caution_full"})
"""Shares of which the distance to 1 is halved and doubled."""
PART = 4000
"""Requests of the trace from one part to the next."""
QUIET, NOISY = ("quiet", "calm", "still", "hushed"), 10
"""Flows with an equal share, and what the one beside them sends, as a multiple."""
Changes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Offered:
    """A workload before its rate is set."""

    trace: str
    """"conversation" or "code"."""
    part: int
    variant: str
    """One of `simulation.VARIANTS`."""
    flows: bool = False

    @property
    def name(self) -> str:
        """Name, for people."""
        part = f" part {self.part}" if self.part else ""
        return f"{self.trace}{part} {self.variant}{' flows' if self.flows else ''}"


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload at a load under a policy."""

    offered: Offered
    load: float
    bounds: str

    @property
    def name(self) -> str:
        """Name, for people and `--cells`."""
        return f"{self.offered.name} {self.load:g} {self.bounds}"


@dataclass(frozen=True, slots=True)
class Known:
    """What the oracle reaches on a workload."""

    rate: float
    """Requests per second at load 1."""
    best: Mapping[float, int]
    """Tokens of requests in SLO, by load."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one cell came to."""

    goodput: float
    """Tokens of requests in SLO, as a share of the oracle's."""
    preemptions: int
    requests: int
    quiet: float | None
    """99th percentile of the TTFT of flows within their share, seconds."""


def cells() -> list[Cell]:
    """All cells."""
    bounds = ("forecast", "both")
    variants = ("plain", "outputs", "prompts", "prefix")
    proof = product([Offered("conversation", 0, variant) for variant in variants], (0.6, 1.0, 1.5), bounds)
    parts = [Offered("conversation", part, variant) for part in (1, 2, 3, 4) for variant in ("plain", "outputs")]
    code = [Offered("code", 0, "plain"), Offered("code", 0, "outputs")]
    flows = [Offered("conversation", 0, variant, flows=True) for variant in ("plain", "outputs")]
    further = product([*parts, *code, *flows], (1.0, 1.5), bounds)
    return [Cell(*cell) for cell in (*proof, *further)]


def variants(name: str) -> list[tuple[str, Changes]]:
    """A constant out, halved and doubled, with the value of each."""
    value: Any = getattr(TUNING, name)
    tried: dict[str, Any] = {}
    if name in OUT:
        tried["out"] = OUT[name]
    for title, factor in (("half", 0.5), ("double", 2.0)):
        if name in NEAR_ONE:
            tried[title] = max(0.0, 1 - (1 - value) * factor)
        elif isinstance(value, tuple):
            tried[title] = tuple(each * factor for each in value)
        else:
            tried[title] = max(1, int(value * factor)) if isinstance(value, int) else value * factor
    return [(f"{name} {title}", ((name, value_),)) for title, value_ in tried.items() if value_ != value]


def workload_of(offered: Offered, requests: int) -> Any:
    """The requests of a workload, at the trace's own rate."""
    from gateway.simulation import workload
    from tests.proof.simulation import TRACE, VARIANTS

    path = TRACE if offered.trace == "conversation" else TRACE.with_name("azure_llm_2023_code.csv.gz")
    skip = offered.part * PART
    chosen = VARIANTS[offered.variant][1](workload.load(path, skip + requests)[skip:])
    if not offered.flows:
        return chosen
    random = Random(0)  # noqa: S311 - a model, not a secret
    flows = random.choices((*QUIET, "noisy"), (*(1 for _ in QUIET), NOISY), k=len(chosen))
    return tuple(replace(request, flow=flow) for request, flow in zip(chosen, flows, strict=True))


def know(offered: Offered, loads: Sequence[float], requests: int) -> Known:
    """What the oracle reaches. The constants do not matter to it."""
    from gateway.simulation import workload
    from gateway.simulation.compare import capacity
    from gateway.simulation.contenders import oracle
    from gateway.simulation.simulate import simulate
    from tests.proof.simulation import MACHINE, SLO

    chosen = workload_of(offered, requests)
    rate = capacity(chosen, MACHINE).requests_per_second
    return Known(
        rate,
        {
            load: simulate(workload.at_rate(chosen, rate * load), MACHINE, oracle(SLO.ttft)).goodput(SLO)
            for load in loads
        },
    )


def play(changes: Changes, chosen: Sequence[Cell], known: Known, requests: int) -> list[Figures]:
    """Play cells of one workload with changed constants, in a process that has not imported the core."""
    if "gateway.admission.controller" in sys.modules:
        raise RuntimeError("the core has its constants already; play in a process of its own")
    tuning.TUNING = replace(TUNING, **dict(changes))  # type: ignore[misc]  # final for all others
    from gateway.admission.policy import Bounds, Policy
    from gateway.simulation import workload
    from gateway.simulation.contenders import kvgate
    from gateway.simulation.simulate import simulate
    from tests.proof.simulation import MACHINE, SLO

    offered = workload_of(chosen[0].offered, requests)
    played = []
    for cell in chosen:
        policy = Policy(ttft_target=SLO.ttft, bounds=Bounds(cell.bounds))
        result = simulate(workload.at_rate(offered, known.rate * cell.load), MACHINE, kvgate(policy))
        quiet = sorted(
            job.first_token_at - job.request.arrival
            for job in result.jobs
            if job.request.flow in QUIET and job.first_token_at is not None
        )
        played.append(
            Figures(
                result.goodput(SLO) / known.best[cell.load],
                result.preemptions,
                len(result.jobs),
                quiet[int(0.99 * len(quiet))] if quiet else None,
            )
        )
    return played


def sweep(tried: Sequence[Changes], chosen: Sequence[Cell], requests: int) -> Iterable[dict[Cell, Figures]]:
    """The figures of all cells: first of the constants as they are, then of each variant. As many at once as cores."""
    by_workload: dict[Offered, list[Cell]] = {}
    for cell in chosen:
        by_workload.setdefault(cell.offered, []).append(cell)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        knowing = {
            offered: processes.submit(know, offered, sorted({cell.load for cell in group}), requests)
            for offered, group in by_workload.items()
        }
        known = {offered: future.result() for offered, future in knowing.items()}
        playing: list[list[tuple[list[Cell], Future[list[Figures]]]]] = [
            [
                (group, processes.submit(play, changes, group, known[offered], requests))
                for offered, group in by_workload.items()
            ]
            for changes in ((), *tried)
        ]
        for groups in playing:
            yield {
                cell: figures for group, future in groups for cell, figures in zip(group, future.result(), strict=True)
            }


def row(title: str, before: Mapping[Cell, Figures], after: Mapping[Cell, Figures]) -> str:
    """A row of the table."""
    points = {cell: (after[cell].goodput - before[cell].goodput) * 100 for cell in before}
    worst = min(points, key=lambda cell: points[cell])
    mean = sum(points.values()) / len(points)

    def preempted(all_of: Mapping[Cell, Figures]) -> str:
        rates = [figures.preemptions / figures.requests * 1000 for figures in all_of.values()]
        return f"{sum(rates) / len(rates):5.2f}/{max(rates):5.2f}"

    def quiet(all_of: Mapping[Cell, Figures]) -> str:
        waits = [figures.quiet for figures in all_of.values() if figures.quiet is not None]
        return f"{max(waits):.2f}" if waits else ""

    return (
        f"{title:36} {points[worst]:+6.2f} {mean:+6.2f} {max(points.values()):+6.2f}"
        f"  {preempted(before)} {preempted(after)}  {quiet(before):>5} {quiet(after):>5}  {worst.name}"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("constants", nargs="*", metavar="CONSTANT or NAME=VALUE,...")
    parser.add_argument("--cells", nargs="+", default=[""], help="only those whose name contains one of these")
    parser.add_argument("--requests", type=int, default=PART, help="of each cell")
    arguments = parser.parse_args(words)
    tried: list[tuple[str, Changes]] = []
    for constant in arguments.constants or [field.name for field in fields(TUNING)]:
        if "=" in constant:
            pairs = (pair.split("=") for pair in constant.split(","))
            tried.append((constant, tuple((name, type(getattr(TUNING, name))(float(value))) for name, value in pairs)))
        else:
            tried += variants(constant)
    chosen = [cell for cell in cells() if any(text in cell.name for text in arguments.cells)]
    print(f"{len(chosen)} cells of {arguments.requests} requests; points of goodput, preemptions per 1,000, TTFT")
    print(f"{'':36} {'worst':>6} {'mean':>6} {'best':>6}  {'before':>11} {'after':>11}  {'quiet':>5} {'after':>5}")
    results = iter(sweep([changes for _, changes in tried], chosen, arguments.requests))
    before = next(results)
    goodputs = [figures.goodput * 100 for figures in before.values()]
    mean = sum(goodputs) / len(goodputs)
    print(f"{'as they are, %':36} {min(goodputs):6.2f} {mean:6.2f} {max(goodputs):6.2f}", flush=True)
    for (title, _), after in zip(tried, results, strict=True):
        print(row(title, before, after), flush=True)


if __name__ == "__main__":
    main()
