from dataclasses import replace

import pytest

from engine.plan.budget import defaults, measure
from engine.plan.cards import GIB, Hardware, Process
from engine.plan.planner import Verdict, plan
from engine.plan.traffic import Distribution, Range, Traffic
from tests.unit.engine.plan.models import hardware, request


def exactly(p50, p99, most):
    return Distribution(*(Range(value, value) for value in (p50, p99, most)))


def traffic(p99=2000, most=3000, at_once=20, hit_rate=None):
    return Traffic(
        "events.jsonl", 5000, total_tokens=exactly(500, p99, most), concurrency=exactly(5, at_once, at_once * 2),
        hit_rate=hit_rate,
    )  # fmt: skip


def names(made):
    return [change.remedy for change in made.changes]


def test_what_fits_is_left_alone():
    made = plan(request("Llama-3.1-8B"))
    assert made.verdict is Verdict.FITS
    assert made.words == ()


def test_a_context_too_long_for_a_4090_is_shortened_to_what_surely_fits():
    made = plan(request("Llama-3.1-8B", on=hardware("rtx-4090")))
    assert made.verdict is Verdict.CHANGES
    assert names(made) == ["context"]
    length = made.settings.max_model_len
    assert made.words == ("--max-model-len", str(length))
    assert 16_000 < length < made.budget.tokens.low + 256
    assert "131,072" in made.changes[0].reason


def test_an_automatic_length_is_vllms_to_choose():
    made = plan(request("Llama-3.1-8B", "--max-model-len", "auto", on=hardware("rtx-4090")))
    assert made.verdict is Verdict.FITS
    assert 16_000 < made.settings.max_model_len < 40_000


def test_real_traffic_decides_the_context():
    made = plan(request("Llama-3.1-8B", on=hardware("rtx-4090"), traffic=traffic()))
    assert made.settings.max_model_len == 3072, "the longest request seen, rounded up"
    assert "events.jsonl" in made.changes[0].reason
    assert made.settings.max_num_seqs == 40, "20 at once, and as many more"


def test_a_context_is_never_shorter_than_what_99_of_100_requests_need():
    made = plan(request("Llama-3.1-8B", on=hardware("rtx-4090"), traffic=traffic(p99=60_000, most=120_000)))
    assert made.verdict is Verdict.CHANGES
    assert made.settings.max_model_len >= 60_000
    assert "fp8 KV cache" in names(made) or "fp8 weights" in names(made)


def test_llama_70b_does_not_fit_one_80_gb_card_in_bf16_and_fp8_is_offered():
    asked = request("Llama-3-70B")
    made = plan(asked)
    assert not made.asked.fits
    assert not made.asked.may_fit
    assert names(made)[0] == "fp8 weights"
    assert made.words[:2] == ("--quantization", "fp8")
    sizes = {size.scheme: size.bytes / GIB for size in made.sizes}
    assert sizes["fp8"] == pytest.approx(67.7, abs=0.5), "nvidia/Llama-3.3-70B-Instruct-FP8 loads 67.7 GiB"
    assert sizes["awq"] == pytest.approx(37.0, abs=1.5), "-AWQ checkpoints are 39.8 GB"


def test_where_nothing_helps_the_nearest_that_fits_is_named():
    made = plan(request("Llama-3-70B", on=hardware("rtx-4090")))
    assert made.verdict is Verdict.NOT
    assert made.changes == ()
    assert any(near.startswith("8 x rtx-4090, --tensor-parallel-size 8") for near in made.nearest)
    assert any("b200" in near for near in made.nearest)


def test_cards_that_are_there_are_shared_by_heads_that_divide():
    made = plan(request("Qwen2.5-14B", "--quantization", "none", on=hardware("l4", 2)))
    assert names(made)[0] == "tensor and pipeline parallelism"
    assert made.words[:2] == ("--tensor-parallel-size", "2")
    assert "PCIe" in made.changes[0].reason
    assert plan(request("Qwen2.5-7B", on=hardware("h100", 8), all_cards=True)).settings.tensor_parallel == 4


