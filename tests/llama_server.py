"""A real llama-server on a CPU: llama.cpp's own server, which `xllamacpp` runs inside of a process.

    python -m tests.llama_server MODEL.gguf --ctx 2048 --slots 4 --port 8000

It runs until its standard input ends.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.ports import free_port

START_TIMEOUT = 60.0
"""Seconds; a start takes one or two."""


@dataclass(frozen=True)
class LlamaServer:
    """One that runs and is healthy."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def llama_server(
    model: Path, *, ctx: int, slots: int, split: bool = False, port: int | None = None
) -> Iterator[LlamaServer]:
    """Run one while the block runs: `ctx` tokens of KV cache, for all slots, or `split` among them."""
    port = port or free_port()
    argv = [sys.executable, "-m", "tests.llama_server", model, f"--ctx={ctx}", f"--slots={slots}", f"--port={port}"]
    argv += ["--split"] * split
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, cwd=Path(__file__).parents[1])
    try:
        server = LlamaServer(port, process)
        _await(server.url, process)
        yield server
    finally:
        process.kill()
        process.communicate()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"llama-server was not ready within {START_TIMEOUT:.0f} s")


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--ctx", type=int, default=2048, help="tokens of KV cache")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--split", action="store_true", help="split the cache among the slots")
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = asked.model, asked.port
    params.n_ctx, params.n_parallel, params.kv_unified = asked.ctx, asked.slots, not asked.split
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = True
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
