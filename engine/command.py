"""PURE. The command line and environment that launch an engine, built from its description."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine.arguments import Arguments

GIB = 2**30

# Arguments that would hide the engine from kvgate, and what to use instead.
REFUSED_FLAGS = {
    "--model": "the engine's `model`",
    "--served-model-name": "the model's `name`",
    "--host": "nothing: the engine listens on 127.0.0.1 only, behind kvgate",
    "--port": "nothing: kvgate gives each engine a free port",
    "--uds": "nothing: kvgate reaches its engines over TCP",
    "--api-key": "kvgate's own client keys: only kvgate can reach the engine",
    "--ssl-keyfile": "TLS in front of kvgate",
    "--ssl-certfile": "TLS in front of kvgate",
    "--root-path": "nothing: kvgate's routes are the client's",
}

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


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One vLLM process to launch.

    Attributes:
        name: kvgate's name for it, unique among its engines.
        model: Model folder or hub id.
        served_name: The name clients use.
        port: Port of 127.0.0.1 it listens on. A restart keeps it.
        python: An interpreter that has vLLM.
        gpus: Value of `CUDA_VISIBLE_DEVICES`: NVML indices or UUIDs. Empty on machines without GPUs, and for an engine
            that sees them all.
        args: Further arguments, as on vLLM's command line. They come last and override kvgate's.
        env: Further environment. It overrides kvgate's and the one kvgate was started with.
    """

    name: str
    model: str
    served_name: str
    port: int
    python: Path
    gpus: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for flag in sorted(self.arguments.flags & REFUSED_FLAGS.keys()):
            raise ValueError(f"engine argument {flag} is set by kvgate; use {REFUSED_FLAGS[flag]}")

    @property
    def arguments(self) -> Arguments:
        """The further arguments, parsed."""
        return Arguments.parse(self.args)

    @property
    def address(self) -> str:
        """Host and port of the engine."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Base URL of the engine."""
        return f"http://{self.address}"


def argv(spec: EngineSpec) -> tuple[str, ...]:
    """Return the command line.

    It starts the module rather than the `vllm` command: that command looks for metadata under the name `vllm`, which
    the CPU build on PyPI lacks, and dies.
    """
    return (
        *(str(spec.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", spec.model, "--served-model-name", spec.served_name),
        *("--host", "127.0.0.1", "--port", str(spec.port)),
        "--disable-uvicorn-access-log",  # kvgate writes the access log, and probes every second
        *spec.args,
    )


def kv_space(spec: EngineSpec, inherited: Mapping[str, str], memory_bytes: int) -> int | None:
    """Return the GiB of KV cache that kvgate chooses for an engine on a CPU; None if the user sets it."""
    said = spec.arguments.has("--kv-cache-memory-bytes", "--gpu-memory-utilization")
    return None if said or KV_SPACE in inherited or KV_SPACE in spec.env else cpu_kv_gib(memory_bytes)


def cpu_kv_gib(memory_bytes: int) -> int:
    """Return the default KV cache on a CPU: an eighth of the machine's memory in GiB, at least 1 and at most 8.

    vLLM's own default is 92 % of all memory, which is seldom free.
    """
    return max(1, min(_MOST_KV_GIB, memory_bytes // (8 * GIB)))


def environment(spec: EngineSpec, inherited: Mapping[str, str], *, local_folder: bool) -> dict[str, str]:
    """Return the whole environment.

    Args:
        spec: The engine.
        inherited: kvgate's own environment.
        local_folder: Whether the model is a folder of this machine. The start then needs no hub and must not wait for
            one that cannot be reached.
    """
    # kvgate's own settings may hold keys, which the engine must not see.
    said = {name: value for name, value in inherited.items() if not name.startswith("KVGATE_")} | dict(spec.env)
    ours = {"PYTHONUNBUFFERED": "1"}
    if local_folder:
        ours["HF_HUB_OFFLINE"] = "1"
    chosen = {**ours, **said}
    if spec.gpus and "CUDA_VISIBLE_DEVICES" not in spec.env:
        # NVML counts in PCI order; CUDA does so only on request.
        chosen |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}
    return chosen
