from typing import Any

import pytest

from engine.plan.shape import Kind, ModelShape, UnknownShapeError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}


def shape_of(**keys: Any) -> ModelShape:
    return ModelShape.from_config({**LLAMA, **keys})


def test_an_ordinary_decoder_is_read_key_by_key() -> None:
    shape = shape_of()
    assert (shape.architecture, shape.layers, shape.kv_heads, shape.head_size) == ("LlamaForCausalLM", 32, 8, 128)
    assert (shape.dtype, shape.vocab_size, shape.tied_embeddings, shape.assumed) == ("bfloat16", 128256, False, False)


def test_a_multimodal_config_is_read_from_its_text_part_with_what_transformers_leaves_out() -> None:
    # As google/gemma-3-4b-it: the nested config omits what equals its class's defaults.
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    shape = ModelShape.from_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {**text, "sliding_window": 1024},
            "vision_config": {},
            "torch_dtype": "bfloat16",
        }
    )
    assert (shape.attention_heads, shape.kv_heads, shape.head_size, shape.vocab_size) == (8, 4, 256, 262208)
    assert (shape.multimodal, shape.tied_embeddings, shape.max_positions) == (True, True, 131072)
    assert [cache.layer for cache in shape.caches if cache.kind is Kind.FULL] == [5, 11, 17, 23, 29]


@pytest.mark.parametrize(
    ("keys", "longest", "default"),
    [
        ({}, 131072, 131072),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 262144, 262144),
        ({"rope_scaling": {"type": "dynamic", "factor": 4}}, 524288, 524288),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072, 131072),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072, 131072),
        ({"rope_parameters": {"full": {"rope_type": "linear", "factor": 2}}}, 262144, 262144),
        (
            {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096},
            131072,
            4096,
        ),
        ({"model_max_length": 8192}, 8192, 8192),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024, 1024),
        ({"max_position_embeddings": None}, 2048, 2048),
    ],
)
def test_the_longest_context_is_derived_as_vllm_derives_it(keys: dict[str, Any], longest: int, default: int) -> None:
    shape = shape_of(**keys)
    assert (shape.max_positions, shape.default_length) == (longest, default)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
def test_a_missing_size_is_named(missing: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(UnknownShapeError, match=missing):
        ModelShape.from_config({**config, "model_type": "brand_new"})


@pytest.mark.parametrize(
    "odd",
    [
        {"architectures": 1.5},
        {"model_type": []},
        {"num_attention_heads": 0},
        {"head_dim": 0, "hidden_size": 1},
        {"num_key_value_heads": 0},
    ],
)
def test_a_value_that_makes_no_sense_is_an_error_of_the_config(odd: dict[str, Any]) -> None:
    with pytest.raises(UnknownShapeError):
        ModelShape.from_config({**LLAMA, **odd})


def test_an_unknown_family_with_the_usual_keys_is_planned_and_marked() -> None:
    assert shape_of(model_type="brand_new", architectures=["BrandNewForCausalLM"]).assumed


def test_a_state_nobody_knows_the_size_of_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(UnknownShapeError, match="BrandNewForCausalLM"):
        shape_of(
            model_type="brand_new",
            architectures=["BrandNewForCausalLM"],
            layer_types=["linear_attention", "full_attention"] * 16,
        )


def test_an_encoder_decoder_is_not_planned() -> None:
    with pytest.raises(UnknownShapeError, match="encoder-decoder"):
        shape_of(model_type="t5", is_encoder_decoder=True)


def test_an_encoder_keeps_nothing() -> None:
    shape = shape_of(model_type="bert")
    assert not shape.generates
    assert {cache.kind for cache in shape.caches} == {Kind.NONE}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("awq", 4, 128, None)),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, ("gptq", 4, 0, None)),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", 8, 0, None)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("bitsandbytes", 8, 0, None)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            ("compressed-tensors", 8, 0, None),
        ),
        (
            {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}},
            ("modelopt", 8, 0, "fp8"),
        ),
    ],
)
def test_a_quantized_checkpoint_says_how(config: dict[str, Any], expected: tuple[object, ...]) -> None:
    quantization = shape_of(quantization_config=config).quantization
    assert quantization is not None
    assert (quantization.method, quantization.bits, quantization.group_size, quantization.kv_cache_dtype) == expected
