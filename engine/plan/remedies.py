"""PURE. The table `REMEDIES`: changes that make a model fit, in the order practitioners try them.

A remedy proposes other settings or nothing. It is skipped if one of its flags was given: the user's arguments stay.
Remedies of `Stage.TRIM` cost little and are applied one on top of another. Those of `Stage.RESHAPE` change the model or
the machine and are tried one by one, each with the trims it still needs.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from engine.plan.budget import CONTEXT_BYTES, p99_length, widest
from engine.plan.cards import AWQ, BITSANDBYTES, FP8_KV, FP8_NATIVE, FP8_WEIGHTS, GIB
from engine.plan.remedy import Proposal, Remedy, Situation, Stage
from engine.plan.shape import Kind
from engine.plan.traffic import LOW_HIT_RATE
from engine.sequences import enough
from engine.vllm.command import KV_SPACE

FREE_MEMORY = "measured free memory"
"""The remedy that `kvgate serve` takes by itself (engine/filling.py)."""
_MOST_UTILIZATION = 0.95
"""Never 1.0: later compiled kernels, fragmentation and the error in the graphs' estimate need room."""
_OTHERS_GROW = 512 * 2**20
"""Left to other holders of the card's memory: a desktop, another engine."""
_STEP = 0.01
_SHORTEST = 4096
"""Tokens of the shortest context that is useful for a chat model, if neither traffic nor a flag says."""
_ROUND = 256
_SEQS = (256, 128, 64, 32, 16, 8)
"""Planned sequences for each one in the 99th percentile of concurrency."""
_MOST_OFFLOAD = 0.5
"""Share of the weights. Every step reads offloaded weights over PCIe, so beyond a half a smaller model is faster."""
_GIB_STEP = GIB
_CPU_FP8_HEADS = 32
"""Sizes of heads that an fp8 KV cache on a CPU can have are multiples of this."""


def _free_memory(now: Situation) -> Proposal | None:
    hardware, settings = now.request.hardware, now.settings
    if hardware.cpu or hardware.free_bytes is None or settings.kv_bytes is not None:
        return None
    room = hardware.free_bytes - CONTEXT_BYTES - (_OTHERS_GROW if hardware.processes else 0)
    able = math.floor(room / hardware.total_bytes / _STEP) * _STEP
    if able >= settings.utilization or able <= 0:
        return None
    held = (hardware.total_bytes - hardware.free_bytes) / GIB
    reason = (
        f"{hardware.free_bytes / GIB:.1f} of {hardware.total_bytes / GIB:.1f} GiB are free now, {held:.1f} are held by "
        f"others; vLLM refuses to start where {settings.utilization:.2f} of the card is not free"
    )
    return Proposal(replace(settings, utilization=round(able, 2)), ("--gpu-memory-utilization", f"{able:.2f}"), reason)


def _utilization(now: Situation) -> Proposal | None:
    hardware, settings = now.request.hardware, now.settings
    if hardware.cpu or settings.kv_bytes is not None or settings.utilization >= _MOST_UTILIZATION:
        return None
    if not hardware.measured and "rtx" in hardware.name.lower():
        return None
    room = _MOST_UTILIZATION * hardware.total_bytes + CONTEXT_BYTES
    if hardware.processes or (hardware.free_bytes is not None and hardware.free_bytes < room):
        return None
    gained = (_MOST_UTILIZATION - settings.utilization) * hardware.total_bytes / GIB
    reason = (
        f"{gained:.1f} GiB more of a card that serves nothing else; not 1.0, which leaves no room for fragmentation"
    )
    return Proposal(
        replace(settings, utilization=_MOST_UTILIZATION), ("--gpu-memory-utilization", f"{_MOST_UTILIZATION}"), reason
    )


