import dataclasses

import pytest

from engine.plan.llama.memory import measure
from engine.plan.llama.settings import LlamaSettings
from tests.unit.engine.plan.llama.models import llama_8b, mixture, model

MIB = 2**20
ALL = 33


def settings(gpu_layers=ALL, context=8192, **more):
    return LlamaSettings(gpu_layers, context, **more)


def weights(memory):
    return [part.weights for part in (*memory.cards, memory.host)]


def kv(memory):
    return [part.kv for part in (*memory.cards, memory.host)]


def test_a_token_of_llama_8b_takes_128_kib():
    memory = measure(llama_8b(), settings())
    assert memory.bytes_per_token == 128 * 1024
    assert kv(memory) == [8192 * 128 * 1024, 0]


@pytest.mark.parametrize(("kind", "share"), [("q8_0", 34 / 64), ("q4_0", 18 / 64), ("f32", 2.0)])
def test_a_quantized_cache_takes_its_blocks(kind, share):
    memory = measure(llama_8b(), settings(cache_type_k=kind, cache_type_v=kind))
    assert kv(memory) == [8192 * 128 * 1024 * share, 0]


def test_the_input_stays_on_the_host_whatever_is_on_the_card():
    found = llama_8b()
    for layers in (ALL, 20, 1):
        memory = measure(found, settings(layers))
        assert sum(weights(memory)) == found.weights
    assert weights(measure(found, settings(ALL)))[1] == found.input
    assert weights(measure(found, settings(1)))[0] == found.output, "the output is the first to go to the card"
    assert weights(measure(found, settings(0))) == [0, found.weights]


def test_each_layer_takes_its_cache_along():
    found = llama_8b()
    one = measure(found, settings(2))
    assert weights(one)[0] == found.output + found.layers[-1].weights
    assert kv(one) == [8192 * 4096, 31 * 8192 * 4096]
    assert kv(measure(found, settings(kv_on_host=True))) == [0, 32 * 8192 * 4096]


def test_a_tied_output_on_a_card_is_there_twice():
    found = model(tied=True)
    assert sum(weights(measure(found, settings(5)))) == found.weights + found.tied
    assert sum(weights(measure(found, settings(0)))) == found.weights


def test_experts_may_stay_on_the_host_alone():
    found = mixture()
    whole, some = (measure(found, settings(49, host_experts=count)) for count in (0, 10))
    moved = sum(layer.experts for layer in found.layers[:10])
    assert weights(some) == [weights(whole)[0] - moved, weights(whole)[1] + moved]
    assert kv(some) == kv(whole)


def test_several_cards_share_the_layers_in_order():
    found = llama_8b()
    memory = measure(found, settings(), cards=3)
    assert sum(weights(memory)) == found.weights
    assert [part.kv // (8192 * 4096) for part in memory.cards] == [11, 11, 10], "the last has the output"
    assert memory.fullest == max(part.total for part in memory.cards)


def test_a_window_is_kept_for_every_slot_and_a_step():
    found = model("gemma3", 13, attention__sliding_window=512)
    row = 2 * 2 * 64
    assert kv(measure(found, settings(14)))[0] == row * (2 * 8192 + 11 * 2560)
    assert kv(measure(found, settings(14, swa_full=True)))[0] == row * 13 * 8192
    assert measure(found, settings(14)).bytes_per_token == 2 * row


def test_a_state_is_kept_for_each_slot_however_long_the_context():
    found = model("mamba2", ssm__conv_kernel=4, ssm__inner_size=512, ssm__state_size=16)
    short, long, many = (
        measure(found, settings(5, context, slots=slots)) for context, slots in ((512, 4), (65536, 4), (512, 8))
    )
    assert kv(short) == kv(long) == [4 * 4 * 4 * (3 * 512 + 16 * 512), 0]
    assert kv(many)[0] == 2 * kv(short)[0]


def test_a_server_without_cards_has_all_on_the_host():
    memory = measure(llama_8b(), settings(0), cards=0)
    assert memory.cards == ()
    assert memory.fullest == 0
    assert memory.host.weights == llama_8b().weights


def test_old_prompts_are_told_apart():
    memory = measure(llama_8b(), settings(cache_ram=100))
    assert memory.old_prompts == 100 * MIB
    assert memory.host == measure(llama_8b(), settings(cache_ram=0)).host
    assert dataclasses.replace(memory, old_prompts=0) == measure(llama_8b(), settings(cache_ram=0))
