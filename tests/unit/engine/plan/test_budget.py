from dataclasses import replace

import pytest

from engine.arguments import ArgumentError
from engine.plan.budget import CONTEXT_BYTES, RefusedError, defaults, divides, measure, widest
from engine.plan.cards import GIB, Hardware
from engine.plan.shape import ModelShape
from tests.unit.engine.plan.models import hardware, request, shape

KIB = 1024


@pytest.mark.parametrize(
    ("model", "kib", "settings"),
    [
        ("Llama-3.1-8B", 128, ()),
        ("Llama-3.1-8B", 64, ("--kv-cache-dtype", "fp8")),
        ("Llama-3-70B", 320, ()),
        ("Qwen2.5-7B", 56, ()),
        ("DeepSeek-R1", 61 * 576 * 2 / KIB, ()),
    ],
)
def test_kv_bytes_per_token_of_known_models(model, kib, settings):
    asked = request(model, *settings)
    assert measure(asked, defaults(asked)).bytes_per_token == kib * KIB


def test_the_rule_of_thumb_by_hidden_size_is_four_times_too_high():
    llama = shape("Llama-3.1-8B")
    asked = request("Llama-3.1-8B")
    assert 2 * llama.layers * llama.hidden_size * 2 == 4 * measure(asked, defaults(asked)).bytes_per_token


def test_latent_attention_is_not_divided_over_ranks_and_heads_are():
    def at(model, ranks):
        asked = request(model, on=hardware("h200", 8))
        return measure(asked, replace(defaults(asked), tensor_parallel=ranks)).bytes_per_token

    assert at("DeepSeek-R1", 8) == at("DeepSeek-R1", 1)
    assert at("Llama-3-70B", 8) == at("Llama-3-70B", 1) / 8


def test_the_budget_adds_up():
    asked = request("Llama-3.1-8B")
    found = measure(asked, defaults(asked))
    assert found.requested == round(0.92 * found.total)
    assert found.weights + found.overhead.total.high + found.kv.low == found.requested
    assert found.weights + found.overhead.total.low + found.kv.high == found.requested
    assert found.tokens.low < found.tokens.high
    assert found.fits


@pytest.mark.parametrize(
    ("card", "batched", "seqs"),
    [("h100", 8192, 1024), ("a100", 2048, 256), ("rtx-4090", 2048, 256), ("b200", 16384, 1024)],
)
def test_defaults_are_vllms_by_card(card, batched, seqs):
    found = defaults(request("Llama-3.1-8B", on=hardware(card)))
    assert (found.max_num_batched_tokens, found.max_num_seqs, found.utilization) == (batched, seqs, 0.92)


def test_what_was_given_is_taken():
    flags = ("--max-model-len=4k", "--gpu-memory-utilization", "0.5", "--max-num-seqs", "7", "--enforce-eager")
    found = defaults(request("Llama-3.1-8B", *flags, "--cpu-offload-gb", "2", "--dtype", "half"))
    assert (found.max_model_len, found.utilization, found.max_num_seqs, found.eager) == (4000, 0.5, 7, True)
    assert (found.cpu_offload_bytes, found.dtype) == (2 * GIB, "half")


@pytest.mark.parametrize(
    ("model", "given", "cards", "said"),
    [
        ("Qwen2.5-7B", ("-tp", "8"), 8, r"8 does not divide the model's 28 attention heads .*1, 2, 4 would do"),
        ("Llama-3.1-8B", ("-tp", "4"), 2, r"needs 4 cards, and there are 2: say --gpus 4"),
        ("Llama-3.1-8B", ("-pp", "40"), 64, r"40 is more than the model's 32 layers"),
        ("Llama-3.1-8B", ("--max-model-len", "200000"), 1, r"200,000 is more than .*131,072"),
        ("Llama-3.1-8B", ("--max-num-batched-tokens", "64"), 1, r"64 is less than --max-num-seqs 1024"),
        ("Llama-3.1-8B", ("-tp", "0"), 1, r"0 x 1 ranks: parallel sizes begin with 1"),
        ("Llama-3.1-8B", ("-pp", "-1"), 1, r"1 x -1 ranks"),
    ],
)
def test_what_vllm_refuses_is_refused_before_any_arithmetic(model, given, cards, said):
    with pytest.raises(RefusedError, match=said):
        defaults(request(model, *given, on=hardware("h100", cards)))


@pytest.mark.parametrize(
    "given", [("--kv-cache-dtype", "int3"), ("--dtype", "float8"), ("--mamba-ssm-cache-dtype", "x")]
)
def test_a_type_of_unknown_size_is_named(given):
    with pytest.raises(ArgumentError, match=" ".join(given)):
        defaults(request("Llama-3.1-8B", *given, on=hardware("h100")))


def test_the_states_of_a_recurrent_model_are_kept_in_the_type_that_was_given():
    config = {"model_type": "mamba", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4}
    recurrent = ModelShape.from_config(
        {**config, "vocab_size": 1000, "state_size": 16, "conv_kernel": 4, "torch_dtype": "bfloat16"}
    )

    def needed(*flags):
        asked = replace(request("Llama-3.1-8B", *flags), shape=recurrent)
        return measure(asked, defaults(asked)).needed

    assert needed("--mamba-ssm-cache-dtype", "float32") > needed()


def test_tensor_parallelism_needs_heads_that_divide():
    assert [ranks for ranks in range(1, 9) if divides(shape("Qwen2.5-7B"), ranks)] == [1, 2, 4]
    assert widest(shape("Qwen2.5-7B"), 8) == 4
    assert widest(shape("Llama-3-70B"), 8) == 8


def test_memory_that_others_hold_is_missing_even_if_the_model_is_small():
    busy = hardware("h100", free_bytes=10 * GIB, measured=True)
    found = measure(asked := request("Qwen2.5-7B", on=busy), defaults(asked))
    assert found.short == found.requested - 10 * GIB + CONTEXT_BYTES


def test_a_cpu_gets_the_space_that_its_variable_says():
    machine = Hardware("the CPU", 1, 64 * GIB, 60 * GIB, cpu=True)
    asked = request("Llama-3.1-8B", on=machine)
    assert defaults(asked).kv_bytes == 8 * GIB
    said = replace(asked, environ={"VLLM_CPU_KVCACHE_SPACE": "20"})
    assert measure(said, defaults(said)).kv.low == 20 * GIB
    assert measure(said, defaults(said)).fits


def test_a_cache_that_leaves_no_room_for_the_weights_does_not_fit():
    machine = Hardware("the CPU", 1, 24 * GIB, 20 * GIB, cpu=True)
    asked = replace(request("Llama-3.1-8B", on=machine), environ={"VLLM_CPU_KVCACHE_SPACE": "18"})
    assert not measure(asked, defaults(asked)).fits
