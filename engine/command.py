"""PURE. An engine as it is described -> the command line and environment that launch it."""

from collections.abc import Mapping
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

_KV_FLAGS = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_MOST_KV_GIB = 8


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


def environment(
    spec: EngineSpec, inherited: Mapping[str, str], *, memory_bytes: int, local_folder: bool
) -> dict[str, str]:
    """Return the whole environment.

    Args:
        spec: The engine.
        inherited: kvgate's own environment.
        memory_bytes: The machine's memory, of which an engine on a CPU takes an eighth for its KV cache, at least 1
            and at most 8 GiB, where nobody says how much. vLLM's own default is 92 % of all memory, which is seldom
            free.
        local_folder: Whether the model is a folder of this machine: then nothing needs the hub, and no start shall
            wait for one that cannot be reached.
    """
    # kvgate's own settings may hold keys, which are none of the engine's business.
    said = {name: value for name, value in inherited.items() if not name.startswith("KVGATE_")} | dict(spec.env)
    ours = {"PYTHONUNBUFFERED": "1"}
    if local_folder:
        ours["HF_HUB_OFFLINE"] = "1"
    if not any(_flag(arg) in _KV_FLAGS for arg in spec.args):
        ours[_KV_SPACE] = str(max(1, min(_MOST_KV_GIB, memory_bytes // (8 * GIB))))
    chosen = {**ours, **said}
    if spec.gpus and "CUDA_VISIBLE_DEVICES" not in spec.env:
        # NVML counts in PCI order; CUDA does so only when told to.
        chosen |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)}
    return chosen


def _flag(arg: str) -> str:
    """The flag as vLLM's parser reads it: `--max_model_len=8k` is `--max-model-len`."""
    return arg.partition("=")[0].replace("_", "-") if arg.startswith("--") else ""
