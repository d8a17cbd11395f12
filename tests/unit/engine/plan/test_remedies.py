import pytest

from engine.plan.budget import defaults, measure
from engine.plan.cards import GIB
from engine.plan.planner import plan
from engine.plan.remedies import REMEDIES
from engine.plan.remedy import Situation, Stage
from engine.plan.traffic import Distribution, Range, Traffic
from tests.unit.engine.plan.models import hardware, request

ALWAYS_SAME = Distribution(Range(2000, 2000), Range(2000, 2000), Range(2000, 2000))
TRAFFIC = Traffic("trace.csv", 100, total_tokens=ALWAYS_SAME, concurrency=ALWAYS_SAME, hit_rate=0.9)


def test_the_order_is_the_practitioners():
    assert [remedy.name for remedy in REMEDIES] == [
        "measured free memory",
        "KV cache of a CPU",
        "utilization",
        "context",
        "sequences",
        "fp8 KV cache",
        "fp8 weights",
        "AWQ weights",
        "GPTQ weights",
        "bitsandbytes weights",
        "tensor and pipeline parallelism",
        "weights in host memory",
        "KV cache in host memory",
    ]
    assert all(remedy.flags for remedy in REMEDIES)


@pytest.mark.parametrize(
    ("card", "remedy", "offered"),
    [
        ("a100", "fp8 KV cache", True),
        ("t4", "fp8 KV cache", False),
        ("t4", "AWQ weights", True),
        ("v100", "AWQ weights", False),
        ("v100", "bitsandbytes weights", True),
        ("t4", "fp8 weights", True),
        ("v100", "fp8 weights", False),
    ],
)
def test_a_remedy_is_for_cards_that_have_its_kernels(card, remedy, offered):
    asked = request("Qwen2.5-7B", "--gpu-memory-utilization", "0.95", "--max-num-seqs", "16", on=hardware(card, 2))
    settings = defaults(asked)
    now = Situation(asked, settings, measure(asked, settings))
    if card == "t4" and "KV" in remedy:
        assert now.budget.weights < now.budget.total
    (found,) = [each for each in REMEDIES if each.name == remedy]
    assert (found.propose(now) is not None) is offered


def test_fp8_on_a_card_that_computes_in_16_bits_says_so():
    asked = request("Llama-3-70B", on=hardware("a100"))
    now = Situation(asked, defaults(asked), measure(asked, defaults(asked)))
    (fp8,) = [each for each in REMEDIES if each.name == "fp8 weights"]
    proposal = fp8.propose(now)
    assert proposal
    assert "computed in 16 bits on this card" in proposal.reason


def test_weights_that_are_quantized_are_not_quantized_again():
    asked = request("DeepSeek-R1", on=hardware("h200", 8))
    now = Situation(asked, defaults(asked), measure(asked, defaults(asked)))
    assert not [each.name for each in REMEDIES if each.flags == ("--quantization",) and each.propose(now)]


def test_reshaping_keeps_what_a_proposal_changed():
    asked = request("Llama-3-70B", on=hardware("h100", 4))
    now = Situation(asked, defaults(asked), measure(asked, defaults(asked)))
    for remedy in REMEDIES:
        proposal = remedy.propose(now) if remedy.stage is Stage.RESHAPE else None
        if proposal:
            assert proposal.settings != now.settings
            assert now.then(proposal.settings).budget.kv.low > now.budget.kv.low


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.name)
def test_no_remedy_touches_what_was_given(remedy):
    values = {"--gpu-memory-utilization": "0.9", "--max-model-len": "8192", "--kv-cache-dtype": "auto"}
    for flag in remedy.flags:
        value = values.get(flag, "fp8" if flag == "--quantization" else "1")
        busy = hardware("rtx-4090", 4, free_bytes=20 * GIB, measured=True)
        given = request("Llama-3-70B", flag, value, on=busy, traffic=TRAFFIC)
        assert remedy.name not in [change.remedy for change in plan(given).changes]


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.name)
def test_every_remedy_has_a_condition(remedy):
    """None is proposed to a model that fits a card of its own many times."""
    asked = request("Qwen2.5-7B", on=hardware("h200"))
    now = Situation(asked, defaults(asked), measure(asked, defaults(asked)))
    if remedy.always:
        assert remedy.propose(now) is None
    assert remedy.condition
