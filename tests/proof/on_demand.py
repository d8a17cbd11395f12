"""Three models on one slot: what a cold start, a change of models and a mixed load cost.

    python -m tests.proof.on_demand [--requests 200] [--within 30] [--changes 6]

Real llama-servers on a CPU, with small models of random weights, one thread each. First single requests: to no engine,
to one that runs, and to another model than the one that runs. Then requests for all three models in no order: how many
failed, how long they took, and how often an engine was started. The exit code is 1 if one failed.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from loadtests.provenance import provenance
from tests.integration.kvgate import Kvgate
from tests.integration.one_slot import MODELS, ask, mixed, one_slot, starts, states
from tests.unit.engine.processes import eventually


def timed(kvgate: Kvgate, model: str) -> float:
    """Seconds of one request."""
    began = time.monotonic()
    assert ask(kvgate, model).status_code == 200
    return time.monotonic() - began


def changes(kvgate: Kvgate, number: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds of first requests on no engine, after a change of models, and of requests on a running engine."""
    cold, changed, warm = [], [], []
    for turn in range(number):
        assert eventually(lambda: set(states(kvgate).values()) == {"stopped"})
        model = MODELS[turn % len(MODELS)]
        cold.append(timed(kvgate, model))
        warm.append(timed(kvgate, model))
        changed.append(timed(kvgate, MODELS[(turn + 1) % len(MODELS)]))
    return cold, changed, warm


def told(name: str, seconds: list[float]) -> None:
    """Print a line."""
    print(f"{name:>32}: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s, of {len(seconds)}")


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--within", type=float, default=30, help="seconds in which they come")
    parser.add_argument("--changes", type=int, default=6)
    asked = parser.parse_args()
    print(provenance())
    with tempfile.TemporaryDirectory() as folder, one_slot(Path(folder), idle_stop=2) as kvgate:
        cold, changed, warm = changes(kvgate, asked.changes)
        told("request to a running engine", warm)
        told("request that starts an engine", cold)
        told("request that changes the model", changed)
        before, began = starts(kvgate), time.monotonic()
        ended = asyncio.run(mixed(kvgate, asked.requests, asked.within))
        took = time.monotonic() - began
        failed = [one for one in ended if one.status != 200 or not one.whole]
        print(f"{len(ended)} mixed requests in {took:.0f} s: {len(failed)} failed, {starts(kvgate) - before} starts")
        told("a mixed request", [one.seconds for one in ended])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
