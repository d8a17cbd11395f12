"""All long measurements in turn: `make proof`.

    python -m loadtests.proof [--out FOLDER] [--rounds N] [--seconds S] [--only NAME ...]

It sets up two real vLLMs with a small random model behind kvgate, one of them with vLLM's own limits. It writes a file
for each measurement, with its hardware, versions and commit. The engines have their cores to themselves, as they would
have a GPU. kvgate and the clients share the last core.
"""

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from loadtests.processes import child, on_cores, split_cores
from tests.ports import free_port

RESULTS = Path("docs/results")
START_SECONDS = 600
MODEL = "random"
LIMITED = "limited"
ENGINE_ARGS = (
    *("--max-model-len", "2048", "--enforce-eager", "--dtype", "float32"),
    *("--block-size", "32", "--num-gpu-blocks-override", "256"),
)
"""8,192 tokens of KV cache: small enough for an overload within minutes."""
LIMITS = ("--watermark", "0.05", "--max-num-queued-reqs", "40")
"""vLLM's own limit. It can begin 40 requests, running and waiting, within the TTFT target."""


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A run of a scenario. `targets` are some of direct, limited (vLLM's own limits) and kvgate."""

    scenario: str
    options: tuple[str, ...]
    targets: tuple[str, ...] = ("kvgate",)


LOAD_TESTS = {
    "overload": LoadTest("long-outputs", ("--load", "2", "--drain", "30"), ("direct", "limited", "kvgate")),
    "half": LoadTest("long-outputs", ("--load", "0.5", "--seconds", "60"), ("direct", "kvgate")),
    "azure": LoadTest(
        "azure-conversation",
        ("--load", "2", "--drain", "30", "--prompt-scale", "0.25"),
        ("direct", "limited", "kvgate"),
    ),
    "noisy-neighbour": LoadTest("noisy-neighbour", ("--seconds", "120")),
    "fair-shares": LoadTest("fair-shares", ("--seconds", "120")),
    "spike": LoadTest("spike", ()),
}
CHAOS = "tests/integration/test_engine_chaos.py tests/property/test_admission.py"
"""Tests at random, of which the suite has a short run. It draws the same examples of properties each time, too."""
OTHERS = {
    "calibration": ("pytest -s -m proof tests/proof/test_simulation_against_engine.py",),
    "chaos": (f"pytest -m proof {CHAOS}", "pytest -n 2 --hypothesis-profile explore tests/property"),
    "page": ("pytest -m proof tests/integration/test_page.py",),
    "relay_cost": ("loadtests.relay_cost --tokenizer {model} --rounds 3 --out {out}/relay_cost.json",),
    "relay_limits": ("loadtests.relay_limits --out {out}",),
    "startup": ("loadtests.startup --tokenizer {model} --out {out}/startup.json",),
    "workers": ("tests.proof.workers --seconds {seconds} --out {out}/workers.json",),
    "plan_accuracy": ("tests.proof.plan_accuracy",),
}
"""The commands of measurements that write their own file, or only pass or fail."""
COSTS: dict[str, tuple[str, ...]] = {
    "simulation": (),
    "core_cost": (),
    "counting_cost": (MODEL,),
    "tier_cost": (),
    "front_cost": (),
    "rolling": (),
    "partitions": (),
    "kill_all": (),
    "on_demand": (),
    "otlp_cost": (),
    "scrape_cost": (),
    "engines": (),
    "page_left_open": (),
}
"""Measurements that print a table, by module name. `MODEL` stands for the model's folder."""


def main() -> None:
    """Run all measurements, or the named ones."""
    known = (*LOAD_TESTS, *OTHERS, *COSTS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--rounds", type=int, default=1, help="of each load test")
    parser.add_argument("--seconds", type=float, default=300, help="of the overloads")
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    wanted = set(arguments.only)
    folder = _said("-m", "engine.demo_model", MODEL)
    if wanted & set(LOAD_TESTS):
        _load_tests(wanted, folder, out, arguments.rounds, arguments.seconds)
    filled = {"model": folder, "out": str(out), "seconds": arguments.seconds}
    for command in (command for name, commands in OTHERS.items() if name in wanted for command in commands):
        _run("-m", *(word.format(**filled) for word in command.split()))
    for name, given in COSTS.items():
        if name in wanted:
            _run("-m", f"tests.proof.{name}", *(folder for _ in given), kept=out / f"{name}.txt")


def _load_tests(wanted: set[str], folder: str, out: Path, rounds: int, seconds: float) -> None:
    of_engines, core = split_cores()
    with tempfile.TemporaryDirectory() as scratch, on_cores({core}):
        python = _pinned(_said("-m", "engine.interpreter"), of_engines, Path(scratch, "python"))
        port = free_port()
        file, log = Path(scratch, "kvgate.yaml"), Path(scratch, "kvgate.log")
        models = [
            {"name": MODEL, "engine": {"model": folder, "args": list(ENGINE_ARGS)}},
            {"name": LIMITED, "engine": {"model": folder, "args": [*ENGINE_ARGS, *LIMITS]}},
        ]
        server = {"port": port, "host": "127.0.0.1", "trusted_flow_header": "x-flow"}
        file.write_text(yaml.safe_dump({"server": server, "models": models}))
        # Each begins without what others have learnt.
        environment = ["env", f"KVGATE_ENGINE_PYTHON={python}", "KVGATE_SERVER__STATE_DIR=none"]
        serve = [*environment, sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        with child(serve, None, log) as process:
            kvgate = f"http://127.0.0.1:{port}"
            print("starting two real vLLMs behind kvgate", flush=True)
            engines = asyncio.run(_engines(kvgate, process, log))
            urls = {"direct": engines[MODEL], "limited": engines[LIMITED], "kvgate": kvgate}
            for name, test in LOAD_TESTS.items():
                if name not in wanted:
                    continue
                targets = [argument for target in test.targets for argument in ("--target", f"{target}={urls[target]}")]
                lasting = () if "--seconds" in test.options or name == "spike" else ("--seconds", str(seconds))
                _run(
                    *("-m", "loadtests.run", test.scenario, *targets, "--model", MODEL),
                    *("--metrics", f"kvgate={engines[MODEL]}/metrics", "--rounds", str(rounds)),
                    *(*test.options, *lasting),
                    *("--out", str(out / f"{name}.json"), "--html", str(out / f"{name}.html")),
                )


def _pinned(interpreter: str, cores: Sequence[int], at: Path) -> Path:
    """Write a command that runs the interpreter on these cores."""
    on = ",".join(map(str, cores))
    at.write_text(f'#!/bin/sh\nexec taskset -c {on} {shlex.quote(interpreter)} "$@"\n')
    at.chmod(0o755)
    return at


async def _engines(kvgate: str, process: "subprocess.Popen[bytes]", log: Path) -> dict[str, str]:
    """Wait until the engines behind kvgate are healthy. Return their own URLs by model."""
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
        while process.poll() is None:
            try:
                async with session.get(f"{kvgate}/kvgate/state") as response:
                    endpoints = (await response.json())["endpoints"]
                healthy = {e["models"][0]: str(e["url"]) for e in endpoints if e["healthy"]}
                if len(healthy) == 2:
                    return healthy
            except aiohttp.ClientError:
                pass  # the gateway's process is still starting
            await asyncio.sleep(0.5)
    sys.exit(f"kvgate ended:\n{log.read_text()[-2000:]}")  # noqa: ASYNC240  # nothing else is left to do


def _run(*arguments: str, kept: Path | None = None) -> None:
    """Run a measurement. If its verdict is a failure, it has printed that, and the next ones still run.

    What it prints is written to `kept`, too.
    """
    print(f"\n$ python {' '.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, *arguments], check=False, stdout=subprocess.PIPE if kept else None, text=True
    )
    if kept:
        kept.write_text(done.stdout)
        print(done.stdout, end="", flush=True)
    if done.returncode not in {0, 1}:
        sys.exit(done.returncode)


def _said(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    main()
