"""What OpenTelemetry costs: kvgate's CPU per plain request and per streamed event, without it, at 1 % and at all.

    python -m tests.proof.otlp_cost [--rounds 3] [--seconds 4]

As in `loadtests.relay_cost`, on whose bench it runs: kvgate has a core to itself, all else has another. The three take
turns in one run. With it on, traces, metrics and logs are exported, metrics at 1 s, to a collector that takes them.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop

from loadtests.relay_cost import LOAD_CORE, Bench, Load
from tests.fakes.tokenizer import make_tokenizer

SERVE = f"{shlex.quote(sys.executable)} -m gateway serve --endpoint {{engine}} --port {{port}}"
LOADS = (Load(0, rate=200.0), Load(256))
SHARES = {"off": None, "1 %": "0.01", "all": "1"}
QUEUE = 100_000
"""Spans that wait at most: none is dropped, so that all are paid for."""


def command(share: str | None, collector: str) -> str:
    """How kvgate starts with this share of its requests traced."""
    if share is None:
        return SERVE
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": share,
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
    }
    return " ".join(["env", *(f"{name}={value}" for name, value in variables.items()), SERVE])


async def run(tokenizer: str, collector: str, rounds: int, seconds: float) -> None:
    """Print the least of each load, and how much more that is than without it: what else runs only adds."""
    for load in LOADS:
        costs: dict[str, list[float]] = {name: [] for name in SHARES}
        for _ in range(rounds):
            for name, share in SHARES.items():
                bench = Bench(command(share, collector), tokenizer, seconds)
                costs[name].append((await bench.measure("kvgate", load)).us)
        off = min(costs["off"])
        for name, found in costs.items():
            each = ", ".join(f"{cost:.1f}" for cost in found)
            print(f"{load.label}, {name}: {min(found):.1f} ({min(found) / off - 1:+.1%}; {each})", flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CORE})
    process = subprocess.Popen([sys.executable, "-m", "tests.fakes.collector"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        collector = process.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as made:
            uvloop.run(run(str(make_tokenizer(Path(made))), collector, options.rounds, options.seconds))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
