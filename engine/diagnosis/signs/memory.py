"""PURE. Signs of memory: on the card, for the KV cache, on the host.

Texts: vLLM 0.32 (`v1/core/kv_cache_utils.py`, `v1/worker/utils.py`, `v1/worker/gpu_model_runner.py`,
`v1/worker/cpu_worker.py`), the older forms of vllm-project/vllm issues 2418 and 12030, and torch's allocator (2.1 to
2.13).
"""

import math
from collections.abc import Iterator
from functools import partial

from engine.diagnosis.sign import Facts, Kind, Sign, Weight
from engine.plan.budget import UTILIZATION
from engine.sequences import fewer

_sign = partial(Sign, kind=Kind.MEMORY)
_OTHERS = 0.02
"""Smallest share of a GPU in others' hands that is worth reporting."""
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_MORE_KV = (
    "or give the KV cache more memory: a higher --gpu-memory-utilization (never 1.0), --kv-cache-dtype fp8, more GPUs "
    "(--tensor-parallel-size), on a CPU a higher VLLM_CPU_KVCACHE_SPACE (GiB)."
)
_LESS_AT_WORK = "--max-num-seqs, --max-num-batched-tokens or --gpu-memory-utilization"

_SIZE = r"[\d.]+ (?:bytes|[KMG]iB)"
_OUT_OF_MEMORY = (
    r"(?:(?:CUDA|HIP) (?:out of memory\.|(?:driver )?error: (?:out of memory|CUBLAS_STATUS_ALLOC_FAILED)))"
    rf"(?: Tried to allocate (?P<tried>{_SIZE}))?"
    rf"(?:\.? GPU (?P<gpu>\d+) has a total capac\w+ of (?P<total>{_SIZE}) of which (?P<free>{_SIZE}) is free)?"
    rf"(?: \(GPU (?P<old_gpu>\d+); (?P<old_total>{_SIZE}) total capacity;.*? (?P<old_free>{_SIZE}) free)?"
    rf"(?:.*?this process has (?P<own>{_SIZE}) memory in use)?"
    rf"(?:.*? (?P<reserved>{_SIZE}) is reserved by PyTorch but unallocated)?"
)


def _fitting_share(facts: Facts) -> Facts:
    """The utilization that the free memory allows, in hundredths, and the memory others hold."""
    share = math.floor(float(facts["free"]) / float(facts["total"]) * 100) / 100
    taken = float(facts["total"]) - float(facts["free"])
    return {"fitting": f"{share:.2f}", "taken": f"{taken:.2f}"}


def _held_by_others(facts: Facts) -> Facts:
    """The same for a GPU. vLLM names it since 0.11."""
    return {**_fitting_share(facts), "device": facts["device"] or "cuda"}


def _fitting_space(facts: Facts) -> Facts:
    """Whole GiB of KV cache that fit the free memory. The setting takes whole ones, and 0 would mean a share of all."""
    return {"fitting": str(max(1, math.ceil(float(facts["free"])) - 1))}


def _half(facts: Facts) -> Facts:
    return {"fewer": str(fewer(int(facts["requests"])))}


def _sizes(facts: Facts) -> Facts:
    """The allocator's figures in one clause, and a remedy for fragmentation if there is enough of it."""
    gpu, total, free = (facts[name] or facts[f"old_{name}"] for name in ("gpu", "total", "free"))
    tried, reserved = facts["tried"], facts["reserved"]
    clause = f": it asked for {tried}" if tried else ""
    if free:
        clause += f", and {free} of {total} were free on GPU {gpu}"
    crumbs = ""
    if tried and reserved and _bytes(reserved) >= _bytes(tried):
        crumbs = f" {reserved} lie reserved in crumbs: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    figures = " ".join(_figures(tried, gpu, total, free, facts["own"]))
    return {
        "gpu": gpu,
        "total": total,
        "free": free,
        "sizes": clause,
        "figures": f" {figures}" if figures else "",
        "crumbs": crumbs,
    }


