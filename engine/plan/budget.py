"""PURE. The memory budget of one rank under given settings: weights, KV cache and the rest, and what the cache holds.

The budget is vLLM's own (0.32, v1/worker/gpu_worker.py). The KV cache gets the card's memory times
`--gpu-memory-utilization`, less the weights, less a dummy run's memory. A start fails if one request of
`max_model_len` does not fit. A figure that depends on the card is a range, and a plan must hold at its worse end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.arguments import ArgumentError, Arguments
from engine.plan.cards import GIB, Hardware
from engine.plan.kv import Device, KvLayout, TokenRange
from engine.plan.overhead import Overhead, Run, Span, cpu_overhead, overhead
from engine.plan.pages import DTYPE_BYTES, is_known_kv_dtype, resolved_kv_dtype
from engine.plan.shape import ModelShape
from engine.plan.traffic import Traffic
from engine.plan.weights import Weights
from engine.vllm.command import KV_SPACE, cpu_kv_gib

UTILIZATION = 0.92
"""vLLM's default of `--gpu-memory-utilization` since 0.20 (config/cache.py)."""

_LARGE, _HUGE = 70 * GIB, 160 * GIB
_BATCHES = {"huge": (16384, 1024), "large": (8192, 1024), "small": (2048, 256), "cpu": (2048, 128)}
"""A server's defaults of `max_num_batched_tokens` and `max_num_seqs` by the card's memory (engine/arg_utils.py,
`get_batch_defaults`). An A100 counts as small."""


class RefusedError(Exception):
    """vLLM would refuse these arguments with any amount of memory. The message says which, and what would work."""


