"""PURE. A card's memory beside weights and KV cache, as a range: activations, CUDA graphs, buffers outside of torch.

vLLM measures this by running the model once with dummy requests (v1/worker/gpu_worker.py, `determine_available_memory`)
and gives the rest to the KV cache. It cannot be known without the card, since scratch space differs between kernels and
between releases. So each term is a range with its source. `published.py` compares their sum with the KV cache of real
starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.plan.shape import Kind, ModelShape

GIB = 2**30
MIB = 2**20

_ITEM = 2
"""Bytes of an activation. Models run in 16 bits (32-bit models are rare and small)."""

_LOGIT_BYTES = (14, 40)
"""Bytes per logit at the sampler's peak (v1/sample/ops/topk_topp_sampler.py). Least: the 16-bit logit, its 32-bit copy,
and two more such copies in FlashInfer's sampling. Most: torch's own sampling, which sorts (a value and an 8-byte
index), sums up, and draws noise of the same size."""

_STREAMS = (2, 5)
"""Live hidden-size vectors per token beside the widest layer. Least: residual and input. Most: also a norm, the
attention's output and the previous layer's output (models/llama.py)."""

_EXPERT_COPIES = (1.0, 2.5)
"""Scratch space of experts, relative to `fused_experts` (two buffers for each token and expert). Kernels that first
permute and quantize tokens keep up to one and a half copies more (fused_moe/modular_kernel.py)."""

_MLA_WORKSPACE = 64 * 1024
"""Tokens of context that latent attention expands at once (attention/mla_attention.py,
`determine_chunked_prefill_workspace_size`)."""

_GRAPH_SIZES = 512
_GRAPH_SIZES_BLACKWELL = 1024
_GRAPH_FIRST = (0, 320 * MIB)
_GRAPH_LAYER = (0.04 * MIB, 0.45 * MIB)
"""CUDA graphs: memory of the first capture, and of each further one per layer. Logged: 0.53 GiB for 86
captures of 28 to 36 layers, 0.84 for 102 of 32, 0.35 for 9 of 28, 0.32 for 18 of 94, 1.86 for 64 layers."""

_ONE_GPU = (20 * MIB, 900 * MIB)
"""Memory outside of torch on one card: kernels loaded while profiling, cuBLAS's workspace, FlashInfer's of 394 MiB
(envs.py). Logged: 0.02 to 0.3 GiB. The upper end has room for attention kernels with a workspace."""

_SEVERAL_GPUS = (250 * MIB, 2300 * MIB)
"""The same plus NCCL's channels and the buffers of vLLM's own all-reduce (distributed/device_communicators). Logged:
0.25 GiB on 2 cards without NVLink, 1.7 on 4 with peer-to-peer, 1.8 on 2 in 2024."""

_DEQUANTIZED = 1
"""Matrices of the widest layer that may exist in 16 bits at once if a kernel dequantizes (AWQ without Marlin)."""

_MULTIMODAL = (0, 4 * GIB)
"""The encoder's own pass over an input of the largest size. `--limit-mm-per-prompt` bounds it. A wide guess."""


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of vLLM that decide the size of activations.

    Attributes:
        tensor_parallel: ranks that share each layer.
        world: number of cards one engine uses.
        max_num_batched_tokens: of a step.
        max_num_seqs: of a step.
        eager: whether CUDA graphs are off.
        capability: of CUDA; None if unknown.
        graphs_counted: whether vLLM reserves room for graphs (since 0.21; before, they used leftover memory).
    """

    tensor_parallel: int = 1
    world: int = 1
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    eager: bool = False
    capability: int | None = None
    graphs_counted: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes."""

    low: int
    high: int

    def __add__(self, other: "Span") -> "Span":
        return Span(self.low + other.low, self.high + other.high)


@dataclass(frozen=True, slots=True)
class Overhead:
    """One rank's memory beside weights and KV cache, in bytes.

    Attributes:
        forward: activations of the widest layer for `max_num_batched_tokens`.
        sampler: logits and the sampler's buffers for `max_num_seqs`.
        graphs: CUDA graphs.
        outside: memory that torch does not allocate: context growth, NCCL, workspaces.
        encoder: a vision or audio part's own pass.
        graphs_counted: whether the graphs reduce the KV cache.
    """

    forward: Span
    sampler: Span
    graphs: Span
    outside: Span
    encoder: Span
    graphs_counted: bool

    @property
    def activation(self) -> Span:
        """The peak. The sampler runs after the layers, while the hidden states still exist."""
        return Span(
            max(self.forward.low, self.sampler.low, self.encoder.low),
            max(self.forward.high, self.sampler.high) + self.encoder.high,
        )

    @property
    def total(self) -> Span:
        """The memory that the KV cache does not get."""
        counted = self.graphs if self.graphs_counted else Span(0, 0)
        return self.activation + self.outside + counted


