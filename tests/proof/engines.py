"""One model on two engines that run here: CPU and memory of a vLLM and of a llama-server, both on the processor.

    python -m tests.proof.engines [--tokens 64] [--at-once 1 8] [--fp8-kv]

The small chat model of the demo: for vLLM in 32 bits, for llama-server as the GGUF file that it comes from (Q4_1). Each
computes in one thread, and is asked for so many tokens, alone and several at once. What counts is CPU time of the
engine's processes, since other work on the machine changes it least. `--fp8-kv` runs vLLM with an fp8 KV cache, too.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engine.demo_model import smollm2, smollm2_gguf
from engine.descent import family
from engine.interpreter import engine_python
from loadtests.provenance import provenance
from tests.ports import free_port

START = 420.0
PATIENCE = 600.0
PROMPT = "Once upon a time there was a small town by the sea, and"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Started:
    """An engine that answers, with the CPU seconds that it took to."""

    url: str
    pid: int
    cpu: float

    def spent(self) -> float:
        """CPU seconds of its processes so far."""
        return sum(map(_cpu, family(self.pid)))

    def memory(self) -> float:
        """GiB of its processes, shared pages by their share."""
        return sum(map(_pss, family(self.pid))) / 2**20


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(fields[at]) for at in (11, 12, 13, 14)) / _TICKS  # with that of children that ended
    return 0.0


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


@contextlib.contextmanager
def started(argv: Sequence[str | Path], port: int, env: dict[str, str]) -> Iterator[Started]:
    """Run an engine while the block runs."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + START
            while not _ready(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    sys.exit(f"{argv[0]} did not start:\n{log.read()[-3000:].decode(errors='replace')}")
                time.sleep(0.2)
            answering = Started(url, process.pid, 0.0)
            yield Started(url, process.pid, answering.spent())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    return False


async def ask(url: str, tokens: int, at_once: int) -> None:
    """Ask for so many tokens, so many times at once."""
    body: dict[str, Any] = {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.post(f"{url}/v1/completions", json=body) for _ in range(at_once)))
    for answer in answers:
        assert answer.json()["usage"]["completion_tokens"] == tokens, answer.text


def measure(name: str, server: Started, tokens: int, at_once: Sequence[int]) -> None:
    """Print an engine's row."""
    asyncio.run(ask(server.url, 8, max(at_once)))  # the first of a kind compiles
    said = []
    for count in at_once:
        before = server.spent()
        asyncio.run(ask(server.url, tokens, count))
        said.append(f"{tokens * count / (server.spent() - before):6.1f} tokens per CPU second, {count} at once")
    print(f"{name}: start {server.cpu:.1f} CPU seconds; {server.memory():.2f} GiB; {'; '.join(said)}", flush=True)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--fp8-kv", action="store_true")
    asked = parser.parse_args()
    print(provenance())
    port = free_port()
    gguf = [sys.executable, "-m", "engine.llama.server", "--model", smollm2_gguf(), "--alias", "m", "--port", port]
    gguf += ["--host", "127.0.0.1", "--ctx-size", "4096", "--parallel", "8", "--kv-unified", "--threads", "1"]
    with started([str(word) for word in gguf], port, {}) as server:
        measure("llama-server", server, asked.tokens, asked.at_once)
    python = engine_python()
    for extra in ([], ["--kv-cache-dtype", "fp8"])[: 2 if asked.fp8_kv else 1]:
        port = free_port()
        vllm = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", smollm2(python), "--port", port]
        vllm += ["--served-model-name", "m", "--max-model-len", "2048", "--dtype", "float32", "--enforce-eager", *extra]
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
        with started([str(word) for word in vllm], port, env) as server:
            measure(" ".join(("vLLM", *extra)), server, asked.tokens, asked.at_once)


if __name__ == "__main__":
    main()
