"""PURE. Published starts of vLLM on real GPUs, to compare with the plan of the same start.

The estimate of a card's memory beside weights and KV cache rests on these, since no GPU was at hand for it. The figures
are quoted from the pages named. The facts of the models come from their config.json on the hub.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.plan.cards import find
from engine.plan.kv import KvLayout, TokenRange
from engine.plan.overhead import GIB, Run, Span, overhead
from engine.plan.shape import ModelShape

Facts = Mapping[str, Any]


def _llama(  # noqa: PLR0917 - the columns of a table
    hidden: int, feed: int, layers: int, heads: int, kv: int, vocab: int, positions: int, **more: Any
) -> Facts:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": feed,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        **more,
    }


_FP8 = {"quantization_config": {"quant_method": "fp8"}}
_QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
}

MODELS: Mapping[str, Facts] = {
    "Llama-3.1-8B": _llama(4096, 14336, 32, 32, 8, 128256, 131072),
    "Llama-3.1-8B W8A8": _llama(
        4096, 14336, 32, 32, 8, 128256, 131072, quantization_config={"quant_method": "compressed-tensors", "bits": 8}
    ),
    "Llama-3.3-70B FP8": _llama(8192, 28672, 80, 64, 8, 128256, 131072, **_FP8),
    "Qwen2.5-7B": _llama(3584, 18944, 28, 28, 4, 152064, 32768, **_QWEN2),
    "Qwen2.5-7B AWQ": _llama(
        3584, 18944, 28, 28, 4, 152064, 32768, **_QWEN2, quantization_config={"quant_method": "awq", "bits": 4}
    ),
    "Qwen2.5-14B": _llama(5120, 13824, 48, 40, 8, 152064, 32768, **_QWEN2),
    "Qwen3-8B": _llama(4096, 12288, 36, 32, 8, 151936, 40960, **_QWEN3),
    "Qwen3-32B": _llama(5120, 25600, 64, 64, 8, 151936, 40960, **_QWEN3),
    "Qwen3-235B-A22B": _llama(4096, 12288, 94, 64, 4, 151936, 262144, **_QWEN3_MOE),
    "Qwen3-235B-A22B FP8": _llama(4096, 12288, 94, 64, 4, 151936, 262144, **_QWEN3_MOE, **_FP8),
    "DeepSeek-R1": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "torch_dtype": "bfloat16",
        **_FP8,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4"},
    },
}
"""Config.json facts of public models, by the names used here."""


@dataclass(frozen=True, slots=True)
class PublishedStart:
    """One start. GiB figures are one rank's, as vLLM logged them.

    Attributes:
        model: a key of `MODELS`.
        card: as `--gpu` takes it.
        version: of vLLM.
        utilization: `gpu_memory_utilization`, given or the version's default.
        loaded: "Model loading took".
        available: "Available KV cache memory".
        tokens: "GPU KV cache size"; None where it was not published.
        url: its source.
        tensor_parallel: ranks.
        max_model_len: tokens.
        batched: `max_num_batched_tokens`, given or the version's default on that card.
        seqs: `max_num_seqs`, likewise.
        eager: whether graphs were off.
        kv_cache_dtype: as the flag.
        graphs: "Estimated CUDA graph memory" or what capturing took; None where it was not published.
        graphs_counted: whether that start reserved room for graphs.
        differs: why it lies outside of the plan's range; empty if it lies inside.
    """

    model: str
    card: str
    version: str
    utilization: float
    loaded: float
    available: float
    tokens: int | None
    url: str
    tensor_parallel: int = 1
    max_model_len: int = 8192
    batched: int = 2048
    seqs: int = 256
    eager: bool = False
    kv_cache_dtype: str = "auto"
    graphs: float | None = None
    graphs_counted: bool = False
    differs: str = ""


_HPML = "https://github.com/HPML6998-S26-Team13/hpml-assetopsbench-smart-grid-mcp/tree/main/benchmarks"
_OFFLOAD = "https://github.com/TheBuccaneer/vllm-offload-profiles/tree/main/data/provenance/gpu_memory_configuration"
_ESTIMATOR = "https://github.com/ashishkamra/vllm-memory-estimator/blob/main/test_data/validation_db.json"
_KUBE = "https://github.com/kubesimplify/website/blob/main/content/blog"

STARTS: Sequence[PublishedStart] = (
    PublishedStart(
        "Llama-3.1-8B", "a100-40gb", "0.19.0", 0.9, 14.99, 19.92, 163_168, _HPML, max_model_len=32768, graphs=0.53
    ),
    PublishedStart(
        "Llama-3.1-8B", "rtx-a6000", "0.19.0", 0.9, 14.99, 27.08, 221_824, _HPML, max_model_len=32768, graphs=0.53
    ),
    PublishedStart(
        "Llama-3.1-8B", "h100", "0.19.0", 0.9, 14.99, 54.09, 443_088, _HPML,
        max_model_len=32768, batched=8192, seqs=1024, graphs=0.84,
    ),
    PublishedStart(
        "Llama-3.1-8B", "h100-nvl", "0.19.0", 0.9, 14.99, 66.59, 545_456, _HPML,
        max_model_len=32768, batched=8192, seqs=1024, graphs=0.84,
        differs="no log with the whole memory of an H100 NVL was found, and 98.5 % of the driver's figure is too "
        "little: with what the H100 above kept, this one has 93.1 GiB and not 92.2",
    ),
    PublishedStart(
        "Llama-3.1-8B W8A8", "a100-40gb", "0.19.0", 0.9, 8.49, 26.41, 432_704, _HPML, kv_cache_dtype="fp8", graphs=0.81
    ),
    PublishedStart("Llama-3.1-8B", "rtx-3090", "0.17.1", 0.9, 14.99, 5.68, 46_544, _OFFLOAD),
    PublishedStart("Llama-3.1-8B", "rtx-3090", "0.17.1", 0.75, 14.99, 2.13, 17_424, _OFFLOAD),
    PublishedStart("Llama-3.1-8B", "rtx-3090", "0.17.1", 0.86, 2.91, 16.79, 137_552, _OFFLOAD),
    PublishedStart("Qwen2.5-7B", "rtx-3090", "0.17.1", 0.9, 14.25, 6.32, 118_304, _OFFLOAD),
    PublishedStart(
        "Llama-3.1-8B", "a100-40gb", "0.15.1", 0.9, 14.99, 19.28, 157_936,
        "https://github.com/ilseokoh/vllm-gce/blob/main/README.md", max_model_len=131072, batched=8192, eager=True,
    ),
    PublishedStart(
        "Qwen3-8B", "rtx-4090", "0.27.1", 0.92, 15.27, 4.92, 35_792,
        "https://github.com/alexostapiuk11/coldstart-recon-worker/blob/main/fixtures/vllm_logs/startup_0.log",
        graphs=0.56,
    ),
    PublishedStart(
        "Qwen2.5-7B", "rtx-4090", "0.24.0", 0.85, 14.29, 4.45, 83_376,
        "https://github.com/hzk-123/llm-infra-learning-lab/blob/main/docs/08_serving_vllm/day49_model_size_probe.md",
        max_model_len=2048, graphs=0.53, graphs_counted=True,
    ),
    PublishedStart(
        "Qwen2.5-7B AWQ", "rtx-3090", "0.22.1", 0.9, 5.29, 14.43, 270_144,
        "https://github.com/javakishore-veleti/LLM-Inference-Serving-Azure-AKS",
        max_model_len=4096, seqs=8, graphs=0.35, graphs_counted=True,
    ),
    PublishedStart(
        "Qwen2.5-14B", "h100", "0.21.0", 0.9, 27.57, 41.43, 226_240,
        "https://github.com/llm-inferno/server-sim/tree/main/docs/example-runs/qwen2.5-14b-h100",
        max_model_len=4096, batched=8192, graphs_counted=True,
    ),
    PublishedStart(
        "Qwen3-32B", "rtx-pro-6000", "0.27.1", 0.426, 61.03, -24.42, None,
        f"{_KUBE}/running-a-single-llm-across-two-gpus-with-vllm.md", max_model_len=32768, batched=8192, seqs=1024,
    ),
    PublishedStart(
        "Qwen3-32B", "rtx-pro-6000", "0.27.1", 0.426, 30.59, 8.22, 67_296,
        f"{_KUBE}/running-a-single-llm-across-two-gpus-with-vllm.md",
        tensor_parallel=2, max_model_len=32768, batched=8192, seqs=1024,
        differs="its two ranks kept 1.7 GiB each beside weights and cache, where one rank alone kept 3.9 with the same "
        "flags; the plan counts the sampler's logits in full on every rank, and cannot say why these were fewer",
    ),
    PublishedStart(
        "Qwen3-235B-A22B FP8", "rtx-pro-6000", "0.27.1", 0.9, 55.19, 27.85, 621_392,
        f"{_KUBE}/running-a-big-llm-across-multiple-gpus-with-vllm.md",
        tensor_parallel=4, max_model_len=32768, batched=8192, seqs=32, graphs=0.32, graphs_counted=True,
    ),
    PublishedStart(
        "Llama-3.3-70B FP8", "h200", "0.11.2", 0.92, 16.96, 106.15, 1_391_344, _ESTIMATOR,
        tensor_parallel=4, batched=8192, seqs=1024,
    ),
    PublishedStart(
        "Qwen3-235B-A22B", "h200", "0.11.2", 0.92, 109.61, 12.73, 284_080, _ESTIMATOR,
        tensor_parallel=4, batched=8192, seqs=1024, graphs=0.42,
    ),
    PublishedStart(
        "DeepSeek-R1", "h200", "0.11.2", 0.92, 79.74, 41.6, 635_648, _ESTIMATOR,
        tensor_parallel=8, batched=8192, seqs=1024, graphs=0.51,
    ),
    PublishedStart(
        "gpt-oss-20b", "a100", "0.19.0", 0.65, 13.72, 36.56, None,
        "https://myoceane.fr/index.php/ai-vllm-a100-gemma-4/", max_model_len=131072,
    ),
)  # fmt: skip
"""Ordered by card and release. Starts outside of the plan's range are included."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published start and the plan's figures for it: bytes of KV cache, and tokens in the published bytes."""

    start: PublishedStart
    available: Span
    tokens: TokenRange

    @property
    def inside(self) -> bool:
        """Whether the published KV cache lies in the plan's range."""
        return self.available.low <= self.start.available * GIB <= self.available.high


def compare(start: PublishedStart) -> Comparison:
    """Plan a published start from its logged weights."""
    card, shape = find(start.card), ModelShape.from_config(MODELS[start.model])
    run = Run(
        start.tensor_parallel,
        start.tensor_parallel,
        start.batched,
        start.seqs,
        start.eager,
        card.capability,
        start.graphs_counted,
    )
    rest = overhead(shape, run).total
    budget = card.total_bytes * start.utilization - start.loaded * GIB
    layout = KvLayout.of(
        shape,
        tensor_parallel=start.tensor_parallel,
        kv_cache_dtype=start.kv_cache_dtype,
        max_num_batched_tokens=start.batched,
    )
    tokens = layout.tokens(max(0, round(start.available * GIB)), start.max_model_len)
    return Comparison(start, Span(round(budget) - rest.high, round(budget) - rest.low), tokens)