def overhead(shape: ModelShape, run: Run) -> Overhead:
    """Return the memory a GPU's rank needs beside weights and KV cache."""
    tokens, ranks = run.max_num_batched_tokens, run.tensor_parallel
    hidden = tokens * shape.hidden_size * _ITEM
    widest = tokens * _ITEM * max(_feed_forward(shape.text), _attention(shape)) // ranks
    experts = tokens * _ITEM * _experts(shape, ranks)
    latent = _latent(shape, ranks)
    forward = Span(
        max(widest, int(experts * _EXPERT_COPIES[0])) + _STREAMS[0] * hidden,
        widest + int(experts * _EXPERT_COPIES[1]) + _STREAMS[1] * hidden + latent + _dequantized(shape, ranks),
    )
    logits = min(run.max_num_seqs, tokens) * shape.vocab_size
    sampler = Span(logits * _LOGIT_BYTES[0] + hidden, logits * _LOGIT_BYTES[1] + 2 * hidden)
    outside = _SEVERAL_GPUS if run.world > 1 else _ONE_GPU
    encoder = _MULTIMODAL if shape.multimodal else (0, 0)
    return Overhead(
        forward, sampler if shape.generates else Span(0, 0), _graphs(shape, run), Span(*outside), Span(*encoder),
        run.graphs_counted,
    )  # fmt: skip


def cpu_overhead(shape: ModelShape, max_num_batched_tokens: int, max_num_seqs: int) -> Overhead:
    """Return the overhead of an engine on a CPU: activations, and a Python process with its libraries for each rank.

    The process takes 1.0 to 2.5 GiB. vLLM 0.32 on a CPU took 1.3 GiB with a model of a few megabytes.
    """
    on_gpu = overhead(shape, Run(1, 1, max_num_batched_tokens, max_num_seqs, eager=True))
    return Overhead(
        on_gpu.forward, on_gpu.sampler, Span(0, 0), Span(GIB, 5 * GIB // 2), on_gpu.encoder, graphs_counted=False
    )


def _number(text: Mapping[str, Any], *keys: str) -> int:
    values = (text.get(key) for key in keys)
    found = next((value for value in values if isinstance(value, int | float) and value), 0)
    return int(found)


def _feed_forward(text: Mapping[str, Any]) -> int:
    """Elements per token of a dense feed-forward layer: gate and up side by side, and their product."""
    return 3 * _number(text, "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")


def _attention(shape: ModelShape) -> int:
    """Elements per token of queries, keys and values side by side, and of the attention's output."""
    if any(cache.kind is Kind.MLA for cache in shape.caches):
        keys = _number(shape.text, "qk_nope_head_dim") + _number(shape.text, "qk_rope_head_dim")
        return shape.attention_heads * (2 * keys + 2 * _number(shape.text, "v_head_dim"))
    return shape.head_size * (2 * shape.attention_heads + 2 * shape.kv_heads)


def _experts(shape: ModelShape, ranks: int) -> int:
    """Elements per token of the two buffers of experts on a rank."""
    if not shape.experts:
        return 0
    width = _number(shape.text, "moe_intermediate_size", "intermediate_size")
    return shape.active_experts * (max(2 * width // ranks, shape.hidden_size) + width // ranks)


def _latent(shape: ModelShape, ranks: int) -> int:
    """Bytes of the context that latent attention expands, for the heads of a rank."""
    if not any(cache.kind is Kind.MLA for cache in shape.caches):
        return 0
    widths = _number(shape.text, "qk_nope_head_dim") + _number(shape.text, "v_head_dim")
    return _MLA_WORKSPACE * _ITEM * (shape.attention_heads // ranks * widths + shape.head_size)


def _dequantized(shape: ModelShape, ranks: int) -> int:
    if shape.quantization is None:
        return 0
    width = _number(shape.text, "intermediate_size", "moe_intermediate_size")
    return _DEQUANTIZED * 2 * shape.hidden_size * width * _ITEM // ranks


def _graphs(shape: ModelShape, run: Run) -> Span:
    """Captures are of 1, 2, 4, multiples of 8 to 256, then of 16 (config/vllm.py), each in pieces and whole."""
    if run.eager:
        return Span(0, 0)
    largest = _GRAPH_SIZES_BLACKWELL if run.capability is not None and run.capability // 10 == 10 else _GRAPH_SIZES  # noqa: PLR2004
    pieces = _captures(min(2 * run.max_num_seqs, largest, run.max_num_batched_tokens))
    whole = _captures(min(run.max_num_seqs, largest))
    captures = (pieces + whole) * shape.layers
    return Span(int(_GRAPH_FIRST[0] + captures * _GRAPH_LAYER[0]), int(_GRAPH_FIRST[1] + captures * _GRAPH_LAYER[1]))


def _captures(largest: int) -> int:
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + len(range(8, min(largest, 255) + 1, 8)) + len(range(256, largest + 1, 16))
