"""Real vLLM servers for the tests, started once per session and shared.

On a new machine the engine's environment and the models are set up first, by the product's own code, into its cache.
`KVGATE_ENGINE_PYTHON` names an interpreter to use instead.
"""

import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from engine import guard
from engine.demo_model import random_llama, smollm2
from engine.interpreter import engine_python as ensure_engine_python
from tests.forked_python import forking
from tests.ports import free_port

# How long an example takes is the machine's affair: what hangs is ended by the time limit of its test. The suite draws
# the same examples each time, so that it fails for what has changed; `make proof` goes on looking, with `explore`.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("kvgate", settings.get_profile("explore"), derandomize=True)
settings.load_profile("kvgate")

# Engines of the tests share the cores: two threads of one engine spin while they wait for each other, and 600 tokens
# took 60 s of CPU instead of 5.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Its process is its worker, too, as with a single GPU: a process less to start, which takes 6 s of CPU.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

# With logprobs they compile one function, even with --enforce-eager: 13 s on a new machine.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

QUICK_START = Path(__file__).with_name("engine_start")
"""Has their processes import once."""

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(QUICK_START), os.environ.get("PYTHONPATH"))))

START_TIMEOUT = 900.0
"""Seconds; a start takes 22 to 42 s on two cores that do nothing else."""

PATIENCE = 1800
"""Seconds a test may take that starts real engines, or installs what it needs."""

DEFAULT_ARGS = {
    "--max-model-len": "2048",
    "--block-size": "32",
    "--num-gpu-blocks-override": "256",
    "--dtype": "float32",
}
"""8,192 tokens of KV cache."""

CHAT_ARGS = {
    "--num-gpu-blocks-override": "80",
    "--max-model-len": "1024",
    "--enable-auto-tool-choice": None,
    "--tool-call-parser": "hermes",
}


