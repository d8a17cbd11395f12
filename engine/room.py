"""PURE. Whether one more engine has room beside what runs, so that it can be ready before an old one goes."""

import math
from collections.abc import Mapping, Sequence

from engine.command import GIB, KV_SPACE, flags_of, value_of
from engine.filling import gpus_needed, share_of
from engine.gpu import Gpu

CPU_PROCESSES = 2 * GIB
"""What an engine on a CPU takes beside its weights and its KV cache: API server, engine core and worker are half a
GiB each (measured: 1.5 GiB in all for a model of 5 MB), and the rest is work space."""

_FULL = ("float32", "float")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def shortage(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    gpus: Sequence[Gpu],
    host_free: int,
    weights: int | None,
) -> str | None:
    """Return why an engine does not fit beside what runs now, in a clause; None where it does.

    On GPUs it is vLLM's own test at its start that is made here before: the share of each card that it may use must be
    free (v1/worker/utils.py, `request_memory`, 0.32). On a CPU it is the sum of what it will hold.

    Args:
        argv: The engine's command line.
        env: Its environment.
        gpus: The cards of this machine, as measured now.
        host_free: Bytes of memory that this machine, or the container, has to give.
        weights: Bytes of the model's weights; None where they are not known.
    """
    if not gpus:
        return _on_cpu(argv, env, host_free, weights)
    visible = [part.strip() for part in env[_VISIBLE].split(",")] if env.get(_VISIBLE) else [str(g.index) for g in gpus]
    by_index = {str(gpu.index): gpu for gpu in gpus}
    share = share_of(argv)
    for device in visible[: gpus_needed(argv)]:
        gpu = by_index.get(device)
        if gpu is None:
            return f"nothing is known of the memory of GPU {device}"
        wanted = math.ceil(gpu.total_bytes * share)
        if gpu.free_bytes < wanted:
            return f"GPU {device} has {_gib(gpu.free_bytes)} free, and a second engine takes {_gib(wanted)} of it"
    return None


def _on_cpu(argv: Sequence[str], env: Mapping[str, str], host_free: int, weights: int | None) -> str | None:
    if weights is None:
        return "the size of its weights is not known"
    space, given = env.get(KV_SPACE, ""), value_of(argv, "--kv-cache-memory-bytes")
    if given is not None and given.isdecimal():
        cache = int(given)
    elif space.isdecimal() and int(space) and not {"--kv-cache-memory-bytes", "--config"} & flags_of(argv):
        cache = int(space) * GIB
    else:
        return "the size of its KV cache is not known"  # a share of the machine, for one
    # Weights are stored in 16 bits, but for old models, which are small.
    held = weights * 2 if value_of(argv, "--dtype") in _FULL else weights
    wanted = held + cache + CPU_PROCESSES
    if host_free < wanted:
        return f"the machine has {_gib(host_free)} of memory to give, and a second engine takes {_gib(wanted)}"
    return None


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
