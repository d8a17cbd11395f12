"""Start-up and memory of a gateway: CPU until it listens and until it counts prompts, and what it holds when idle.

    python -m loadtests.startup

A fresh kvgate starts in front of the engine's stand-in, alone and with `--workers 2`. CPU is that of all its
processes. Memory is the resident set of each process once it is idle, and the proportional set of all: pages that
processes share count once.
"""

import argparse
import asyncio
import contextlib
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from loadtests.figures import medians, print_table
from loadtests.processes import answers, child, children, cpu_seconds
from loadtests.provenance import provenance
from loadtests.relay_cost import counted_here
from tests.fakes.tokenizer import make_tokenizer
from tests.ports import free_port

START_SECONDS = 60.0
IDLE_SECONDS = 3.0
"""Seconds without work before memory is read."""
LOOK_SECONDS = 0.005
LISTENING = '"event":"listening"'
COMPARED = r'"event":"prompts are counted as the endpoint counts them"|differs in the probes'
"""The stand-in counts what is unusual in its own way; a plain conversation is counted here all the same."""
MODES: Mapping[str, tuple[int, tuple[str, ...]]] = {"alone": (1, ()), "2 workers": (2, ("--workers", "2"))}
"""By name: the processes that serve, and the flags for them."""


async def measure(command: str, tokenizer: Path, mode: str) -> dict[str, float]:
    """One start."""
    serving, flags = MODES[mode]
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        folder = Path(made)
        port, log = free_port(), folder / "engine.log"
        argv = [sys.executable, "-m", "tests.fakes.vllm", "--port", str(port)]
        argv += ["--tokenizer", str(tokenizer), "--root", str(tokenizer)]
        with child(argv, None, log) as engine:
            url = f"http://127.0.0.1:{port}"
            await answers(f"{url}/health", engine, log)
            own, said = free_port(), folder / "kvgate.log"
            argv = [*shlex.split(command), "serve", "--endpoint", url, "--port", str(own), *flags]
            with child(argv, None, said) as kvgate:
                listening = await _cpu_until(lambda: _times(said, LISTENING) >= serving, kvgate.pid, said)
                counted = await _cpu_until(lambda: _times(said, COMPARED) >= serving, kvgate.pid, said)
                await counted_here(own)
                await asyncio.sleep(IDLE_SECONDS)
                return {"CPU s to listening": listening, "CPU s to prompts counted": counted} | memory(kvgate.pid)


async def _cpu_until(reached: Callable[[], bool], pid: int, log: Path) -> float:
    """CPU seconds of a process tree once something is so.

    Raises:
        RuntimeError: it is not so within a minute.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while not reached():  # noqa: ASYNC110 - another process writes what is looked for
                await asyncio.sleep(LOOK_SECONDS)
            return cpu_seconds(pid)
    said = log.read_bytes()[-2000:].decode(errors="replace")  # noqa: ASYNC240 - nothing else is left to do
    raise RuntimeError(f"kvgate did not start: {said}")


def _times(log: Path, pattern: str) -> int:
    return len(re.findall(pattern, log.read_text(errors="replace")))


def memory(pid: int) -> dict[str, float]:
    """MB of a process and of those below it, by what they do, and of all."""
    found: dict[str, float] = {}
    proportional = 0.0
    below = [pid]
    while below:
        one = below.pop(0)
        below += children(one)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            name = f"RSS MB, {role(Path(f'/proc/{one}/cmdline').read_text().split(chr(0)))}"
            while name in found:
                name += "'"
            found[name] = _mb(rollup, "Rss")
            proportional += _mb(rollup, "Pss")
    return found | {"PSS MB, all": proportional}


def role(argv: list[str]) -> str:
    """What a process of kvgate does, by its command line."""
    words = " ".join(argv)
    for sign, name in {
        "--owner-at": "front", "--owner": "owner", "spawn_main": "counting", "forkserver": "forkserver",
        "resource_tracker": "resource tracker", "guard": "guard", " serve": "gateway or its parent",
    }.items():  # fmt: skip
        if sign in words:
            return name
    return "other"


def _mb(rollup: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


async def run(command: str, tokenizer: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Start each mode in turn, `rounds` times."""
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, measured in results.items():
            measured.append(await measure(command, tokenizer, mode))
    return results


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvgate-cmd", default=f"{shlex.quote(sys.executable)} -m gateway", help="how kvgate starts")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer; else a small one is made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write every figure here, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvgate-loadtest-") as made:
        tokenizer = options.tokenizer or make_tokenizer(Path(made))
        results = asyncio.run(run(options.kvgate_cmd, tokenizer, options.rounds))
    columns = {mode: medians(measured) for mode, measured in results.items()}
    print_table("Start-up and idle memory, median of the rounds", columns)
    if options.out is not None:
        document = {"provenance": provenance(), "medians": columns, "rounds": results}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


if __name__ == "__main__":
    main()
