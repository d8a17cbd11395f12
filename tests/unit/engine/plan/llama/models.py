"""Models for plans in tests, from files that are as long as real ones and empty."""

from engine.plan.gguf import Gguf, GgufTensor
from engine.plan.llama.model import LlamaModel
from tests.unit.engine.plan.written import LLAMA, size, tensors

LLAMA_8B = {
    "general.architecture": "llama",
    "general.name": "Llama 3.1 8B",
    "llama.block_count": 32,
    "llama.context_length": 131072,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}
"""By Meta, on the Hugging Face hub."""


def described(metadata, described_tensors, vocabulary=1000):
    """A file by its description alone."""
    kept = {key: tuple(one) if isinstance(one, list) else one for key, one in metadata.items()}
    kept.pop("tokenizer.ggml.tokens", None)
    every = tuple(GgufTensor(name, shape, block, size(shape, block)) for name, shape, block in described_tensors)
    total = sum(tensor.bytes for tensor in every)
    return Gguf("m.gguf", total, kept, {"tokenizer.ggml.tokens": vocabulary}, every)


def model(architecture="llama", layers=4, *, tied=False, **said):
    """A small one of another architecture, with further metadata (dots as double underscores)."""
    base = {key.replace("llama.", f"{architecture}."): one for key, one in LLAMA.items()}
    base |= {"general.architecture": architecture, f"{architecture}.block_count": layers}
    base |= {f"{architecture}.{key.replace('__', '.')}": one for key, one in said.items()}
    return LlamaModel.of(
        described({key: one for key, one in base.items() if one is not None}, tensors(layers, tied=tied))
    )


def llama_8b(block="q4_K"):
    """Llama 3.1 8B, all of one block type: 4.2 GiB in q4_K."""
    return LlamaModel.of(described(LLAMA_8B, tensors(32, 4096, 14336, kv=1024, vocabulary=128256, block=block), 128256))


def mixture(layers=48):
    """Qwen3-30B-A3B by its dimensions, in q4_K."""
    said = {
        "general.architecture": "qwen3moe",
        "qwen3moe.block_count": layers,
        "qwen3moe.context_length": 32768,
        "qwen3moe.embedding_length": 2048,
        "qwen3moe.feed_forward_length": 6144,
        "qwen3moe.attention.head_count": 32,
        "qwen3moe.attention.head_count_kv": 4,
        "qwen3moe.attention.key_length": 128,
        "qwen3moe.attention.value_length": 128,
        "qwen3moe.expert_count": 128,
        "qwen3moe.expert_used_count": 8,
        "qwen3moe.expert_feed_forward_length": 768,
    }
    every = [("token_embd.weight", (2048, 151936), "q4_K"), ("output_norm.weight", (2048,), "f32")]
    every.append(("output.weight", (2048, 151936), "q6_K"))
    for number in range(layers):
        every += [(f"blk.{number}.attn_{name}.weight", (2048, width), "q4_K") for name, width in WIDTHS]
        every.append((f"blk.{number}.ffn_gate_inp.weight", (2048, 128), "f32"))
        every += [
            (f"blk.{number}.ffn_gate_exps.weight", (2048, 768, 128), "q4_K"),
            (f"blk.{number}.ffn_up_exps.weight", (2048, 768, 128), "q4_K"),
            (f"blk.{number}.ffn_down_exps.weight", (768, 2048, 128), "q4_K"),
        ]
    return LlamaModel.of(described(said, every, 151936))


WIDTHS = (("q", 4096), ("k", 512), ("v", 512), ("output", 4096))