@dataclass(frozen=True, slots=True)
class Request:
    """The question a plan answers.

    Attributes:
        model: the model, as a person named it.
        shape: of the model.
        weights: of its checkpoint.
        hardware: the hardware to run on.
        arguments: the given vLLM arguments; a plan never changes them.
        traffic: the real requests' figures; None if unknown.
        all_cards: whether one engine uses all cards, as `--gpus` says.
        host_bytes: free memory of the host, for offloads; None if unknown.
        environ: decides on a CPU: `VLLM_CPU_KVCACHE_SPACE`.
    """

    model: str
    shape: ModelShape
    weights: Weights
    hardware: Hardware
    arguments: Arguments
    traffic: Traffic | None = None
    all_cards: bool = False
    host_bytes: int | None = None
    environ: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """vLLM's settings, named after its flags. `quantized` is a scheme of weights; offloads are bytes per rank."""

    tensor_parallel: int
    pipeline_parallel: int
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: str = "auto"
    quantized: str | None = None
    eager: bool = False
    block_size: int | None = None
    dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    kv_bytes: int | None = None
    cpu_offload_bytes: int = 0

    @property
    def world(self) -> int:
        """Number of cards one engine uses."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class Budget:
    """One rank's memory, in bytes, and what its KV cache holds. Of several ranks, the fullest.

    Attributes:
        total: of the card.
        requested: the part of it that vLLM may use.
        weights: once loaded.
        overhead: everything else beside the KV cache.
        kv: the rest, for the KV cache; below zero if there is none.
        bytes_per_token: of KV cache, for each further token of a request.
        tokens: of KV cache, as vLLM would log it.
        needed: KV cache of one request of `max_model_len`.
        longest: the longest `max_model_len` that surely starts.
        at_full: requests of `max_model_len` at once, at least and at most.
        at_p99: requests of the traffic's p99 length at once; None without traffic.
        short: bytes missing; 0 where it fits.
    """

    total: int
    requested: int
    weights: int
    overhead: Overhead
    kv: Span
    bytes_per_token: float
    tokens: TokenRange
    needed: int
    longest: int
    at_full: tuple[float, float]
    at_p99: tuple[float, float] | None
    short: int

    @property
    def fits(self) -> bool:
        """Whether vLLM surely starts."""
        return self.short <= 0

    @property
    def may_fit(self) -> bool:
        """Whether it starts if the overhead is at the low end of its range."""
        return self.kv.high >= self.needed


def defaults(request: Request) -> Settings:
    """The settings vLLM would choose, given these arguments.

    Raises:
        RefusedError: vLLM would refuse it.
        engine.arguments.ArgumentError: A value cannot be read.
    """
    given, shape, hardware = request.arguments, request.shape, request.hardware
    given.check()
    batched, seqs = _BATCHES[_size_of(hardware)]
    tensor = given.integer("--tensor-parallel-size")
    pipeline = given.integer("--pipeline-parallel-size") or 1
    if tensor is None:
        tensor = widest(shape, hardware.count // pipeline) if request.all_cards and not hardware.cpu else 1
    if tensor < 1 or pipeline < 1:
        raise RefusedError(f"{tensor} x {pipeline} ranks: parallel sizes begin with 1")
    _check_parallel(request, tensor, pipeline)
    length = given.integer("--max-model-len")
    if length is not None and length > shape.max_positions and not given.has("--hf-overrides"):
        raise RefusedError(
            f"--max-model-len {length:,} is more than the model was made for ({shape.max_positions:,} tokens)"
        )
    settings = Settings(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        utilization=given.fraction("--gpu-memory-utilization") or UTILIZATION,
        max_model_len=length if length is not None and length > 0 else shape.default_length,
        max_num_seqs=given.integer("--max-num-seqs") or seqs,
        max_num_batched_tokens=given.integer("--max-num-batched-tokens") or batched,
        kv_cache_dtype=given.text("--kv-cache-dtype") or "auto",
        quantized={"fp8": "fp8", "bitsandbytes": "bitsandbytes"}.get(given.text("--quantization") or ""),
        eager=given.switch("--enforce-eager") or False,
        block_size=given.integer("--block-size"),
        dtype=given.text("--dtype") or "auto",
        mamba_ssm_cache_dtype=given.text("--mamba-ssm-cache-dtype") or "auto",
        kv_bytes=given.integer("--kv-cache-memory-bytes"),
        cpu_offload_bytes=round((given.fraction("--cpu-offload-gb") or 0) * GIB),
    )
    if not is_known_kv_dtype(kv_dtype := resolved_kv_dtype(shape, settings.kv_cache_dtype)):
        raise ArgumentError(f"--kv-cache-dtype {kv_dtype}: what it takes is not known here")
    ssm_dtype = settings.mamba_ssm_cache_dtype
    for flag, dtype in (("--dtype", settings.dtype), ("--mamba-ssm-cache-dtype", ssm_dtype)):
        if dtype != "auto" and dtype not in DTYPE_BYTES:
            raise ArgumentError(f"{flag} {dtype} is none of auto, {', '.join(DTYPE_BYTES)}")
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise RefusedError(
            f"--max-num-batched-tokens {settings.max_num_batched_tokens} is less than --max-num-seqs "
            f"{settings.max_num_seqs}: each sequence needs a token of every step"
        )
    if hardware.cpu and settings.kv_bytes is None:
        space = (request.environ or {}).get(KV_SPACE, "")
        gib = int(space) if space.isdigit() and int(space) else cpu_kv_gib(hardware.total_bytes)
        settings = replace(settings, kv_bytes=gib * GIB)
    return settings


def measure(request: Request, settings: Settings) -> Budget:
    """Compute the budget under these settings."""
    shape, hardware = request.shape, request.hardware
    weights = request.weights.quantized(settings.quantized) if settings.quantized else request.weights
    per_rank = weights.per_rank(
        shape,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
        dtype=settings.dtype,
    )
    held = max(0, max(per_rank) - settings.cpu_offload_bytes)
    layout = KvLayout.of(
        shape,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
        kv_cache_dtype=settings.kv_cache_dtype,
        dtype=settings.dtype,
        state_dtype=settings.mamba_ssm_cache_dtype,
        block_size=settings.block_size,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=request.arguments.switch("--enable-prefix-caching") is not False,
        device=Device.CPU if hardware.cpu else Device.CUDA,
    )
    if hardware.cpu:
        rest = cpu_overhead(shape, settings.max_num_batched_tokens, settings.max_num_seqs)
        requested = hardware.total_bytes if hardware.free_bytes is None else hardware.free_bytes
    else:
        run = Run(
            settings.tensor_parallel,
            settings.world,
            settings.max_num_batched_tokens,
            settings.max_num_seqs,
            settings.eager,
            hardware.capability,
        )
        rest = overhead(shape, run)
        requested = round(hardware.total_bytes * settings.utilization)
    left = Span(requested - held - rest.total.high, requested - held - rest.total.low)
    kv = left if settings.kv_bytes is None else Span(settings.kv_bytes, settings.kv_bytes)
    needed = layout.bytes_for(settings.max_model_len) + layout.bytes_per_block
    short = max(needed - kv.low, kv.low - left.low if settings.kv_bytes is not None else 0)
    if not hardware.cpu and hardware.free_bytes is not None and settings.kv_bytes is None:
        short = max(short, requested - hardware.free_bytes + CONTEXT_BYTES)
    return Budget(
        hardware.total_bytes,
        requested,
        held,
        rest,
        kv,
        layout.bytes_per_token,
        _tokens(layout, kv, settings.max_model_len),
        needed,
        layout.longest(max(0, kv.low), settings.max_model_len),
        _requests(layout, kv, settings.max_model_len),
        _requests(layout, kv, length) if (length := p99_length(request.traffic)) else None,
        max(0, short),
    )


CONTEXT_BYTES = 600 * 2**20
"""Free memory that a CUDA context takes before vLLM looks. Logs of idle cards show 0.45 GiB (A100, H100) to 0.9 GiB
(RTX 4090) missing."""


def p99_length(traffic: Traffic | None) -> int | None:
    """The 99th percentile of a request's tokens, prompt and output together; None if the traffic does not tell."""
    return traffic.total_tokens.p99.high if traffic and traffic.total_tokens else None


