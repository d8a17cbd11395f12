"""PURE. kvgate's own part of a vLLM's command line, and its KV cache on a CPU.

`engine.spec.argv` joins it with the user's arguments.
"""

from collections.abc import Mapping

from engine.arguments import Arguments
from engine.spec import EngineSpec

GIB = 2**30

WORDS = ("-m", "vllm.entrypoints.openai.api_server")
"""The module rather than the `vllm` command: that command looks for metadata under the name `vllm`, which the CPU build
on PyPI lacks, and dies."""

REFUSED_FLAGS = {
    "--model": "the engine's `model`",
    "--served-model-name": "the model's `name`",
    "--host": "nothing: the engine listens on 127.0.0.1 only, behind kvgate, or `at` an address in a tier",
    "--port": "nothing: kvgate gives each engine a free port",
    "--uds": "nothing: kvgate reaches its engines over TCP",
    "--api-key": "kvgate's own client keys: only kvgate can reach the engine",
    "--ssl-keyfile": "TLS in front of kvgate",
    "--ssl-certfile": "TLS in front of kvgate",
    "--root-path": "nothing: kvgate's routes are the client's",
}
"""Arguments that would hide the engine from kvgate, and what to use instead."""

DEBUG_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "VLLM_LOG_STATS_INTERVAL": "1",
    "CUDA_LAUNCH_BLOCKING": "1",  # a fault shows at its own kernel; every launch waits
    "NCCL_DEBUG": "TRACE",
}
"""vLLM's own advice for an engine that hangs or crashes (docs/usage/troubleshooting.md)."""

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""Environment variable of vLLM on CPUs: GiB of KV cache, a whole number."""
_MOST_KV_GIB = 8


def arguments(spec: EngineSpec) -> tuple[str, ...]:
    """Return kvgate's own arguments."""
    return (
        *("--model", spec.model, "--served-model-name", spec.served_name),
        *("--host", spec.host.strip("[]"), "--port", str(spec.port)),
        "--disable-uvicorn-access-log",  # kvgate writes the access log, and probes every second
    )


def kv_space(spec: EngineSpec, inherited: Mapping[str, str], memory_bytes: int) -> int | None:
    """Return the GiB of KV cache that kvgate chooses for an engine on a CPU; None if the user sets it."""
    said = Arguments.parse(spec.args).has("--kv-cache-memory-bytes", "--gpu-memory-utilization")
    return None if said or KV_SPACE in inherited or KV_SPACE in spec.env else cpu_kv_gib(memory_bytes)


def cpu_kv_gib(memory_bytes: int) -> int:
    """Return the default KV cache on a CPU: an eighth of the machine's memory in GiB, at least 1 and at most 8.

    vLLM's own default is 92 % of all memory, which is seldom free.
    """
    return max(1, min(_MOST_KV_GIB, memory_bytes // (8 * GIB)))
