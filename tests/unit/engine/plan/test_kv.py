from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.kv import Device, KvLayout, stage_layers
from engine.plan.layers import Kind
from engine.plan.shape import ModelShape

GIB = 1024**3
LLAMA: dict[str, Any] = {
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
GEMMA = {**LLAMA, "model_type": "gemma2", "head_dim": 128, "sliding_window": 4096}
JAMBA = {**LLAMA, "model_type": "jamba", "mamba_dt_rank": 256}
MAMBA = {**LLAMA, "model_type": "mamba", "intermediate_size": 8192}
DEEPSEEK = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
}


def layout(config: dict[str, Any] = LLAMA, **settings: Any) -> KvLayout:
    return KvLayout.of(ModelShape.from_config(config), **settings)


def test_llama_3_8b_takes_128_kib_a_token_and_not_the_512_of_a_rule_by_hidden_size() -> None:
    kv = layout()
    assert kv.bytes_per_token == 131072
    assert kv.bytes_per_block == 16 * 131072
    assert kv.tokens(16 * GIB, 8192).low == kv.tokens(16 * GIB, 8192).high == 131072


@pytest.mark.parametrize(
    ("settings", "bytes_per_token"),
    [
        ({"tensor_parallel": 2}, 65536),
        ({"tensor_parallel": 8}, 16384),
        ({"tensor_parallel": 16}, 16384),  # one KV head is the least a rank has
        ({"pipeline_parallel": 2}, 65536),
        ({"pipeline_parallel": 3}, 45056),  # of 10, 11 and 11 layers, the most
        ({"kv_cache_dtype": "fp8"}, 65536),
        ({"dtype": "float32"}, 262144),
    ],
)
def test_what_a_rank_keeps_of_a_token(settings: dict[str, Any], bytes_per_token: int) -> None:
    assert layout(**settings).bytes_per_token == bytes_per_token


def test_a_latent_is_not_divided() -> None:
    assert layout(DEEPSEEK).bytes_per_token == 61 * 1152
    assert layout(DEEPSEEK, tensor_parallel=8).bytes_per_token == 61 * 1152


def test_a_window_keeps_itself_and_what_is_in_flight_however_long_the_request() -> None:
    kv = layout({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, max_num_batched_tokens=2048)
    bound = -(-(4095 + 2 * 2048) // 16) + 1
    assert kv.blocks_for(131072) == kv.blocks_for(65536) == bound
    assert kv.blocks_for(160) == 11
    assert kv.bytes_per_token == 0


def test_windows_save_nothing_at_short_lengths_and_half_at_long_ones() -> None:
    kv = layout(GEMMA)
    full = layout()
    assert kv.bytes_for(131072) < 0.6 * full.bytes_for(131072)
    assert kv.bytes_for(2048) >= full.bytes_for(2048)


def test_a_model_of_states_alone_takes_one_block_a_request_whatever_its_length() -> None:
    kv = layout(MAMBA)
    assert kv.blocks_for(1) == kv.blocks_for(100_000) == 1
    assert kv.tokens(GIB, 8192).low == GIB // kv.bytes_per_block * 8192


def test_a_hybrid_is_a_range_as_the_kernels_block_is_not_known() -> None:
    kv = layout(JAMBA)
    assert len(kv.arrangements) > 1
    tokens = kv.tokens(16 * GIB, 32768)
    assert 0 < tokens.low <= tokens.high
    assert len(layout(JAMBA, device=Device.CPU).arrangements) == 1


def test_without_prefix_caching_a_hybrid_keeps_one_state_less() -> None:
    groups = sum(group.kind is Kind.STATE for group in layout(JAMBA).arrangements[0].groups)
    assert layout(JAMBA).blocks_for(8192) - layout(JAMBA, prefix_caching=False).blocks_for(8192) == groups


def test_an_encoder_keeps_nothing() -> None:
    kv = layout({**LLAMA, "model_type": "bert"})
    assert kv.arrangements == ()
    assert (kv.bytes_per_block, kv.block_size, kv.bytes_for(512), kv.bytes_per_token) == (0, 0, 0, 0)
    assert kv.longest(0, 512) == 512
    assert kv.tokens(GIB, 512).high == 0


def test_the_block_is_the_devices_or_the_one_asked_for() -> None:
    assert layout().block_size == 16
    assert layout(device=Device.CPU).block_size == 128
    assert layout(DEEPSEEK, device=Device.CPU).block_size == 16
    assert layout(block_size=32).block_size == 32


@pytest.mark.parametrize("config", [LLAMA, GEMMA, JAMBA, DEEPSEEK])
@given(kv_bytes=st.integers(0, 64 * GIB), at_most=st.integers(1, 131072))
def test_the_longest_length_fits_beside_the_null_block_and_one_more_token_does_not(
    config: dict[str, Any], kv_bytes: int, at_most: int
) -> None:
    kv = layout(config)
    longest = kv.longest(kv_bytes, at_most)
    fits = [
        sum(kv._blocks_of(group, longest) for group in way.groups) + 1 <= kv_bytes // way.bytes_per_block
        for way in kv.arrangements
    ]
    assert all(fits) or longest == 0
    if 0 < longest < at_most:
        assert kv.requests(kv_bytes, longest) >= 1 > kv.requests(kv_bytes, longest + 1)


@given(kv_bytes=st.integers(GIB, 64 * GIB), tokens=st.integers(1, 131072))
def test_fewer_requests_fit_the_longer_they_are(kv_bytes: int, tokens: int) -> None:
    kv = layout()
    assert kv.requests(kv_bytes, tokens) >= kv.requests(kv_bytes, tokens + 1)
    assert kv.bytes_for(tokens) >= tokens * kv.bytes_per_token


@given(layers=st.integers(1, 128), stages=st.integers(1, 16))
def test_pipeline_stages_share_all_layers_out_evenly(layers: int, stages: int) -> None:
    spans = stage_layers(layers, stages)
    assert [layer for span in spans for layer in span] == list(range(layers))
    sizes = [len(span) for span in spans]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)  # the output head is beside it
