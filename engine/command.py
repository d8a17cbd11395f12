"""PURE. An engine as it is described -> the command line and environment that launch it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIB = 2**30

# Arguments that would pull the engine away from where kvgate looks for it, and what to use instead.
RESERVED = {
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
    "CUDA_LAUNCH_BLOCKING": "1",  # a fault shows at the kernel that made it; every launch waits
    "NCCL_DEBUG": "TRACE",
}
"""What vLLM's documentation advises when an engine hangs or crashes (docs/usage/troubleshooting.md)."""

_KV_FLAGS = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
"""Environment variable of vLLM on CPUs: GiB of KV cache, a whole number."""
_MOST_KV_GIB = 8
# engine/arg_utils.py and utils/argparse_utils.py of vLLM 0.32; those that matter here.
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-cc": "--compilation-config",
}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One vLLM process to launch.

    Attributes:
        name: What kvgate calls it, unique among its engines.
        model: Model folder or hub id.
        served_name: The name clients use.
        port: Port of 127.0.0.1 it listens on; the same after a restart.
        python: Interpreter that has vLLM.
        gpus: What `CUDA_VISIBLE_DEVICES` shall hold: NVML indices or UUIDs. Empty on machines without GPUs, or to let
            it see them all.
        args: Further arguments, as on vLLM's command line. They come last, so they win over kvgate's.
        env: Further environment; it wins over kvgate's and over what kvgate itself was started with.
    """

    name: str
    model: str
    served_name: str
    port: int
    python: Path
    gpus: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for flag in map(_flag, self.args):
            if flag in RESERVED:
                raise ValueError(f"engine argument {flag} is set by kvgate; use {RESERVED[flag]}")

    @property
    def url(self) -> str:
        """Base URL of the engine."""
        return f"http://127.0.0.1:{self.port}"


def argv(spec: EngineSpec) -> tuple[str, ...]:
    """Return the command line.

    The module is started rather than the `vllm` command: the CPU build on PyPI carries no metadata under the name
    `vllm`, and its command dies looking for it.
    """
    return (
        *(str(spec.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", spec.model, "--served-model-name", spec.served_name),
        *("--host", "127.0.0.1", "--port", str(spec.port)),
        "--disable-uvicorn-access-log",  # kvgate writes the access log, and probes every second
        *spec.args,
    )


def kv_space(spec: EngineSpec, inherited: Mapping[str, str], memory_bytes: int) -> int | None:
    """Return the GiB of KV cache that kvgate chooses for an engine on a CPU; None where somebody says how much."""
    said = any(_flag(arg) in _KV_FLAGS for arg in spec.args) or KV_SPACE in inherited or KV_SPACE in spec.env
    return None if said else cpu_kv_gib(memory_bytes)


def cpu_kv_gib(memory_bytes: int) -> int:
    """Return an eighth of a machine's memory in GiB, at least 1 and at most 8: its KV cache where nobody says how much.

    vLLM's own default is 92 % of all memory, which is seldom free.
    """
    return max(1, min(_MOST_KV_GIB, memory_bytes // (8 * GIB)))


def environment(
    spec: EngineSpec, inherited: Mapping[str, str], *, memory_bytes: int, local_folder: bool
) -> dict[str, str]:
    """Return the whole environment.

    Args:
        spec: The engine.
        inherited: kvgate's own environment.
        memory_bytes: The machine's memory (see `kv_space`).
        local_folder: Whether the model is a folder of this machine: then nothing needs the hub, and no start shall
            wait for one that cannot be reached.
    """
    # kvgate's own settings may hold keys, which are none of the engine's business.
    said = {name: value for name, value in inherited.items() if not name.startswith("KVGATE_")} | dict(spec.env)
    ours = {"PYTHONUNBUFFERED": "1"}
    if local_folder:
        ours["HF_HUB_OFFLINE"] = "1"
    if (chosen_space := kv_space(spec, inherited, memory_bytes)) is not None:
        ours[KV_SPACE] = str(chosen_space)
    chosen = {**ours, **said}
    if spec.gpus and "CUDA_VISIBLE_DEVICES" not in spec.env:
        # NVML counts in PCI order; CUDA does so only when told to.
        chosen |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}
    return chosen


def flags_of(args: Sequence[str]) -> frozenset[str]:
    """The flags in an argument list, as vLLM's parser reads them."""
    return frozenset(filter(None, map(_flag, args)))


def value_of(args: Sequence[str], flag: str) -> str | None:
    """The value of a flag in an argument list, the last one where it is repeated; None where it has none."""
    value = None
    for position, argument in enumerate(args):
        if _flag(argument) == flag:
            _, joined, inline = argument.partition("=")
            value = inline if joined else next(iter(args[position + 1 : position + 2]), None)
    return value


def _flag(arg: str) -> str:
    """The flag as vLLM's parser reads it: `--max_model_len=8k` is `--max-model-len`, `-tp` `--tensor-parallel-size`."""
    name = arg.partition("=")[0].partition(".")[0]
    if name.startswith("--"):
        return name.replace("_", "-")
    return "--optimization-level" if name.startswith("-O") else _SHORT.get(name, "")