def _cpu_space(now: Situation) -> Proposal | None:
    if not now.request.hardware.cpu:
        return None
    room = now.budget.requested - now.budget.weights - now.budget.overhead.total.high
    wanted = -(-now.budget.needed // GIB) if now.budget.needed > now.budget.kv.low else room // GIB
    if wanted < 1 or wanted * GIB > room or wanted * GIB == now.settings.kv_bytes:
        return None
    reason = f"{wanted} GiB of KV cache hold one request of {now.settings.max_model_len:,} tokens"
    environ = ((KV_SPACE, str(wanted)),)
    return Proposal(replace(now.settings, kv_bytes=wanted * GIB), (), reason, environ)


def _context(now: Situation) -> Proposal | None:
    settings, budget, traffic = now.settings, now.budget, now.request.traffic
    seen = p99_length(traffic)
    longest = min(budget.longest, settings.max_model_len)
    most = traffic.total_tokens.most.high if traffic and traffic.total_tokens else None
    if seen is not None and most is not None:
        enough = most if most <= longest else seen
        wanted = min(longest, -(-enough // _ROUND) * _ROUND)
        if wanted < seen or wanted >= settings.max_model_len:
            return None
        what = f"the longest request had {most:,}" if enough == most else f"99 of 100 requests had at most {seen:,}"
        source = traffic.source if traffic else ""
        reason = f"{what} tokens ({source}), and {settings.max_model_len:,} do not fit"
    else:
        wanted = longest // _ROUND * _ROUND
        if wanted < min(_SHORTEST, settings.max_model_len) or wanted >= settings.max_model_len:
            return None
        reason = (
            f"one request of {settings.max_model_len:,} tokens needs {budget.needed / GIB:.1f} GiB of KV cache, and "
            f"{max(0, budget.kv.low) / GIB:.1f} are sure; longer ones would be refused. --traffic says what is needed"
        )
    return Proposal(replace(settings, max_model_len=wanted), ("--max-model-len", str(wanted)), reason)


def _sequences(now: Situation) -> Proposal | None:
    settings, traffic = now.settings, now.request.traffic
    if traffic and traffic.concurrency:
        high = traffic.concurrency.p99.high
        wanted = enough(math.ceil(high))
        if wanted >= settings.max_num_seqs:
            return None
        reason = f"99 % of the time at most {high} were at once ({traffic.source})"
    else:
        if now.budget.fits:
            return None
        least = min(_SHORTEST, settings.max_model_len)
        fewer = [count for count in _SEQS if count < settings.max_num_seqs]
        tries = [now.then(replace(settings, max_num_seqs=count)) for count in fewer]
        found = next((after for after in tries if after.budget.fits), None)
        found = found or next((after for after in tries if after.budget.longest >= least), None)
        found = found or (tries[-1] if tries else None)
        if found is None:
            return None
        wanted = found.settings.max_num_seqs
        reason = f"sampling and graphs for {settings.max_num_seqs} at once take what the KV cache needs"
    after = now.then(replace(settings, max_num_seqs=wanted))
    gained = (after.budget.kv.low - now.budget.kv.low) / GIB
    return Proposal(
        after.settings,
        ("--max-num-seqs", str(wanted)),
        f"{reason}; leaves up to {gained:.1f} GiB more for the KV cache",
    )


def _fp8_cache(now: Situation) -> Proposal | None:
    shape, settings, hardware = now.request.shape, now.settings, now.request.hardware
    # v1/attention/backends/cpu_attn.py of vLLM 0.32
    able = hardware.wide and shape.head_size % _CPU_FP8_HEADS == 0 if hardware.cpu else hardware.can(FP8_KV)
    if not able or settings.kv_cache_dtype != "auto" or now.budget.kv.low <= 0:
        return None
    if not any(cache.kind is not Kind.STATE and cache.kv_heads for cache in shape.caches):
        return None
    after = now.then(replace(settings, kv_cache_dtype="fp8"))
    if after.budget.bytes_per_token >= now.budget.bytes_per_token:
        return None
    kib = now.budget.bytes_per_token / 1024
    reason = f"{kib:.0f} KiB of KV cache per token become {after.budget.bytes_per_token / 1024:.0f}; check the answers"
    return Proposal(after.settings, ("--kv-cache-dtype", "fp8"), reason)


def _quantized(scheme: str, least: int, how: str, *, by_flag: bool) -> Callable[[Situation], Proposal | None]:
    def propose(now: Situation) -> Proposal | None:
        request, settings = now.request, now.settings
        if request.shape.quantization is not None or settings.quantized or not request.hardware.can(least):
            return None
        after = now.then(replace(settings, quantized=scheme))
        native = "" if scheme != "fp8" or request.hardware.can(FP8_NATIVE) else "; computed in 16 bits on this card"
        became = f"{now.budget.weights / GIB:.1f} GiB a card become {after.budget.weights / GIB:.1f}"
        reason = f"weights of {became}{native}: {how}"
        words = ("--quantization", scheme) if by_flag else ()
        return Proposal(after.settings, words, reason, checkpoint="" if by_flag else scheme)

    return propose


def _parallel(now: Situation) -> Proposal | None:
    request, settings = now.request, now.settings
    count = request.hardware.count
    if request.hardware.cpu or settings.world >= count:
        return None
    tensor = settings.tensor_parallel
    if not request.arguments.has("--tensor-parallel-size"):
        tensor = widest(request.shape, count)
    pipeline = 1 if request.hardware.nvlink is not False else settings.pipeline_parallel
    pipeline = max(pipeline, min(count // tensor, request.shape.layers))
    if tensor * pipeline <= settings.world:
        return None
    words: tuple[str, ...] = ()
    if tensor != settings.tensor_parallel:
        words = ("--tensor-parallel-size", str(tensor))
    if pipeline > 1:
        words += ("--pipeline-parallel-size", str(pipeline))
    heads = f"{request.shape.attention_heads} heads divide by {tensor}"
    link = "" if request.hardware.nvlink is not False else "; without NVLink each layer waits for PCIe"
    reason = f"{tensor * pipeline} of {count} cards share the weights and the KV cache ({heads}){link}"
    return Proposal(replace(settings, tensor_parallel=tensor, pipeline_parallel=pipeline), words, reason)


def _weights_to_host(now: Situation) -> Proposal | None:
    request, settings = now.request, now.settings
    if request.hardware.cpu:
        return None
    if free := _free_memory(now):  # a trim that comes with it
        now = now.then(free.settings)
    budget = now.budget
    short = budget.short - max(0, budget.needed - min(budget.needed, _least_need(now)))
    moved = -(-max(short, GIB) // _GIB_STEP) * _GIB_STEP
    host = moved * settings.world
    if moved > _MOST_OFFLOAD * budget.weights or (request.host_bytes is not None and host > request.host_bytes):
        return None
    gib = moved // GIB
    reason = (
        f"{gib} GiB of weights a card lie in host memory ({host // GIB} GiB of it) and cross PCIe in every step: slow, "
        "a last resort"
    )
    return Proposal(replace(settings, cpu_offload_bytes=moved), ("--cpu-offload-gb", str(gib)), reason)


def _least_need(now: Situation) -> int:
    """KV bytes of the shortest context worth serving."""
    least = p99_length(now.request.traffic) or _SHORTEST
    shorter = now.then(replace(now.settings, max_model_len=min(least, now.settings.max_model_len)))
    return now.budget.needed if now.request.arguments.has("--max-model-len") else shorter.budget.needed


def _cache_to_host(now: Situation) -> Proposal | None:
    request, budget = now.request, now.budget
    traffic = request.traffic
    if not budget.fits or request.hardware.cpu or traffic is None or (traffic.hit_rate or 0) < LOW_HIT_RATE:
        return None
    if not traffic.concurrency or not traffic.total_tokens:
        return None
    wanted = traffic.concurrency.p99.high * traffic.total_tokens.p99.high
    if wanted <= budget.tokens.low:
        return None
    size = math.ceil((wanted - budget.tokens.low) * budget.bytes_per_token * now.settings.world / GIB)
    if request.host_bytes is not None and size * GIB > request.host_bytes:
        return None
    reason = (
        f"{traffic.hit_rate or 0:.0%} of prompt tokens came from the prefix cache, which holds less than is at once: "
        f"{size} GiB of host memory keep what it drops"
    )
    return Proposal(now.settings, ("--kv-offloading-size", str(size)), reason)


_AWQ = "look for a checkpoint with `quant_method: awq` (the model's name with -AWQ); vLLM cannot make one while loading"
_GPTQ = "look for a checkpoint with `quant_method: gptq` (-GPTQ-Int4)"
# Out of vLLM's core since 0.28 (vllm-project/vllm#43529).
_BITSANDBYTES = "of this checkpoint, while loading; slower than AWQ, and from vLLM 0.28 on needs vllm-bnb-plugin"

_UTILIZATION = ("--gpu-memory-utilization", "--kv-cache-memory-bytes")
_SIXTEEN_BITS = "weights of 16 bits on a card that has kernels for it"

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        FREE_MEMORY, Stage.TRIM, _UTILIZATION,
        "the cards were read, and others hold so much that the wanted share is not free",
        _free_memory, always=True,
    ),
    Remedy(
        "KV cache of a CPU", Stage.TRIM, ("--kv-cache-memory-bytes",),
        "a CPU, where the KV cache is too small for one request, or does not fit beside the weights",
        _cpu_space,
    ),
    Remedy(
        "utilization", Stage.TRIM, _UTILIZATION,
        "it does not fit, and the card is nobody else's: one that was read, or of a kind without a display",
        _utilization,
    ),
    Remedy(
        "context", Stage.TRIM, ("--max-model-len",),
        "the length does not fit, and a shorter one does that the traffic, or a chat, can live with",
        _context,
    ),
    Remedy(
        "sequences", Stage.TRIM, ("--max-num-seqs",),
        "more sequences are set aside for than are ever at once, or than the card has room for",
        _sequences, always=True,
    ),
    Remedy(
        "fp8 KV cache", Stage.TRIM, ("--kv-cache-dtype",),
        "a card, or a CPU with AVX-512, with a kernel for it; a cache of 16 bits, and room that it would make enough",
        _fp8_cache,
    ),
    Remedy(
        "fp8 weights", Stage.RESHAPE, ("--quantization",),
        _SIXTEEN_BITS,
        _quantized("fp8", FP8_WEIGHTS, "of this checkpoint, while loading", by_flag=True),
    ),
    Remedy(
        "AWQ weights", Stage.RESHAPE, ("--quantization",),
        _SIXTEEN_BITS,
        _quantized("awq", AWQ, _AWQ, by_flag=False),
    ),
    Remedy(
        "GPTQ weights", Stage.RESHAPE, ("--quantization",),
        _SIXTEEN_BITS,
        _quantized("gptq", AWQ, _GPTQ, by_flag=False),
    ),
    Remedy(
        "bitsandbytes weights", Stage.RESHAPE, ("--quantization",),
        _SIXTEEN_BITS,
        _quantized("bitsandbytes", BITSANDBYTES, _BITSANDBYTES, by_flag=True),
    ),
    Remedy(
        "tensor and pipeline parallelism", Stage.RESHAPE, ("--pipeline-parallel-size",),
        "more cards than are used; heads decide how many share layers, the rest are stages",
        _parallel,
    ),
    Remedy(
        "weights in host memory", Stage.RESHAPE, ("--cpu-offload-gb",),
        "less than half of the weights is too much, and the host has room for it",
        _weights_to_host,
    ),
    Remedy(
        "KV cache in host memory", Stage.TRIM, ("--kv-offloading-size", "--kv-transfer-config"),
        "prompts share much (a hit rate from 30 %), and the cache holds less than what is at once",
        _cache_to_host, always=True,
    ),
)  # fmt: skip
"""In the order they are tried."""
