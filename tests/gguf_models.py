"""GGUF files of random weights: small models of several architectures and block types, as llama-server loads them.

python -m tests.gguf_models FOLDER
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

Tensor = tuple[str, tuple[int, ...], str]
"""Name, shape as ggml writes it (rows' length first), block type."""


@dataclass(frozen=True)
class Made:
    """One model. Matrices are of `block`, those of `blocks` by the ends of their names of another."""

    architecture: str
    block: str
    layers: int = 6
    hidden: int = 512
    feed_forward: int = 1536
    heads: int = 8
    kv_heads: int = 2
    head: int = 64
    vocabulary: int = 8192
    context: int = 16384
    tied: bool = False
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    blocks: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata, without the architecture's name."""


MADE: dict[str, Made] = {
    "llama-f16": Made("llama", "F16"),
    "llama-q4_0": Made("llama", "Q4_0", layers=8, kv_heads=8, vocabulary=32000, blocks={"output.weight": "Q6_K"}),
    "qwen3-q4_k": Made("qwen3", "Q4_K", head=128, tied=True, vocabulary=16384, blocks={"ffn_down.weight": "Q6_K"}),
    "gemma3-q8_0": Made(
        "gemma3",
        "Q8_0",
        layers=13,
        hidden=640,
        head=256,
        heads=4,
        kv_heads=1,
        tied=True,
        vocabulary=32768,
        said={"attention.sliding_window": 512},
    ),
    "gemma2-q5_k": Made(
        "gemma2", "Q5_K", head=128, heads=4, tied=True, vocabulary=32768, said={"attention.sliding_window": 1024}
    ),
    "phi3-iq4_xs": Made("phi3", "IQ4_XS", kv_heads=4, hidden=768, heads=12, feed_forward=2048),
    "qwen3moe-q6_k": Made(
        "qwen3moe", "Q6_K", head=128, heads=4, experts=16, experts_used=4, expert_width=256, blocks={"_exps": "Q4_K"}
    ),
    "gpt-oss-mxfp4": Made(
        "gpt-oss",
        "Q8_0",
        kv_heads=2,
        experts=8,
        experts_used=4,
        expert_width=512,
        blocks={"_exps": "MXFP4"},
        said={"attention.sliding_window": 128},
    ),
    "mamba-f16": Made("mamba", "F16", heads=0, kv_heads=0, head=0, feed_forward=0, tied=True),
    "falcon-h1-q8_0": Made("falcon-h1", "Q8_0", kv_heads=2, tied=True),
    "lfm2-q4_1": Made("lfm2", "Q4_1", layers=8, kv_heads=4, tied=True),
    "deepseek2-q3_k": Made(
        "deepseek2", "Q3_K", heads=4, kv_heads=1, experts=8, experts_used=2, expert_width=256, vocabulary=16384
    ),
}


def write(made: Made, path: Path) -> Path:
    """Write one as a file."""
    writer = GGUFWriter(path, made.architecture)
    for key, value in {**_metadata(made), **made.said}.items():
        _add(writer, f"{made.architecture}.{key}", value)
    _add_tokenizer(writer, made.vocabulary)
    random = np.random.default_rng(1)
    for name, shape, block in _tensors(made):
        kind = GGMLQuantizationType[_block(made, name, block)]
        if block == "F32":
            writer.add_tensor(name, random.standard_normal(shape[::-1], dtype=np.float32) * 0.02)
            continue
        elements, size = GGML_QUANT_SIZES[kind]
        rows = (*shape[:0:-1], shape[0] // elements * size)
        writer.add_tensor(name, random.integers(0, 256, rows, dtype=np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _block(made: Made, name: str, block: str) -> str:
    if block != "matrix":
        return block
    return next((other for end, other in made.blocks.items() if end in name), made.block)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, Sequence):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


def _add_tokenizer(writer: GGUFWriter, vocabulary: int) -> None:
    printable = [chr(code) for code in range(33, 127)]
    tokens = ["<s>", "</s>", *printable, "Ġ", "Ċ"][:vocabulary]
    tokens += [f"<t{number}>" for number in range(vocabulary - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (vocabulary - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _metadata(made: Made) -> dict[str, Any]:
    said: dict[str, Any] = {
        "block_count": made.layers,
        "context_length": made.context,
        "embedding_length": made.hidden,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if made.feed_forward:
        said["feed_forward_length"] = made.feed_forward
    if made.heads:
        said |= {"attention.head_count": made.heads, "attention.head_count_kv": made.kv_heads}
        said |= {"attention.key_length": made.head, "attention.value_length": made.head}
        said |= {"rope.dimension_count": made.head, "rope.freq_base": 10000.0}
    if made.experts:
        said |= {"expert_count": made.experts, "expert_used_count": made.experts_used}
        said |= {"expert_feed_forward_length": made.expert_width}
    if made.architecture == "mamba":
        said |= {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * made.hidden, "ssm.state_size": 16}
        said |= {"ssm.time_step_rank": made.hidden // 16, "attention.head_count": 0, "feed_forward_length": 0}
    if made.architecture == "falcon-h1":
        said |= {"ssm.conv_kernel": 4, "ssm.inner_size": _INNER, "ssm.state_size": _STATE}
        said |= {"ssm.time_step_rank": _SSM_HEADS, "ssm.group_count": 1}
    if made.architecture == "lfm2":
        attends = [made.kv_heads if number % 3 == 2 else 0 for number in range(made.layers)]
        said |= {"shortconv.l_cache": 3, "attention.head_count_kv": attends}
    if made.architecture == "deepseek2":
        said |= {"attention.key_length": _LATENT + _ROPE, "attention.value_length": _LATENT}
        said |= {"attention.key_length_mla": made.head + _ROPE, "attention.value_length_mla": made.head}
        said |= {"attention.kv_lora_rank": _LATENT, "attention.q_lora_rank": _LATENT, "rope.dimension_count": _ROPE}
        said |= {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.0}
        said |= {"attention.head_count_kv": 1}
    return said


_INNER, _STATE, _SSM_HEADS = 768, 128, 12
_LATENT, _ROPE = 256, 64


def _tensors(made: Made) -> Iterator[Tensor]:
    hidden = made.hidden
    yield "token_embd.weight", (hidden, made.vocabulary), "matrix"
    yield ("token_embd_norm.weight" if made.architecture == "lfm2" else "output_norm.weight"), (hidden,), "F32"
    if not made.tied:
        yield "output.weight", (hidden, made.vocabulary), "matrix"
    layer = {
        "mamba": _mamba,
        "falcon-h1": _falcon_h1,
        "gpt-oss": _gpt_oss,
        "phi3": _phi3,
        "lfm2": _lfm2,
        "deepseek2": _deepseek2,
    }.get(made.architecture, _ordinary)
    for number in range(made.layers):
        for name, shape, block in layer(made, number):
            yield f"blk.{number}.{name}", shape, block


def _attention(made: Made) -> Iterator[Tensor]:
    yield "attn_norm.weight", (made.hidden,), "F32"
    yield "attn_q.weight", (made.hidden, made.heads * made.head), "matrix"
    yield "attn_k.weight", (made.hidden, made.kv_heads * made.head), "matrix"
    yield "attn_v.weight", (made.hidden, made.kv_heads * made.head), "matrix"
    yield "attn_output.weight", (made.heads * made.head, made.hidden), "matrix"


def _norms(made: Made) -> Iterator[Tensor]:
    yield "attn_q_norm.weight", (made.head,), "F32"
    yield "attn_k_norm.weight", (made.head,), "F32"


def _feed_forward(made: Made) -> Iterator[Tensor]:
    yield "ffn_gate.weight", (made.hidden, made.feed_forward), "matrix"
    yield "ffn_up.weight", (made.hidden, made.feed_forward), "matrix"
    yield "ffn_down.weight", (made.feed_forward, made.hidden), "matrix"


def _experts(made: Made) -> Iterator[Tensor]:
    yield "ffn_gate_inp.weight", (made.hidden, made.experts), "F32"
    yield "ffn_gate_exps.weight", (made.hidden, made.expert_width, made.experts), "matrix"
    yield "ffn_up_exps.weight", (made.hidden, made.expert_width, made.experts), "matrix"
    yield "ffn_down_exps.weight", (made.expert_width, made.hidden, made.experts), "matrix"


def _ordinary(made: Made, _: int) -> Iterator[Tensor]:
    yield from _attention(made)
    if made.architecture in {"qwen3", "qwen3moe", "gemma3"}:
        yield from _norms(made)
    if made.architecture in {"gemma2", "gemma3"}:
        yield "post_attention_norm.weight", (made.hidden,), "F32"
        yield "post_ffw_norm.weight", (made.hidden,), "F32"
    yield "ffn_norm.weight", (made.hidden,), "F32"
    yield from _experts(made) if made.experts else _feed_forward(made)


def _phi3(made: Made, _: int) -> Iterator[Tensor]:
    yield "attn_norm.weight", (made.hidden,), "F32"
    yield "attn_qkv.weight", (made.hidden, (made.heads + 2 * made.kv_heads) * made.head), "matrix"
    yield "attn_output.weight", (made.hidden, made.hidden), "matrix"
    yield "ffn_norm.weight", (made.hidden,), "F32"
    yield "ffn_up.weight", (made.hidden, 2 * made.feed_forward), "matrix"
    yield "ffn_down.weight", (made.feed_forward, made.hidden), "matrix"


def _gpt_oss(made: Made, _: int) -> Iterator[Tensor]:
    yield from _attention(made)
    for name, size in (("q", made.heads), ("k", made.kv_heads), ("v", made.kv_heads)):
        yield f"attn_{name}.bias", (size * made.head,), "F32"
    yield "attn_output.bias", (made.hidden,), "F32"
    yield "attn_sinks.weight", (made.heads,), "F32"
    yield "post_attention_norm.weight", (made.hidden,), "F32"
    yield from _experts(made)
    yield "ffn_gate_inp.bias", (made.experts,), "F32"
    yield "ffn_gate_exps.bias", (made.expert_width, made.experts), "F32"
    yield "ffn_up_exps.bias", (made.expert_width, made.experts), "F32"
    yield "ffn_down_exps.bias", (made.hidden, made.experts), "F32"


def _mamba(made: Made, _: int) -> Iterator[Tensor]:
    inner, rank = 2 * made.hidden, made.hidden // 16
    yield "attn_norm.weight", (made.hidden,), "F32"
    yield "ssm_in.weight", (made.hidden, 2 * inner), "matrix"
    yield "ssm_conv1d.weight", (4, inner), "F32"
    yield "ssm_conv1d.bias", (inner,), "F32"
    yield "ssm_x.weight", (inner, rank + 2 * 16), "matrix"
    yield "ssm_dt.weight", (rank, inner), "F32"
    yield "ssm_dt.bias", (inner,), "F32"
    yield "ssm_a", (16, inner), "F32"
    yield "ssm_d", (inner,), "F32"
    yield "ssm_out.weight", (inner, made.hidden), "matrix"


def _falcon_h1(made: Made, _: int) -> Iterator[Tensor]:
    conv = _INNER + 2 * _STATE
    yield from _attention(made)
    yield "ssm_in.weight", (made.hidden, _INNER + conv + _SSM_HEADS), "matrix"
    yield "ssm_conv1d.weight", (4, conv), "F32"
    yield "ssm_conv1d.bias", (conv,), "F32"
    yield "ssm_dt.bias", (_SSM_HEADS,), "F32"
    yield "ssm_a", (1, _SSM_HEADS), "F32"
    yield "ssm_d", (1, _SSM_HEADS), "F32"
    yield "ssm_norm.weight", (_INNER, 1), "F32"
    yield "ssm_out.weight", (_INNER, made.hidden), "matrix"
    yield "ffn_norm", (made.hidden,), "F32"  # without an ending, as llama.cpp wants it of this one
    yield from _feed_forward(made)


def _lfm2(made: Made, number: int) -> Iterator[Tensor]:
    if number % 3 == 2:
        yield from _attention(made)
        yield from _norms(made)
    else:
        yield "attn_norm.weight", (made.hidden,), "F32"
        yield "shortconv.conv.weight", (3, made.hidden), "F32"
        yield "shortconv.in_proj.weight", (made.hidden, 3 * made.hidden), "matrix"
        yield "shortconv.out_proj.weight", (made.hidden, made.hidden), "matrix"
    yield "ffn_norm.weight", (made.hidden,), "F32"
    yield from _feed_forward(made)


def _deepseek2(made: Made, number: int) -> Iterator[Tensor]:
    yield "attn_norm.weight", (made.hidden,), "F32"
    yield "attn_q_a_norm.weight", (_LATENT,), "F32"
    yield "attn_kv_a_norm.weight", (_LATENT,), "F32"
    yield "attn_q_a.weight", (made.hidden, _LATENT), "matrix"
    yield "attn_q_b.weight", (_LATENT, made.heads * (made.head + _ROPE)), "matrix"
    yield "attn_kv_a_mqa.weight", (made.hidden, _LATENT + _ROPE), "matrix"
    yield "attn_k_b.weight", (made.head, _LATENT, made.heads), "F16"
    yield "attn_v_b.weight", (_LATENT, made.head, made.heads), "F16"
    yield "attn_output.weight", (made.heads * made.head, made.hidden), "matrix"
    yield "ffn_norm.weight", (made.hidden,), "F32"
    if number == 0:
        yield from _feed_forward(made)
    else:
        yield from _experts(made)
        yield "ffn_gate_shexp.weight", (made.hidden, made.expert_width), "matrix"
        yield "ffn_up_shexp.weight", (made.hidden, made.expert_width), "matrix"
        yield "ffn_down_shexp.weight", (made.expert_width, made.hidden), "matrix"


def main() -> None:
    """Write them all into a folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in MADE.items():
        path = write(made, folder / f"{name}.gguf")
        print(f"{path} {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
