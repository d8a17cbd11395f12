from typing import Any

import pytest

from engine.plan.shape import ModelShape
from engine.plan.weights import SCHEMES, Tensor, Weights

HIDDEN, FEED, VOCABULARY, HEADS, KV_HEADS, SIZE = 256, 512, 1000, 8, 2, 32


def shape(**keys: Any) -> ModelShape:
    return ModelShape.from_config(
        {
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": FEED,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "vocab_size": VOCABULARY,
            "torch_dtype": "bfloat16",
            **keys,
        }
    )


def tensor(name: str, *sizes: int, dtype: str = "BF16") -> Tensor:
    elements = 1
    for size in sizes:
        elements *= size
    return Tensor(name, dtype, sizes, elements * {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}[dtype])


def layer(index: int) -> list[Tensor]:
    prefix = f"model.layers.{index}."
    return [
        tensor(prefix + "self_attn.q_proj.weight", HEADS * SIZE, HIDDEN),
        tensor(prefix + "self_attn.k_proj.weight", KV_HEADS * SIZE, HIDDEN),
        tensor(prefix + "self_attn.v_proj.weight", KV_HEADS * SIZE, HIDDEN),
        tensor(prefix + "self_attn.o_proj.weight", HIDDEN, HEADS * SIZE),
        tensor(prefix + "mlp.gate_proj.weight", FEED, HIDDEN),
        tensor(prefix + "mlp.up_proj.weight", FEED, HIDDEN),
        tensor(prefix + "mlp.down_proj.weight", HIDDEN, FEED),
        tensor(prefix + "input_layernorm.weight", HIDDEN),
        tensor(prefix + "post_attention_layernorm.weight", HIDDEN),
    ]


EMBEDDING = tensor("model.embed_tokens.weight", VOCABULARY, HIDDEN)
HEAD = tensor("lm_head.weight", VOCABULARY, HIDDEN)
NORM = tensor("model.norm.weight", HIDDEN)
ALL = [EMBEDDING, *layer(0), *layer(1), NORM, HEAD]
KEYS_AND_VALUES = 2 * KV_HEADS * SIZE * HIDDEN * 2
NORMS = 2 * HIDDEN * 2
SPLIT = sum(part.bytes for part in layer(0)) - KEYS_AND_VALUES - NORMS
PADDED = 1024 * HIDDEN * 2  # rows, to a multiple of 64


def test_a_checkpoint_is_the_sum_of_its_tensors() -> None:
    weights = Weights.of_tensors(ALL, shape())
    assert weights.exact
    assert weights.file_bytes == sum(part.bytes for part in ALL)
    assert weights.per_rank(shape()) == (weights.file_bytes + 2 * (PADDED - EMBEDDING.bytes),)


@pytest.mark.parametrize(("ranks", "kv_share"), [(1, 1), (2, 2), (4, 2), (8, 2)])
def test_ranks_share_matrices_repeat_norms_and_keep_a_kv_head_each(ranks: int, kv_share: int) -> None:
    (held,) = Weights.of_tensors(ALL, shape()).per_rank(shape(), tensor_parallel=ranks)
    expected = 2 * (SPLIT / ranks + KEYS_AND_VALUES / kv_share + NORMS) + 2 * PADDED / ranks + NORM.bytes
    assert held == int(expected)


def test_stages_hold_their_layers_and_the_ends_of_the_model() -> None:
    first, last = Weights.of_tensors(ALL, shape()).per_rank(shape(), pipeline_parallel=2)
    of_layer = sum(part.bytes for part in layer(0))
    assert first == of_layer + PADDED
    assert last == of_layer + PADDED + NORM.bytes


def test_tied_embeddings_are_counted_once_and_held_at_both_ends_of_a_pipeline() -> None:
    tied = shape(tie_word_embeddings=True)
    twice, once = (Weights.of_tensors(tensors, tied) for tensors in (ALL, [part for part in ALL if part is not HEAD]))
    assert twice.per_rank(tied) == once.per_rank(tied)
    first, last = once.per_rank(tied, pipeline_parallel=2)
    assert last - first == NORM.bytes


def test_draft_layers_are_not_loaded() -> None:
    draft = [tensor("model.layers.2.mlp.up_proj.weight", FEED, HIDDEN), tensor("mtp.fc.weight", HIDDEN, HIDDEN)]
    drafted = shape(model_type="glm4_moe", num_nextn_predict_layers=1)
    without = Weights.of_tensors([*ALL, *draft], drafted)
    assert without.per_rank(drafted) == Weights.of_tensors(ALL, drafted).per_rank(drafted)
    assert without.file_bytes == sum(part.bytes for part in (*ALL, *draft))


def test_floats_take_the_type_the_model_runs_in_and_packed_weights_stay() -> None:
    stored = [
        tensor("model.layers.0.mlp.up_proj.weight", FEED, HIDDEN, dtype="F32"),
        tensor("model.layers.0.mlp.down_proj.qweight", 32, FEED, dtype="I32"),
        tensor("model.layers.0.mlp.gate_proj.weight", FEED, HIDDEN, dtype="F8_E4M3"),
        tensor("model.layers.0.mlp.gate_proj.weight_scale_inv", 4, 2, dtype="F32"),
    ]
    weights = Weights.of_tensors(stored, shape())
    float32, packed, eight, scale = (part.bytes for part in stored)
    assert weights.per_rank(shape()) == (float32 // 2 + packed + eight + scale,)
    assert weights.per_rank(shape(), dtype="float32") == (float32 + packed + eight + scale,)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.0.self_attn.q_a_proj.weight",
        "model.layers.0.mlp.shared_expert_gate.weight",
        "transformer.wpe.weight",
    ],
)
def test_what_every_rank_needs_whole_is_repeated(name: str) -> None:
    weights = Weights.of_tensors([tensor(name, 64, HIDDEN)], shape())
    assert weights.per_rank(shape(), tensor_parallel=4) == weights.per_rank(shape())


@pytest.mark.parametrize("method", SCHEMES)
def test_quantizing_makes_linear_weights_smaller_and_leaves_embeddings_norms_and_routers(method: str) -> None:
    router = tensor("model.layers.0.mlp.gate.weight", 8, HIDDEN)
    weights = Weights.of_tensors([*ALL, router], shape())
    smaller = weights.quantized(method)
    linear = 2 * (SPLIT + KEYS_AND_VALUES)
    assert weights.file_bytes - smaller.file_bytes == pytest.approx(linear * (1 - SCHEMES[method].bits / 16), abs=20)
    assert not smaller.exact


def test_quantizing_twice_changes_nothing() -> None:
    once = Weights.of_tensors(ALL, shape()).quantized("awq")
    assert once.quantized("fp8").file_bytes == once.file_bytes


def test_a_vision_tower_is_on_the_first_stage() -> None:
    tower = tensor("visual.blocks.5.attn.qkv.weight", HIDDEN, HIDDEN)
    first, last = Weights.of_tensors([tower], shape()).per_rank(shape(), pipeline_parallel=2)
    assert (first, last) == (tower.bytes, 0)