def _figures(tried: str, gpu: str, total: str, free: str, own: str) -> Iterator[str]:
    """The missing memory, and who holds the rest of the GPU. Sizes in the allocator's words, empty if unknown."""
    if not free:
        return
    if tried and (short := _bytes(tried) - _bytes(free)) > 0:
        yield f"At least {_said(short)} more must be free on GPU {gpu}."
    if own:
        others = _bytes(total) - _bytes(free) - _bytes(own)
        if others >= _OTHERS * _bytes(total):
            fitting = math.floor((1 - others / _bytes(total)) * 100) / 100
            yield (
                f"Others hold {_said(others)} of its {total}, this process {own}: while they do, "
                f"--gpu-memory-utilization may be {fitting:.2f} at most."
            )
        else:
            yield f"This process holds {own} of its {total}, nobody else does."


def _less(facts: Facts) -> Facts:
    """The same, and by how much the engine's share of the GPU must fall."""
    said = dict(_sizes(facts))
    if said["free"] and facts["tried"] and (short := _bytes(facts["tried"]) - _bytes(said["free"])) > 0:
        points = math.ceil(short / _bytes(said["total"]) * 100) / 100
        said["figures"] += (
            f" That is {points:.2f} of --gpu-memory-utilization, {UTILIZATION - points:.2f} where it was the default "
            f"of {UTILIZATION}."
        )
    return said


def _loading(facts: Facts) -> Facts:
    return {**_sizes(facts), "loading": "yes"}


def _bytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * _UNITS[unit]


def _said(size: float) -> str:
    gib, mib = size / 2**30, size / 2**20
    return f"{gib:.2f} GiB" if gib >= 1 else f"{max(mib, 0.01):.2f} MiB"


_oom = partial(_sign, pattern=_OUT_OF_MEMORY, derive=_sizes)
"""A failed allocation. The stack tells during which work."""