def widest(shape: ModelShape, cards: int) -> int:
    """The most of these cards that tensor parallelism can use: the heads must divide."""
    return max((ranks for ranks in range(1, max(1, cards) + 1) if divides(shape, ranks)), default=1)


def divides(shape: ModelShape, ranks: int) -> bool:
    """Whether vLLM can spread the model's layers over this many ranks.

    Attention heads must divide by the ranks. KV heads must divide or be repeated (0.32, config/model.py,
    `verify_with_parallel_config`; layers/linear.py).
    """
    heads, kv_heads = shape.attention_heads or ranks, shape.kv_heads or ranks
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def _check_parallel(request: Request, tensor: int, pipeline: int) -> None:
    shape, hardware = request.shape, request.hardware
    if not divides(shape, tensor):
        able = [str(ranks) for ranks in range(1, max(8, hardware.count) + 1) if divides(shape, ranks)]
        raise RefusedError(
            f"--tensor-parallel-size {tensor} does not divide the model's {shape.attention_heads} attention heads "
            f"({shape.kv_heads} KV heads): vLLM refuses it; {', '.join(able)} would do"
        )
    if not hardware.cpu and tensor * pipeline > hardware.count:
        raise RefusedError(
            f"--tensor-parallel-size {tensor} times --pipeline-parallel-size {pipeline} needs {tensor * pipeline} "
            f"cards, and there {'is 1' if hardware.count == 1 else f'are {hardware.count}'}: say --gpus "
            f"{tensor * pipeline} to plan for as many"
        )
    if pipeline > shape.layers:
        raise RefusedError(f"--pipeline-parallel-size {pipeline} is more than the model's {shape.layers} layers")


def _size_of(hardware: Hardware) -> str:
    if hardware.cpu:
        return "cpu"
    if hardware.total_bytes >= _HUGE:
        return "huge"
    return "large" if hardware.total_bytes >= _LARGE and "a100" not in hardware.name.lower() else "small"


def _tokens(layout: KvLayout, kv: Span, length: int) -> TokenRange:
    return TokenRange(layout.tokens(max(0, kv.low), length).low, layout.tokens(max(0, kv.high), length).high)


def _requests(layout: KvLayout, kv: Span, length: int) -> tuple[float, float]:
    return layout.requests(max(0, kv.low), length), layout.requests(max(0, kv.high), length)
