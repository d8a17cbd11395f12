from typing import Any

import pytest

from engine.plan.parameters import estimated, idle_elements
from engine.plan.shape import ModelShape, UnknownShapeError
from tests.unit.engine.plan.models import shape

# The config's sizes, and the number of weights, as published with each model on the Hugging Face hub.
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "Llama-3.1-8B": (
        8_030_261_248,
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
    ),
    "Qwen2.5-7B": (
        7_615_616_512,
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
    ),
    "Mixtral-8x7B": (
        46_702_792_704,
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "vocab_size": 32000,
        },
    ),
    "gemma-2-9b": (
        9_241_705_984,
        {
            "model_type": "gemma2",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "vocab_size": 256000,
        },
    ),
    "gpt2": (
        124_439_808,
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "decoder_sparse_step": 1,
            "vocab_size": 151936,
        },
    ),
    "DeepSeek-V3": (
        671_026_419_200,
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
        },
    ),
    "mamba-2.8b": (
        2_768_345_600,
        {
            "model_type": "mamba",
            "hidden_size": 2560,
            "intermediate_size": 5120,
            "num_hidden_layers": 64,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 160,
            "vocab_size": 50280,
        },
    ),
    "Jamba-v0.1": (
        51_570_323_328,
        {
            "model_type": "jamba",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_experts": 16,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 256,
            "vocab_size": 65536,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_counted_from_a_config_are_within_2_permille_of_what_was_published(name: str) -> None:
    published, config = PUBLISHED[name]
    weights = estimated(ModelShape.from_config(config))
    assert weights.elements == pytest.approx(published, rel=0.002)
    assert not weights.exact


def test_a_config_without_a_width_of_the_feed_forward_is_not_guessed_at() -> None:
    _, config = PUBLISHED["Qwen2.5-7B"]
    shape = ModelShape.from_config({key: value for key, value in config.items() if key != "intermediate_size"})
    with pytest.raises(UnknownShapeError, match="intermediate_size"):
        estimated(shape)


def test_linear_weights_get_smaller_by_a_scheme_and_the_rest_stays() -> None:
    _, config = PUBLISHED["Llama-3.1-8B"]
    full = estimated(ModelShape.from_config(config))
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = full.file_bytes - 2 * linear
    assert full.quantized("fp8").file_bytes == pytest.approx(linear + rest)
    assert full.quantized("awq").file_bytes == pytest.approx(linear * 4.15625 / 8 + rest)


def test_a_quantized_checkpoint_is_estimated_by_the_bits_its_config_names() -> None:
    _, config = PUBLISHED["Llama-3.1-8B"]
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    quantized = estimated(ModelShape.from_config({**config, "quantization_config": quantization}))
    assert quantized.file_bytes == pytest.approx(estimated(ModelShape.from_config(config)).quantized("gptq").file_bytes)
    assert quantized.quantized("fp8").file_bytes == quantized.file_bytes


def test_layers_that_share_weights_are_not_counted_as_if_they_did_not() -> None:
    _, config = PUBLISHED["Llama-3.1-8B"]
    states = {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8}
    shape = ModelShape.from_config({**config, "model_type": "zamba2", "mamba_headdim": 64, **states})
    with pytest.raises(UnknownShapeError, match="share"):
        estimated(shape)


def test_of_experts_those_not_in_use_are_told_apart():
    assert idle_elements(shape("Llama-3.1-8B")) == 0
    mixture = shape("Qwen3-235B-A22B")
    active = sum(part.elements for part in estimated(mixture).parts) - idle_elements(mixture)
    assert 20e9 < active < 24e9, "as its name says"