def test_what_others_hold_lowers_the_share():
    busy = hardware("h100", free_bytes=40 * GIB, measured=True, processes=(Process(7, 39 * GIB),))
    made = plan(request("Llama-3.1-8B", "--max-model-len", "8192", on=busy))
    assert made.verdict is Verdict.CHANGES
    assert names(made) == ["measured free memory"]
    assert made.settings.utilization * made.asked.total < 40 * GIB
    assert made.budget.fits


def test_the_share_is_raised_for_a_card_of_ones_own_and_never_to_the_whole():
    made = plan(request("Qwen3-32B", "--max-model-len", "8192", "--max-num-seqs", "64"))
    shares = [change.words[1] for change in made.changes if change.words[:1] == ("--gpu-memory-utilization",)]
    assert shares in ([], ["0.95"])
    assert made.settings.utilization <= 0.95
    desktop = plan(request("Llama-3.1-8B", on=hardware("rtx-4090")))
    assert "utilization" not in names(desktop)


def test_tiering_says_what_host_memory_it_takes():
    given = ("--quantization", "none", "--max-model-len", "4096")
    made = plan(request("Qwen2.5-14B", *given, on=hardware("l4"), host_bytes=64 * GIB))
    assert names(made)[0] == "weights in host memory"
    assert made.settings.cpu_offload_bytes > 0
    assert "host memory" in made.changes[0].reason
    poor = plan(request("Qwen2.5-14B", *given, on=hardware("l4"), host_bytes=GIB))
    assert poor.verdict is Verdict.NOT


def test_shared_prefixes_that_fall_out_of_the_cache_are_kept_by_the_host():
    busy = traffic(p99=8000, most=9000, at_once=400, hit_rate=0.6)
    made = plan(request("Llama-3.1-8B", traffic=busy))
    assert names(made) == ["sequences", "KV cache in host memory"]
    assert "60%" in made.changes[-1].reason
    rare = plan(request("Llama-3.1-8B", traffic=replace(busy, hit_rate=0.1)))
    assert "KV cache in host memory" not in names(rare)


def test_a_cpu_gets_more_room_for_its_cache():
    machine = Hardware("the CPU", 1, 64 * GIB, 60 * GIB, cpu=True)
    made = plan(replace(request("Llama-3.1-8B", on=machine), environ={}))
    assert made.verdict is Verdict.CHANGES
    assert made.environ == {"VLLM_CPU_KVCACHE_SPACE": "17"}
    small = plan(request("Llama-3.1-8B", on=Hardware("the CPU", 1, 16 * GIB, 14 * GIB, cpu=True)))
    assert small.verdict is Verdict.NOT


def test_what_may_fit_is_said_and_does_not_count():
    asked = request("Llama-3.1-8B", "--max-model-len", "40000", on=hardware("rtx-4090"))
    made = plan(asked)
    assert made.asked.may_fit
    assert not made.asked.fits
    assert any("may start or may not" in note for note in made.notes)


MODELS = ("Llama-3.1-8B", "Llama-3-70B", "DeepSeek-R1", "Qwen2.5-7B AWQ", "gpt-oss-20b", "Gemma-3-27B")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("card", ["t4", "rtx-4090", "a100", "h200"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_plan_that_says_it_fits_does(model, card, count):
    """Whatever is proposed, planned again with exactly those arguments, fits without a change."""
    asked = request(model, on=hardware(card, count))
    made = plan(asked)
    if made.verdict is Verdict.NOT:
        assert made.budget == measure(asked, defaults(asked))
        return
    assert made.budget.fits
    kinds = {change.checkpoint for change in made.changes} - {""}
    if not kinds:
        again = plan(request(model, *made.words, on=hardware(card, count)))
        assert again.verdict is Verdict.FITS
        assert again.settings == made.settings