@dataclass(frozen=True)
class Vllm:
    """A vLLM server that runs and is healthy, under a guard so that a test run that is killed leaves none behind.

    `process` is the guard, which leads the process group of them all.
    """

    url: str
    model: str
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: Path

    def running(self) -> bool:
        """Whether its main process lives."""
        if self.process.poll() is not None:
            return False
        try:
            return b"exited" not in self.channel.recv(4096, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return True

    def stop(self) -> None:
        """Kill it and its children, and remove what they shared."""
        if self.process.poll() is None:
            self.channel.shutdown(socket.SHUT_WR)
            self.process.wait()
        self.channel.close()


VllmFactory = Callable[..., Vllm]

SHARED = {
    "chat_vllm": {
        "tests/contract/test_anthropic_python.py",
        "tests/contract/test_openai_node.py",
        "tests/contract/test_openai_python.py",
        "tests/integration/test_ledger_against_engine.py",
        "tests/integration/test_vllm_contract.py",
        "tests/integration/test_workers_of_engine.py",
    },
    "random_vllm": {
        "tests/integration/test_direct_and_through.py",
        "tests/integration/test_fake_against_real.py",
        "tests/integration/test_silence_of_engine.py",
        "tests/integration/test_traffic_of_engine.py",
        "tests/integration/test_vllm_routes.py",
    },
}
"""Fixtures that are one engine for several files. One worker gets all of them, and starts the engine once."""


class ByEngine(LoadFileScheduling):
    """Of several workers each has files as a whole, or all files of a shared engine."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((engine for engine, files in SHARED.items() if file in files), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByEngine:
    """Instead of xdist's own groups, which do nothing with pytest 9.2: it keeps the ids of its tests elsewhere."""
    return ByEngine(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: no test need search it for garbage, half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait for others' programs have longer, and those of a shared engine are known to the scheduler."""
    for item in items:
        if item.get_closest_marker("engine") or item.get_closest_marker("network"):
            item.add_marker(pytest.mark.timeout(PATIENCE))
        file = item.nodeid.partition("::")[0]
        for engine, files in SHARED.items():
            if engine in getattr(item, "fixturenames", ()) and file not in files:
                raise pytest.UsageError(f"{file} uses {engine}: SHARED in tests/conftest.py names such files")


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    """A test that has set up the log, and was broken off, leaves it to no other."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways of the tests learn nothing from those of others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """An interpreter that has vLLM."""
    return ensure_engine_python()


@pytest.fixture(scope="session")
def quick_python(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same, which has it imported: for programs whose process ids and files nobody looks at."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with forking(engine_python, "vllm.entrypoints.openai.api_server", shared) as python:
        yield python


@pytest.fixture(scope="session")
def demo_model(engine_python: Path) -> Path:
    """Folder of the real chat model."""
    return smollm2(engine_python)


@pytest.fixture(scope="session")
def random_model(engine_python: Path) -> Path:
    """Folder of the fast model with random weights."""
    return random_llama(engine_python)


@pytest.fixture(scope="session")
def vllm(
    engine_python: Path, quick_python: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmFactory]:
    """Call it to get a healthy vLLM; a call with the same arguments gets the same server, until that is stopped.

    `vllm(model=FOLDER, served_name="...", args={"--flag": "value" or None}, env={...}, tag="a")`. `args` are laid over
    `DEFAULT_ARGS`; a value of None is a flag without value, False takes a default out. `tag` tells servers apart that
    are otherwise alike. With a `PYTHONPATH` in `env` it is that path's vLLM. A start costs 3 GB: share, and
    `stop()` what no other test needs.
    """
    running: dict[object, Vllm] = {}
    logs = tmp_path_factory.mktemp("vllm")

    def start(
        model: Path = random_model,
        served_name: str = "random",
        args: Mapping[str, str | bool | None] | None = None,
        env: Mapping[str, str] | None = None,
        tag: str = "",
    ) -> Vllm:
        flags: dict[str, str | bool | None] = {**DEFAULT_ARGS, **(args or {})}
        key = (model, served_name, tuple(flags.items()), tuple((env or {}).items()), tag)
        if key in running and running[key].running():
            return running[key]
        log = logs / f"{len(list(logs.iterdir()))}-{served_name}{tag}.log"
        has_own = "PYTHONPATH" in (env or {})
        argv = [
            str(engine_python if has_own else quick_python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--enforce-eager",
        ]
        for flag, value in flags.items():
            if value is not False:
                argv += [flag] if value is None or value is True else [flag, value]
        running[key] = _start(argv, served_name, env or {}, log)
        return running[key]

    yield start
    for server in running.values():
        server.stop()


@pytest.fixture(scope="session")
def random_vllm(vllm: VllmFactory) -> Vllm:
    """The shared default server: random model, 8,192 tokens of KV cache, 2,048 positions."""
    return vllm()


@pytest.fixture(scope="session")
def chat_vllm(vllm: VllmFactory, demo_model: Path) -> Vllm:
    """The shared server of the real chat model, which calls tools: 2,560 tokens of KV cache, 1,024 positions."""
    return vllm(model=demo_model, served_name="smollm2", args=CHAT_ARGS)


def _start(argv: list[str], served_name: str, env: Mapping[str, str], log: Path) -> Vllm:
    port = free_port()
    argv = [*argv, "--served-model-name", served_name, "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environ = {**os.environ, **quiet, **env}
    channel, theirs = socket.socketpair()
    with theirs, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), *argv],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
    server = Vllm(f"http://127.0.0.1:{port}", served_name, process, channel, log)
    try:
        _await_healthy(server)
    except BaseException:
        server.stop()
        raise
    return server


def _await_healthy(server: Vllm) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    with httpx.Client() as client:
        while time.monotonic() < deadline:
            if not server.running():
                pytest.fail(f"vLLM ended:\n{server.log.read_text()[-4000:]}")
            try:
                if client.get(f"{server.url}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
    pytest.fail(f"vLLM was not healthy in {START_TIMEOUT:.0f} s:\n{server.log.read_text()[-4000:]}")