SIGNS = (
    _sign(
        "context over the KV cache",
        r"max seq len \((?P<asked>\d+)\).*?\((?P<needed>[\d.]+) Gi?B KV cache is needed.*?"
        r"available KV cache memory \((?P<there>[\d.]+) Gi?B\).*?estimated maximum model length is (?P<fits>\d+)",
        "One request of {asked} tokens does not fit: it needs {needed} GiB of KV cache, and {there} GiB are there.",
        "Give --max-model-len {fits}, which fits, " + _MORE_KV,
    ),
    _sign(
        "context over the KV cache, no length fits",
        r"max seq len \((?P<asked>\d+)\).*?\((?P<needed>[\d.]+) Gi?B KV cache is needed.*?"
        r"available KV cache memory \((?P<there>[\d.]+) Gi?B\)",
        "One request of {asked} tokens does not fit: it needs {needed} GiB of KV cache, and {there} GiB are there.",
        "Lower --max-model-len, " + _MORE_KV,
    ),
    _sign(
        "context over the KV cache, in tokens",
        r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((?P<fits>\d+)\)",
        "One request of {asked} tokens does not fit into a KV cache of {fits}.",
        "Give --max-model-len {fits}, which fits, " + _MORE_KV,
    ),
    _sign(
        "no memory for cache blocks",
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len: not enough",
        "Nothing is left for the KV cache after the weights and the work space.",
        "Use a smaller or a quantized model, lower --max-num-seqs and --max-num-batched-tokens, " + _MORE_KV,
    ),
    _sign(
        "GPU memory taken by others",
        r"Free memory on device ?(?P<device>[\w:]*) ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?is less than "
        r"(?:desired GPU memory utilization|the engine's budget after excluding external process's weights) "
        r"\((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "Of the GPU's {total} GiB, {free} are free; --gpu-memory-utilization {share} asks for {wanted}. {taken} GiB "
        "are in use.",
        "Stop what else runs on the GPU, or give --gpu-memory-utilization {fitting}.",
        derive=_held_by_others,
    ),
    _sign(
        "host memory under the wanted share",
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*?less than "
        r"desired CPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "Of the machine's {total} GiB, {free} are free; the KV cache was told to take a share of {share}: {wanted}.",
        "Set VLLM_CPU_KVCACHE_SPACE (whole GiB), give --gpu-memory-utilization {fitting}, which means main memory "
        "here, or stop what else uses memory.",
        derive=_fitting_share,
    ),
    _sign(
        "host memory under the KV cache",
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache "
        r"allocation is less than requested memory for kv \((?P<wanted>[\d.]+)",
        "The KV cache was told to take {wanted} GiB, and {free} of the machine's {total} GiB are free.",
        "Set VLLM_CPU_KVCACHE_SPACE to at most {fitting} (GiB), or stop what else uses memory.",
        derive=_fitting_space,
    ),
    _sign(
        "out of memory warming up",
        r"CUDA out of memory occurred when warming up (?P<what>\w+).*? with (?P<requests>\d+) dummy requests",
        "The GPU ran out of memory while warming up the {what} with {requests} sequences at once.",
        "Give --max-num-seqs {fewer}, or a lower --gpu-memory-utilization.",
        derive=_half,
    ),
    _oom(
        name="out of memory loading, as vLLM says",
        pattern=rf"Failed to load model - not enough GPU memory(?:.*?{_OUT_OF_MEMORY})?",
        cause="The GPU cannot hold the weights{sizes}.",
        remedy="Use a quantized or a smaller model, more GPUs (--tensor-parallel-size), or stop what else runs on the "
        "GPU.{figures}{crumbs}",
        derive=_loading,
    ),
    _oom(
        name="out of memory loading",
        within=r"in (?:load_model|load_weights|initialize_model|process_weights_after_loading)\b",
        cause="The GPU cannot hold the weights{sizes}.",
        remedy="Use a quantized or a smaller model, more GPUs (--tensor-parallel-size), or stop what else runs on the "
        "GPU.{figures}{crumbs}",
        derive=_loading,
    ),
    _oom(
        name="out of memory profiling",
        within=r"in (?:profile_run|determine_available_memory|determine_num_available_blocks)\b",
        cause="The GPU holds the weights, but not the work space of a full batch{sizes}.",
        remedy="Lower --max-num-batched-tokens or --max-num-seqs, or use more GPUs (--tensor-parallel-size)."
        "{figures}{crumbs}",
    ),
    _oom(
        name="out of memory capturing graphs",
        within=r"in (?:capture_model|_capture_cudagraphs|capture)\b",
        cause="The KV cache left no room for CUDA graphs{sizes}.",
        remedy="Lower --gpu-memory-utilization or --max-num-seqs, or give --enforce-eager.{figures}{crumbs}",
        derive=_less,
    ),
    _oom(
        name="out of memory allocating the KV cache",
        within=r"in (?:initialize_kv_cache|_allocate_kv_cache_tensors|initialize_from_config)\b",
        cause="The GPU had less memory left for the KV cache than was measured a moment before{sizes}.",
        remedy="Stop what else runs on the GPU, or lower --gpu-memory-utilization.{figures}{crumbs}",
        derive=_less,
    ),
    _oom(
        name="out of memory at work",
        within=r"in (?:execute_model|step_with_batch_queue|sample_tokens)\b",
        cause="The GPU ran out of memory while serving{sizes}.",
        remedy="Lower " + _LESS_AT_WORK + ": the card is too full for its peaks.{figures}{crumbs}",
        permanent=False,
        derive=_less,
    ),
    _oom(
        name="GPU out of memory",
        cause="The GPU ran out of memory{sizes}.",
        remedy="Use a smaller or a quantized model, more GPUs (--tensor-parallel-size), or lower "
        + _LESS_AT_WORK
        + ".{figures}{crumbs}",
        weight=Weight.EFFECT,
        permanent=False,
    ),
    _sign(
        "host out of memory",
        r"^MemoryError\b|DefaultCPUAllocator: (?:can't|not enough memory)|Cannot allocate memory",
        "The machine ran out of main memory.",
        "Use a smaller model, lower VLLM_CPU_KVCACHE_SPACE or --kv-offloading-size, or stop what else uses memory.",
    ),
)
