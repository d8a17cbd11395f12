"""`kvgate serve` with what makes a real vLLM fail: it ends within a minute, and its last lines name cause and way out.

All cases are run at once, two at a time: a vLLM that fails costs 10 to 30 s of one core. A KV cache too small for the
context is in `test_memory_ladder.py`, a port that is taken from an engine in `test_engine_supervision.py`.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from engine.diagnosis.log_cause import read_log
from tests.integration.test_engine_supervision import family
from tests.ports import free_port

pytestmark = pytest.mark.engine

AT_ONCE = 2
A_MINUTE = 60.0
PATIENCE = 900.0
"""Seconds for an engine to start, before it is killed, on a machine that does much else."""
ARGS = ("--max-model-len", "2048", "--block-size", "32", "--dtype", "float32", "--enforce-eager")

Spoil = Callable[[Path], None]


def damaged_tokenizer(model: Path) -> None:
    tokenizer = model / "tokenizer.json"
    cut = tokenizer.read_bytes()[:5000]
    tokenizer.unlink()
    tokenizer.write_bytes(cut)


def without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def other_vocabulary(model: Path) -> None:
    config = model / "config.json"
    changed = {**json.loads(config.read_text()), "vocab_size": 9000}
    config.unlink()
    config.write_text(json.dumps(changed))


def gone(model: Path) -> None:
    model.rename(model.with_name("elsewhere"))


@dataclass(frozen=True)
class Case:
    """One failure: how to bring it about, and words of the last lines."""

    last_lines: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    spoil: Spoil | None = None
    taken_port: bool = False
    kill: str = ""
    sign: str = ""
    """What `kvgate doctor --log` finds in what was printed, where vLLM was started."""


CASES = {
    "context over the model's own": Case(
        ("--max-model-len 100000 is more than the 8192 positions the model has.", "Ask for at most 8192."),
        args=("--max-model-len", "100000"),
        sign="context over the model's own",
    ),
    "batched tokens under sequences": Case(
        ("--max-num-batched-tokens 64 is below --max-num-seqs 128.", "--max-num-seqs 64 or less"),
        args=("--max-num-batched-tokens", "64", "--max-num-seqs", "128"),
        sign="batched tokens under sequences",
    ),
    "heads not divisible": Case(
        ("The model's 2 attention heads cannot be split over 3 GPUs.", "--tensor-parallel-size of 1, 2"),
        args=("--tensor-parallel-size", "3"),
        sign="heads not divisible",
    ),
    "an argument nobody knows": Case(
        ("This vLLM does not know the argument --no-such-flag.",), args=("--no-such-flag",), sign="unknown argument"
    ),
    "sleep without a GPU": Case(
        ("vLLM cannot sleep on this machine (--enable-sleep-mode).", "Leave out `idle: sleep`"),
        args=("--enable-sleep-mode",),
        sign="sleep without a GPU",
    ),
    "damaged tokenizer": Case(
        ("A file of the model's tokenizer is damaged", "--tokenizer"),
        spoil=damaged_tokenizer,
        sign="tokenizer file damaged",
    ),
    "embedding of another vocabulary": Case(
        ("The checkpoint's embedding has another number of rows than `vocab_size`", "config.json"),
        spoil=other_vocabulary,
        sign="weights for another vocabulary",
    ),
    "host memory short": Case(
        ("The KV cache was told to take 500.0 GiB", "Set VLLM_CPU_KVCACHE_SPACE to at most"),
        env={"VLLM_CPU_KVCACHE_SPACE": "500"},
        sign="host memory under the KV cache",
    ),
    "engine core killed": Case(
        ("One of the engine's own processes died without a word.", "dmesg"),
        kill="EngineCore",
        sign="died without a word",
    ),
    "missing weights": Case(("weights",), spoil=without_weights),
    "missing folder": Case(("model",), spoil=gone),
    "port taken": Case(("cannot listen on 127.0.0.1:", "already in use"), taken_port=True),
}


@dataclass(frozen=True)
class Outcome:
    """How a `kvgate serve` ended: seconds from its start, or from the kill.

    `runnable`: processes for each core meanwhile, at least 1. A minute of a core takes so many minutes.
    """

    code: int
    seconds: float
    runnable: float
    said: str

    @property
    def last_lines(self) -> str:
        said = (json.loads(line) for line in self.said.splitlines()[-6:])
        return "\n".join(line.get("line") or line["event"] for line in said)


@pytest.fixture(scope="module")
def outcomes(
    engine_python: Path, quick_python: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """Every case's end, while it is being waited for."""
    folder = tmp_path_factory.mktemp("failures")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(
                _serve, case, folder / str(number), engine_python if case.kill else quick_python, random_model
            )
            for number, (name, case) in enumerate(CASES.items())
        }


def _serve(case: Case, folder: Path, python: Path, model: Path) -> Outcome:
    copy = folder / "model"
    copy.mkdir(parents=True)
    for file in model.iterdir():
        (copy / file.name).symlink_to(file)
    if case.spoil is not None:
        case.spoil(copy)
    engine = {"model": str(copy), "python": str(python), "args": [*ARGS, *case.args], "env": dict(case.env)}
    config = folder / "kvgate.yaml"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if case.taken_port:
            other.listen()
        port = other.getsockname()[1] if case.taken_port else free_port()
        settings = {
            "server": {"host": "127.0.0.1", "port": port},
            "models": [{"name": "random", "engine": {**engine, "max_restarts": 0}}],
        }
        config.write_text(yaml.safe_dump(settings))
        began = time.monotonic()
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            if case.kill:
                began = _killed(process, case.kill, log)
            code = process.wait(PATIENCE)
        finally:
            process.terminate()
            process.wait()
    seconds, runnable = time.monotonic() - began, os.getloadavg()[0] / (os.cpu_count() or 1)
    return Outcome(code, seconds, max(1.0, runnable), log.read_text())


def _killed(process: subprocess.Popen[bytes], title: str, log: Path) -> float:
    """Wait until the engine serves, kill one of its processes, and return when that was."""
    deadline = time.monotonic() + PATIENCE
    while not re.search(r"engine random: ready after", log.read_text()):
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (victim,) = (pid for name, pid in family(process.pid).items() if title in name)
    os.kill(victim, signal.SIGKILL)
    return time.monotonic()


@pytest.mark.parametrize("name", CASES)
def test_it_ends_and_its_last_lines_say_what_to_do(name: str, outcomes: dict[str, Future[Outcome]]) -> None:
    case, outcome = CASES[name], outcomes[name].result()
    assert outcome.code != 0
    assert outcome.seconds < A_MINUTE * outcome.runnable
    for words in case.last_lines:
        assert words in outcome.last_lines
    if case.sign:
        assert case.sign in [found.sign for found in read_log(outcome.said.splitlines())]
