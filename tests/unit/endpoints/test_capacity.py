from pathlib import Path

import pytest

from gateway.admission.events import Capacity
from gateway.endpoints.capacity import capacity
from gateway.endpoints.exposition import parse

CAPTURED = Path(__file__).parent / "expositions"


def of(name: str, max_model_len: int, **configured: int) -> Capacity:
    metrics = parse((CAPTURED / f"{name}.prom").read_bytes())
    return capacity(metrics.cache_config, max_model_len, ranks=metrics.ranks, **configured)


def test_the_null_block_is_not_ours():
    assert of("vllm-0.32-idle", 1024) == Capacity(
        max_model_len=1024, kv_blocks=255, block_size=32, max_num_seqs=None, shares_prefix=True
    )


def test_0_8_5_says_only_blocks():
    assert of("vllm-0.8.5", 4096).kv_blocks == 2047


def test_each_rank_keeps_a_block_of_the_sum():
    assert of("vllm-0.33-two-ranks", 8192).kv_blocks == 8190


@pytest.mark.parametrize("max_model_len", [1000, 1023, 1024, 1025, 33])
def test_a_length_that_is_no_whole_number_of_blocks_does_not_make_a_hybrid(max_model_len):
    blocks, size = 256, 32
    tokens = int(blocks / -(-max_model_len // size) * max_model_len)
    labels = {"block_size": "32", "num_gpu_blocks": "256", "kv_cache_size_tokens": str(tokens)}
    assert capacity(labels, max_model_len).kv_blocks == 255


def test_of_a_hybrid_the_tokens_count_not_the_blocks():
    labels = {"block_size": "16", "num_gpu_blocks": "1001", "kv_cache_size_tokens": "10010"}
    assert capacity(labels, 8192).kv_blocks == 10_000 // 16


def test_tokens_alone_will_do():
    assert capacity({"block_size": "16", "kv_cache_size_tokens": "1600"}, 512).kv_blocks == 99


def test_a_block_under_context_parallelism_is_the_effective_one():
    labels = {
        "block_size": "16",
        "effective_attention_block_size": "64",
        "num_gpu_blocks": "101",
        "kv_cache_size_tokens": "6464",
    }
    assert capacity(labels, 640) == Capacity(640, kv_blocks=100, block_size=64, shares_prefix=False)


@pytest.mark.parametrize(
    ("labels", "kv_tokens"),
    [
        ({"num_gpu_blocks": "1"}, None),  # a model without attention has the null block alone
        ({"num_gpu_blocks": "2", "kv_cache_size_tokens": "3"}, None),
        ({"kv_cache_size_tokens": "17"}, None),
        ({"num_gpu_blocks": "100"}, 15),
        ({"num_gpu_blocks": "100", "block_size": "281474976710656"}, 4096),
    ],
)
def test_less_than_a_block_is_no_cache(labels, kv_tokens):
    assert capacity(labels, 2048, kv_tokens=kv_tokens).kv_blocks is None


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"num_gpu_blocks": "None"},
        {"num_gpu_blocks": "0", "block_size": "None"},
        {"num_gpu_blocks": "1" + 400 * "0", "kv_cache_size_tokens": "1" + 400 * "0"},
    ],
)
def test_what_the_engine_does_not_say_is_unknown_not_zero(labels):
    assert capacity(labels, 2048) == Capacity(2048, kv_blocks=None, block_size=16, shares_prefix=False)


def test_what_is_configured_goes_first():
    configured = of("vllm-0.32-idle", 1024, kv_tokens=4100, max_num_seqs=8)
    assert (configured.kv_blocks, configured.max_num_seqs) == (128, 8)


def test_prompts_are_shared_only_where_prefix_caching_is_on():
    assert not capacity({"enable_prefix_caching": "False"}, 64).shares_prefix
    assert not capacity({"enable_prefix_caching": "None"}, 64).shares_prefix
    assert capacity({"enable_prefix_caching": "True"}, 64).shares_prefix
