from dataclasses import replace

import pytest

from engine.plan.overhead import GIB, MIB, Overhead, Run, Span, cpu_overhead, overhead
from tests.unit.engine.plan.models import shape

BASE = Run(max_num_batched_tokens=8192, max_num_seqs=256, capability=90)


@pytest.mark.parametrize(
    ("term", "change", "grows"),
    [
        ("forward", {"max_num_batched_tokens": 16384}, True),
        ("forward", {"tensor_parallel": 4, "world": 4}, False),
        ("sampler", {"max_num_seqs": 1024}, True),
        ("graphs", {"max_num_seqs": 512}, True),
        ("graphs", {"max_num_seqs": 8}, False),
        ("graphs", {"eager": True}, False),
        ("outside", {"world": 2, "tensor_parallel": 2}, True),
    ],
)
def test_what_each_flag_changes(term, change, grows):
    before = getattr(overhead(shape("Llama-3.1-8B"), BASE), term)
    after = getattr(overhead(shape("Llama-3.1-8B"), replace(BASE, **change)), term)
    assert (after.high > before.high) is grows
    assert after.high != before.high
    assert after.low <= after.high


def test_the_figures_of_a_known_case():
    """Llama-3-8B, 8192 tokens a step: three widths of 14,336 and two to five of 4,096, of two bytes each."""
    found = overhead(shape("Llama-3.1-8B"), BASE)
    assert found.forward == Span(8192 * 2 * (3 * 14336 + 2 * 4096), 8192 * 2 * (3 * 14336 + 5 * 4096))
    hidden = 8192 * 4096 * 2
    assert found.sampler == Span(256 * 128256 * 14 + hidden, 256 * 128256 * 40 + 2 * hidden)


def test_the_peak_is_of_the_layers_or_of_the_sampler():
    spans = {"graphs": Span(1, 1), "outside": Span(2, 3), "encoder": Span(0, 0)}
    both = Overhead(Span(10, 20), Span(15, 18), graphs_counted=True, **spans)
    assert both.activation == Span(15, 20)
    assert both.total == Span(18, 24)
    assert replace(both, graphs_counted=False).total == Span(17, 23)


def test_a_mixture_takes_room_for_its_experts_and_latent_attention_for_its_context():
    dense, mixed = shape("Qwen3-32B"), shape("Qwen3-235B-A22B")
    assert overhead(mixed, BASE).forward.high > overhead(dense, BASE).forward.high / 2
    assert overhead(shape("DeepSeek-R1"), replace(BASE, tensor_parallel=8)).forward.high > GIB


def test_an_encoder_for_images_widens_the_range():
    found = overhead(shape("Gemma-3-27B"), BASE)
    assert found.encoder.high > 0
    assert found.activation.high - found.activation.low > found.encoder.high


def test_blackwell_captures_larger_graphs():
    several = replace(BASE, max_num_seqs=1024)
    hopper, blackwell = (overhead(shape("Qwen3-8B"), replace(several, capability=each)).graphs for each in (90, 100))
    assert blackwell.high > hopper.high
    assert overhead(shape("Qwen3-8B"), replace(several, capability=120)).graphs == hopper


def test_a_cpu_has_no_graphs_but_a_process():
    found = cpu_overhead(shape("Llama-3.1-8B"), 2048, 128)
    assert found.graphs == Span(0, 0)
    assert found.outside.low >= 1000 * MIB
