from typing import Any

import pytest

from engine.plan.layers import Kind
from engine.plan.shape import ModelShape, UnknownShapeError

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LETTERS = {
    Kind.FULL: "F",
    Kind.SLIDING: "W",
    Kind.CHUNKED: "C",
    Kind.MLA: "L",
    Kind.STATE: "S",
    Kind.SHARED: "-",
    Kind.NONE: ".",
}
MAMBA = {
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def kinds(**keys: Any) -> str:
    return "".join(LETTERS[cache.kind] for cache in ModelShape.from_config({**SIZES, **keys}).caches)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_type": "llama"}, "FFFFFF"),
        ({"model_type": "mistral", "sliding_window": 1024}, "WWWWWW"),
        ({"model_type": "mistral", "sliding_window": None}, "FFFFFF"),
        ({"model_type": "qwen2", "sliding_window": 1024}, "FFFFFF"),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 4}, "FFFFWW"),
        ({"model_type": "gemma2"}, "WFWFWF"),
        ({"model_type": "gemma3_text"}, "WWWWWF"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 2}, "WWWW--"),
        ({"model_type": "gpt_oss"}, "WFWFWF"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "CCCFCC"),
        ({"model_type": "olmo3", "sliding_window": 64, "layer_types": ["full_attention"] * 6}, "FFFFFF"),
        ({"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64}, "LLLLLL"),
        ({"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1}, "SFSSFS"),
        ({"model_type": "falcon_h1", **MAMBA}, "FSFSFSFSFSFS"),
        ({"model_type": "bamba", "attn_layer_indices": [2], **MAMBA}, "SSFSSS"),
        ({"model_type": "zamba2", "layers_block_type": ["mamba", "mamba", "hybrid"] * 2, **MAMBA}, "SSFSSSFS"),
        ({"model_type": "qwen3_next", **DELTA}, "SSSFSS"),
        ({"model_type": "lfm2", "full_attn_idxs": [2, 5]}, "SSFSSF"),
        (
            {
                "model_type": "kimi_linear",
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "linear_attn_config": {"full_attn_layers": [4], "num_heads": 4, "head_dim": 32},
            },
            "SSSLSS",
        ),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M-M*-E",
                "mamba_num_heads": 8,
                "mamba_head_dim": 64,
                "n_groups": 1,
                "ssm_state_size": 16,
                "conv_kernel": 4,
            },
            "S.SF..",
        ),
        ({"model_type": "mamba", "intermediate_size": 512}, "SSSSSS"),
    ],
)
def test_each_family_keeps_in_its_layers_what_vllm_keeps(keys: dict[str, Any], expected: str) -> None:
    assert kinds(**keys) == expected


def test_a_type_of_layer_nobody_knows_is_named() -> None:
    with pytest.raises(UnknownShapeError, match="retention"):
        kinds(model_type="llama", layer_types=["retention"] * 6)


def test_types_for_other_layers_than_there_are_is_an_error() -> None:
    with pytest.raises(UnknownShapeError, match="5 layers of 6"):
        kinds(model_type="llama", layer_types=["full_attention"] * 5)


@pytest.mark.parametrize(
    ("keys", "heads"),
    [
        ({"model_type": "falcon", "multi_query": True}, 1),
        ({"model_type": "falcon", "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 4}, 4),
        ({"model_type": "gpt_bigcode"}, 1),
        ({"model_type": "chatglm", "multi_query_group_num": 2}, 2),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 8}}, 8),
        ({"model_type": "opt"}, 8),
    ],
)
def test_the_number_of_kv_heads_goes_by_many_names(keys: dict[str, Any], heads: int) -> None:
    config = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    assert ModelShape.from_config({**config, **keys}).kv_heads == heads


def test_layers_of_two_sizes_of_heads_keep_their_own() -> None:
    shape = ModelShape.from_config({**SIZES, "model_type": "gemma4_text", "head_dim": 32, "global_head_dim": 64})
    assert {(cache.kind, cache.head_size) for cache in shape.caches} == {(Kind.SLIDING, 32), (Kind.FULL, 64)}


def test_sparse_attention_keeps_an_index_beside_the_latent() -> None:
    config = {"model_type": "deepseek_v32", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    first, second, *_ = ModelShape.from_config({**SIZES, **config}).caches
    assert (first.layer, first.head_size, first.token_bytes) == (0, 576, 0)
    assert (second.layer, second.token_bytes) == (0, 132)


def test_draft_layers_are_not_counted() -> None:
    shape = ModelShape.from_config({**SIZES, "model_type": "glm4_moe", "num_nextn_predict_layers": 1})
    assert len(shape.caches) == 6
