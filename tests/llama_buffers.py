"""What a real llama-server says it takes: the sizes of its buffers, from its log.

python -m tests.llama_buffers MODEL.gguf --ctx 4096 --slots 4
"""

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

_SIZE = re.compile(r"(\S+)\s+(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_READY = "all slots are idle"
"""It logs from a thread of its own, so what it says last tells that the rest was said."""
_TIMEOUT = 60.0
"""Seconds; one or two are needed."""


@dataclass(frozen=True)
class Buffers:
    """MiB, by the names of the devices; and the whole log."""

    model: dict[str, float]
    kv: dict[str, float]
    compute: dict[str, float]
    output: float
    log: str

    @classmethod
    def read(cls, log: str) -> "Buffers":
        """Read them from a log. A KV cache of several parts is their sum, and so are states beside it."""
        found: dict[str, dict[str, float]] = {}
        for device, kind, size in _SIZE.findall(log):
            sizes = found.setdefault({"RS": "KV"}.get(kind, kind), {})
            # Of the context's own buffers the last word counts: a server makes them anew for its slots.
            sizes[device] = float(size) + (sizes.get(device, 0.0) if kind in {"model", "KV", "RS"} else 0.0)
        return cls(
            found.get("model", {}),
            found.get("KV", {}),
            found.get("compute", {}),
            sum(found.get("output", {}).values()),
            log,
        )


def buffers(
    model: Path,
    *,
    ctx: int,
    slots: int = 4,
    split: bool = False,
    cache: str = "f16",
    ubatch: int = 512,
    mapped: bool = False,
    repack: bool = False,
) -> Buffers:
    """Start one, read its log, end it. On a CPU: weights are read into memory unless they are `mapped`."""
    argv = [sys.executable, "-m", "tests.llama_buffers", model, f"--ctx={ctx}", f"--slots={slots}", f"--cache={cache}"]
    argv += [f"--ubatch={ubatch}", *["--split"] * split, *["--mapped"] * mapped, *["--repack"] * repack]
    return _until_ready(list(map(str, argv)), _READY)


def server_with_card() -> str | None:
    """A llama-server in the PATH that sees a card; None without one."""
    server = shutil.which("llama-server")
    if server is None:
        return None
    seen = subprocess.run([server, "--list-devices"], capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    return server if re.search(r"^ +\w+\d+: ", seen.stdout + seen.stderr, re.MULTILINE) else None


def buffers_of_card(server: str, model: Path, words: Sequence[str]) -> Buffers:
    """Start such a server with these arguments, read its log, end it."""
    argv = [server, "--model", str(model), "--no-warmup", "--no-repack", "--load-mode", "none", "-lv", "5"]
    return _until_ready([*argv, "--port", str(free_port()), *words], "graph splits")


def _until_ready(argv: list[str], ready: str) -> Buffers:
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", cwd=Path(__file__).parents[1],
    )  # fmt: skip
    impatience = threading.Timer(_TIMEOUT, process.kill)
    impatience.start()
    try:
        said: list[str] = []
        for line in process.stdout or ():
            said.append(line)
            if ready in line:
                return Buffers.read("".join(said))
    finally:
        impatience.cancel()
        process.kill()
        process.communicate()
    raise RuntimeError(f"llama-server did not start with {argv}:\n{''.join(said)[-3000:]}")


def main() -> None:
    """Run one until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--ctx", type=int, required=True)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--repack", action="store_true")
    asked = parser.parse_args()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = asked.model, free_port()
    params.n_ctx, params.n_parallel, params.kv_unified = asked.ctx, asked.slots, not asked.split
    params.n_ubatch = asked.ubatch
    kinds = {"f16": xllamacpp.ggml_type.GGML_TYPE_F16, "q8_0": xllamacpp.ggml_type.GGML_TYPE_Q8_0}
    params.cache_type_k = params.cache_type_v = kinds[asked.cache]
    params.fit_params = params.warmup = False
    params.no_extra_bufts = not asked.repack
    if not asked.mapped:
        params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    params.cpuparams.n_threads = 1
    params.verbosity = 5
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
