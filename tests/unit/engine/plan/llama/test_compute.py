import dataclasses

import pytest

from engine.plan.llama.compute import Share, buffer
from engine.plan.llama.settings import LlamaSettings
from tests.unit.engine.plan.llama.models import llama_8b, mixture, model

MIB = 2**20
CARD = Share(cards=1, on_cards=True, on_host=False, copied=0)


def settings(**more):
    return LlamaSettings(**{"gpu_layers": 33, "context": 8192} | more)


def test_it_grows_with_the_step_and_is_a_range():
    small, large = (buffer(llama_8b(), settings(ubatch=ubatch), CARD) for ubatch in (128, 512))
    assert 0 < small.low < large.low < large.high
    assert small.high < large.high


def test_the_logits_of_a_whole_step_are_within_it():
    """A llama-server of 2025 printed 258.5 MiB for Llama 3 8B with all layers on a card: logits, and a vector."""
    found = buffer(llama_8b(), settings(context=4096), CARD)
    assert found.low / MIB < 258.5 < found.high / MIB


@pytest.mark.parametrize(
    ("feed_forward", "experts", "printed"), [(1536, (0, 0), 18.02), (4096, (0, 0), 33.02), (0, (8, 512), 33.02)]
)
def test_the_lower_end_is_near_what_was_printed_on_a_cpu(feed_forward, experts, printed):
    """By a llama-server of build 11549 with 4,096 tokens, for models 512 wide: with logits of its slots alone."""
    used, width = experts
    found = dataclasses.replace(
        llama_8b(), hidden=512, heads=8, head_size=64, vocabulary=0, feed_forward=feed_forward, experts_used=used,
        expert_width=width,
    )  # fmt: skip
    host = Share(cards=0, on_cards=False, on_host=True, copied=0, host=True)
    assert buffer(found, settings(context=4096), host).low / MIB == pytest.approx(printed, rel=0.06)


def test_without_fused_attention_a_step_keeps_its_scores():
    fused, plain = (buffer(llama_8b(), settings(flash=flash), CARD) for flash in (True, False))
    scores = 8192 * 512 * 32 * 4
    assert plain.low - fused.low > 0.9 * scores
    assert plain.high - fused.high > scores


def test_masks_grow_with_the_context_and_a_window_has_its_own():
    short, long = (buffer(llama_8b(), settings(context=context), CARD) for context in (8192, 65536))
    assert long.low - short.low > 0.9 * (65536 - 8192) * 512 * 2
    windowed = model("gemma3", 13, attention__sliding_window=512)
    assert buffer(windowed, settings(), CARD).low > buffer(model("gemma", 13), settings(), CARD).low


def test_what_a_card_copies_of_the_host_is_the_upper_ends():
    alone, copying = (
        buffer(llama_8b(), settings(), Share(1, on_cards=True, on_host=copied > 0, copied=copied))
        for copied in (0, 100 * MIB)
    )
    assert copying.low < alone.low, "a part of the layers may be without the widest"
    assert copying.high == alone.high + 100 * MIB


def test_several_cards_keep_copies_of_the_inputs():
    one, two = (
        buffer(llama_8b(), settings(), Share(cards, on_cards=True, on_host=False, copied=0)) for cards in (1, 2)
    )
    assert two.high > one.high


def test_a_card_without_layers_has_none():
    assert buffer(llama_8b(), settings(), Share(1, on_cards=False, on_host=True, copied=0)).high == 0


def test_the_host_of_a_model_on_cards_has_inputs_and_outputs_alone():
    host = buffer(llama_8b(), settings(), CARD.of_host())
    assert host.low == 4 * 128256 * 4
    assert host.high < buffer(llama_8b(), settings(), CARD).low
    part = buffer(llama_8b(), settings(), Share(1, on_cards=True, on_host=True, copied=0).of_host())
    assert part.high > host.high


def test_experts_in_use_are_side_by_side():
    assert buffer(mixture(), settings(), CARD).low > 3 * 8 * 768 * 512 * 4 * 0.9
