import pytest

from engine.plan.layers import Kind, LayerCache
from engine.plan.pages import Device, Page, Paging, pages, resolved_dtype, resolved_kv_dtype, state_bytes, token_bytes
from engine.plan.shape import ModelShape
from engine.plan.states import StateTensor

HEADS = LayerCache(0, Kind.FULL, 8, 128, 128)
LATENT = LayerCache(0, Kind.MLA, 1, 576, 0)


def paging(
    kv_cache_dtype: str = "auto", *, ranks: int = 1, state_dtype: str = "auto", block: int | None = None
) -> Paging:
    return Paging(ranks, kv_cache_dtype, "bfloat16", state_dtype, block, 16, Device.CUDA)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "expected"),
    [
        ("auto", 8 * 256 * 2),
        ("float32", 8 * 256 * 4),
        ("fp8", 8 * 256),
        ("fp8_e5m2", 8 * 256),
        ("fp8_per_token_head", 8 * (256 + 8)),
        ("int8_per_token_head", 8 * (256 + 8)),
        ("int4_per_token_head", 8 * (128 + 8)),
        ("nvfp4", 8 * 2 * (64 + 8)),
    ],
)
def test_a_tokens_bytes_follow_from_its_type(kv_cache_dtype: str, expected: int) -> None:
    assert token_bytes(HEADS, paging(kv_cache_dtype)) == expected


@pytest.mark.parametrize(("ranks", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_a_rank_has_its_share_of_the_heads_and_at_least_one(ranks: int, heads: int) -> None:
    assert token_bytes(HEADS, paging(ranks=ranks)) == heads * 256 * 2


def test_a_latent_is_whole_on_every_rank() -> None:
    assert {token_bytes(LATENT, paging(ranks=ranks)) for ranks in (1, 4, 8)} == {1152}


def test_a_sparse_latent_is_packed_with_its_scales() -> None:
    assert token_bytes(LATENT, paging("fp8"), sparse=True) == 656
    assert token_bytes(LATENT, paging("fp8")) == 576
    assert token_bytes(LATENT, paging(), sparse=True) == 1152


def test_a_state_is_of_the_models_type_unless_it_or_the_flag_says_otherwise() -> None:
    state = (StateTensor(100), StateTensor(1000, dtype=""), StateTensor(10, dtype="float32"))
    assert state_bytes(state, paging()) == 200 + 2000 + 40
    assert state_bytes(state, paging(state_dtype="float32")) == 200 + 4000 + 40
    assert state_bytes(state, paging(state_dtype="float16")) == 200 + 2000 + 20


@pytest.mark.parametrize(
    ("stored", "asked", "runs"),
    [
        ("float32", "auto", "bfloat16"),
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float16"),
        ("float32", "float32", "float32"),
        ("bfloat16", "half", "float16"),
    ],
)
def test_the_type_a_model_runs_in(stored: str, asked: str, runs: str) -> None:
    assert resolved_dtype(_shape(torch_dtype=stored), asked) == runs


def test_a_checkpoint_may_ask_for_fp8_keys_and_values() -> None:
    quantized = _shape(quantization_config={"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"})
    assert resolved_kv_dtype(quantized, "auto") == "fp8"
    assert resolved_kv_dtype(quantized, "bfloat16") == "bfloat16"
    assert resolved_kv_dtype(_shape(), "auto") == "auto"


def test_a_block_of_a_hybrid_holds_a_state_and_the_state_is_padded_to_it() -> None:
    shape = _shape(
        model_type="jamba",
        num_hidden_layers=8,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        attn_layer_period=8,
        attn_layer_offset=4,
    )
    found = pages(shape, shape.caches, paging())
    state = (1536 + 512 * 16) * 2
    attention = 2 * 64 * 2  # of a token: 2 heads, 32 + 32 elements, 2 bytes
    blocks = -(-state // (16 * attention))
    assert {(page.kind, page.tokens, page.bytes) for page in found} == {
        (Kind.FULL, 16 * blocks, 16 * blocks * attention),
        (Kind.STATE, 16 * blocks, 16 * blocks * attention),
    }
    assert {page.content for page in found if page.kind is Kind.STATE} == {state}


def test_what_keeps_nothing_has_no_page() -> None:
    shape = _shape(model_type="gemma3n_text", head_dim=32, num_hidden_layers=10, num_kv_shared_layers=4)
    assert [page.layer for page in pages(shape, shape.caches, paging())] == [0, 1, 2, 3, 4, 5]


def test_a_window_takes_whole_kernel_blocks() -> None:
    shape = _shape(model_type="mistral", sliding_window=64)
    (page, *_) = pages(shape, shape.caches, paging(block=40))
    assert isinstance(page, Page)
    assert page.tokens == 32


def _shape(**keys: object) -> ModelShape:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "torch_dtype": "bfloat16",
    }
    return ModelShape.from_config({**config, **keys})
