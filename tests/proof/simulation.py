"""What the simulation says of admission on a production trace: all contenders, at three loads and on variants of it.

    python tests/proof/simulation.py [--requests N] [--skip N] [--only plain|outputs|prompts|prefix] [--load X ...]
                                     [--kv-tokens N] [--max-num-seqs N]

Load 1.0 is the capacity: the requests per second the oracle completes of that workload when it is never short of them.
"""

import argparse
import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from pathlib import Path
from time import perf_counter

from rich.console import Console

from gateway.admission.policy import Policy
from gateway.simulation import workload
from gateway.simulation.compare import Row, capacity, compare, contenders
from gateway.simulation.machine import Machine
from gateway.simulation.report import WIDTH, table
from gateway.simulation.result import Slo
from gateway.simulation.workload import Workload

TRACE = Path(__file__).parents[2] / "loadtests" / "traces" / "azure_llm_2023_conv.csv.gz"
VARIANTS = {
    "plain": ("Azure conversation", lambda trace: trace),
    "outputs": ("outputs 4x", lambda trace: workload.scaled(trace, outputs=4.0)),
    "prompts": ("prompts 8x", lambda trace: workload.scaled(trace, prompts=8.0)),
    "prefix": ("80 % shared prefix", lambda trace: workload.sharing(trace, 0.8, groups=8)),
}
MACHINE, SLO = Machine(), Slo()
TARGETS = {"kvgate forecast": 0.97, "kvgate both": 0.95}
"""Least tokens in SLO, of the oracle's."""
MAX_PREEMPTIONS = 0.001
"""For each request."""


def verdict(row: Row) -> str | None:
    """Whether a row is within what was promised; None where nothing was."""
    target = TARGETS.get(row.result.contender)
    if target is None:
        return None
    held = row.relative >= target and row.result.preemption_rate < MAX_PREEMPTIONS
    return "yes" if held else f"no, {target:.0%} and {MAX_PREEMPTIONS:.1%} are promised"


def played(trace: Workload, machine: Machine, variant: str, load: float) -> tuple[str, Sequence[Row]]:
    """A table, and what it is called."""
    title, change = VARIANTS[variant]
    offered = change(trace)
    known = capacity(offered, machine)
    rate = known.requests_per_second * load
    started = perf_counter()
    compared = contenders(Policy(ttft_target=SLO.ttft), SLO, known)
    rows = compare(workload.at_rate(offered, rate), machine, compared, SLO, load)
    return f"{title}, load {load:g} ({rate:.2f} requests/s; simulated in {perf_counter() - started:.1f} s)", rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--skip", type=int, default=0, help="requests of the trace before the first")
    parser.add_argument("--only", choices=VARIANTS)
    parser.add_argument("--load", type=float, action="append")
    parser.add_argument("--kv-tokens", type=int, default=MACHINE.kv_tokens)
    parser.add_argument("--max-num-seqs", type=int, default=MACHINE.max_num_seqs)
    arguments = parser.parse_args()
    machine = Machine(kv_tokens=arguments.kv_tokens, max_num_seqs=arguments.max_num_seqs)
    console = Console(width=WIDTH, highlight=False)
    console.print(f"Python {platform.python_version()}; KV {machine.kv_tokens:,} tokens, SLO {SLO}")
    trace = workload.load(TRACE, arguments.skip + arguments.requests)[arguments.skip :]
    cells = product([arguments.only] if arguments.only else VARIANTS, arguments.load or (0.6, 1.0, 1.5))
    with ProcessPoolExecutor() as processes:
        for title, rows in processes.map(played, repeat(trace), repeat(machine), *zip(*cells, strict=True)):
            console.print(table(rows, title))
            for row in rows:
                if (said := verdict(row)) is not None:
                    preempted = row.result.preemption_rate
                    console.print(f"  {row.result.contender}: {row.relative:.1%}, preemptions {preempted:.2%}: {said}")


if __name__ == "__main__":
    main()
