"""PURE. The check that one more vLLM fits beside the running ones, so that it is ready before an old one stops."""

import math
from collections.abc import Mapping, Sequence

from engine.arguments import Arguments
from engine.filling import gpus_needed, share_of
from engine.gpu import Gpu
from engine.gpu_placement import devices
from engine.spec import EngineSpec
from engine.vllm.command import GIB, KV_SPACE

CPU_PROCESSES = 2 * GIB
"""Memory of an engine on a CPU beside its weights and KV cache. API server, engine core and worker take half a GiB each
(measured: 1.5 GiB in all for a model of 5 MB); the rest is work space."""

_FULL = ("float32", "float")


def shortage(
    spec: EngineSpec,
    environ: Mapping[str, str],
    *,
    gpus: Sequence[Gpu],
    host_free: int,
    weights: int | None,
) -> str | None:
    """Return why an engine does not fit beside what runs now, as a clause; None if it does.

    On GPUs this is the test that vLLM makes at its start: the share of each card that it may use must be free
    (v1/worker/utils.py, `request_memory`, 0.32). On a CPU it is the sum of all the memory it will hold.

    Args:
        spec: The engine.
        environ: The environment it is started from, which its own overrides.
        gpus: The cards of this machine, measured now.
        host_free: Free memory of this machine, or of the container, in bytes.
        weights: Bytes of the model's weights; None if unknown.
    """
    by_index = {str(gpu.index): gpu for gpu in gpus}
    seen = devices(spec, [gpu.index for gpu in gpus], environ)
    if not seen:
        return _on_cpu(spec, environ, host_free, weights)
    given = Arguments.parse(spec.args)
    share = share_of(given)
    for device in seen[: gpus_needed(given)]:
        gpu = by_index.get(device)
        if gpu is None:
            return f"nothing is known of the memory of GPU {device}"
        wanted = math.ceil(gpu.total_bytes * share)
        if gpu.free_bytes < wanted:
            return f"GPU {device} has {_gib(gpu.free_bytes)} free, and a second engine takes {_gib(wanted)} of it"
    return None


def _on_cpu(spec: EngineSpec, environ: Mapping[str, str], host_free: int, weights: int | None) -> str | None:
    if weights is None:
        return "the size of its weights is not known"
    given = Arguments.parse(spec.args)
    space, cache = {**environ, **spec.env}.get(KV_SPACE, ""), given.integer("--kv-cache-memory-bytes")
    if cache is None and space.isdecimal() and not given.has("--kv-cache-memory-bytes", "--config"):
        cache = int(space) * GIB
    if not cache:
        return "the size of its KV cache is not known"  # it may be a share of the machine
    # Weights are stored in 16 bits, except in old models, which are small.
    held = weights * 2 if given.text("--dtype") in _FULL else weights
    wanted = held + cache + CPU_PROCESSES
    if host_free < wanted:
        return f"the machine has {_gib(host_free)} of memory to give, and a second engine takes {_gib(wanted)}"
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
