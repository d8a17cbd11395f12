from dataclasses import replace

import pytest

from engine.arguments import Arguments
from engine.plan.budget import RefusedError
from engine.plan.cards import GIB, Hardware, find
from engine.plan.ladder import BNB_PLUGIN, STEPS, Engine, LlamaRequest, climb
from engine.plan.llama.planner import Machine
from engine.plan.planner import plan
from engine.plan.quality import Quality
from engine.plan.remedies import REMEDIES
from engine.plan.traffic import Distribution, Range, Traffic
from tests.unit.engine.plan.llama.models import llama_8b, mixture
from tests.unit.engine.plan.models import hardware, request

HOST = 64 * GIB
KINDS = ("v100", "t4", "rtx-2080-ti", "rtx-4060", "rtx-3060", "rtx-4090", "a40", "h100", "b200")
"""On these, every rung is taken that is taken on any card."""


def machine(card, count=1):
    found = find(card)
    return Machine(Hardware(found.name, count, found.total_bytes), HOST, 8)


def ladder(model="Llama-3.1-8B", card="rtx-4090", gguf=None, count=1, given=(), **asked):
    asked_request = request(model, *given, on=hardware(card, count), host_bytes=HOST)
    return climb((asked_request, *files(gguf)), machine(card, count), **asked)


def files(gguf):
    return () if gguf is None else (LlamaRequest(gguf),)


def taken(made):
    return made.rungs[made.taken]


def names(made):
    return [rung.name for rung in made.rungs]


def test_each_step_names_remedies_that_there_are():
    known = {remedy.name for remedy in REMEDIES}
    assert {name for step in STEPS for name in step.remedies} <= known


def with_awq(card, count=1, **asked):
    """Llama 70B on these cards, with a checkpoint of it that somebody quantized."""
    on = hardware(card, count)
    whole = request("Llama-3-70B", on=on, host_bytes=HOST)
    smaller = replace(whole, model="org/Llama-3-70B-AWQ", weights=whole.weights.quantized("awq"))
    return climb((whole, smaller), machine(card, count), **asked)


def test_an_alternative_is_taken_where_the_model_itself_does_not_fit():
    made = with_awq("h100")
    assert (taken(made).name, taken(made).model) == ("vLLM, alternative: Llama-3-70B-AWQ", "org/Llama-3-70B-AWQ")
    assert not taken(made).changes, "that it was named allows what it is"


def test_an_alternative_may_be_spread_over_all_cards():
    made = with_awq("rtx-4090", 4)
    assert taken(made).name == "vLLM, all cards: Llama-3-70B-AWQ"
    assert taken(made).arguments[:2] == ("--tensor-parallel-size", "4")
    assert taken(made).world == 4


def test_fp8_weights_may_be_spread_over_all_cards():
    made = with_awq("h100", 2, allowed={Quality.WEIGHTS})
    assert taken(made).name == "vLLM, alternative: Llama-3-70B-AWQ", "what was named comes before what is made here"
    two = request("Qwen3-32B", on=hardware("rtx-4090", 2))
    alone = climb((two,), machine("rtx-4090", 2), allowed={Quality.WEIGHTS}, lacking={BNB_PLUGIN})
    assert taken(alone).name == "vLLM, all cards, fp8 weights"
    assert {"--quantization", "--tensor-parallel-size"} <= set(taken(alone).arguments)


def test_what_is_missing_is_not_taken():
    asked = request("Llama-3.1-8B", on=hardware("rtx-3060", free_bytes=10 * GIB))
    both = (asked, LlamaRequest(llama_8b()))
    here = {"machine": machine("rtx-3060"), "allowed": {Quality.WEIGHTS}}
    assert taken(climb(both, **here)).name == "vLLM, 4-bit weights"
    without = climb(both, **here, lacking={BNB_PLUGIN})
    assert taken(without).engine is Engine.LLAMA
    assert {rung.lacks for rung in without.rungs} == {"", BNB_PLUGIN}
    assert climb(both, **here, lacking={BNB_PLUGIN, "llama-server"}).taken is None


def test_weights_go_to_the_host_also_where_others_hold_part_of_the_card():
    asked = request("Llama-3.1-8B", on=hardware("rtx-4090", free_bytes=14 * GIB), host_bytes=HOST)
    rung = taken(climb((asked,), machine("rtx-4090")))
    assert {"--cpu-offload-gb", "--gpu-memory-utilization"} <= set(rung.arguments)


def test_what_a_cpu_needs_of_its_environment_is_told():
    cpu = Hardware("the CPU", 1, 64 * GIB, 60 * GIB, cpu=True)
    asked = request("Llama-3.1-8B", "--max-model-len", "131072", on=cpu)
    rung = climb((asked,), Machine(cpu, 60 * GIB, 8)).rungs[0]
    assert rung.environ == (("VLLM_CPU_KVCACHE_SPACE", "17"),)
    assert (rung.fits, rung.world, rung.card) == (True, 0, 0)


def test_an_fp8_cache_is_a_rung_of_a_cpu_that_can():
    cpu = Hardware("the CPU", 1, 64 * GIB, 34 * GIB, cpu=True)
    wide = replace(cpu, wide=True)
    asked = request("Llama-3.1-8B", "--max-model-len", "131072", on=cpu)
    assert climb((asked,), Machine(cpu, 34 * GIB, 8), allowed={Quality.KV_CACHE}).taken is None
    rung = taken(climb((replace(asked, hardware=wide),), Machine(wide, 34 * GIB, 8), allowed={Quality.KV_CACHE}))
    assert rung.arguments[:2] == ("--kv-cache-dtype", "fp8")
    assert rung.environ == (("VLLM_CPU_KVCACHE_SPACE", "9"),)


def test_prompts_that_share_much_keep_what_the_card_drops_on_the_host():
    """`--kv-offloading-size` makes no model fit, so it is no rung; it comes with any rung of vLLM."""
    lengths, at_once = (Distribution(*3 * (Range(value, value),)) for value in (8000, 64))
    traffic = Traffic("trace.csv", 100, total_tokens=lengths, concurrency=at_once, hit_rate=0.6)
    asked = request("Llama-3.1-8B", on=hardware("rtx-4090"), host_bytes=HOST, traffic=traffic)
    assert "--kv-offloading-size" in taken(climb((asked,), machine("rtx-4090"))).arguments


def test_a_server_that_was_told_to_split_its_cache_keeps_the_part_of_a_slot():
    given = ("--ctx-size", "16384", "--parallel", "4", "--no-kv-unified")
    made = climb((LlamaRequest(llama_8b(), given),), machine("h100"))
    assert made.wanted == taken(made).context == 4096
    assert not {"--ctx-size", "--parallel"} & set(taken(made).arguments)


def test_the_first_that_fits_is_taken_though_others_are_faster():
    made = ladder()
    assert taken(made).name == "vLLM"
    assert any(rung.seconds < taken(made).seconds for rung in made.rungs)


def test_what_would_change_answers_is_taken_only_if_it_is_allowed():
    assert taken(ladder(card="rtx-4080")).name == "vLLM, weights partly on the host"
    made = ladder(card="rtx-4080", allowed={Quality.WEIGHTS})
    assert taken(made).name == "vLLM, fp8 weights"
    assert taken(made).arguments[:2] == ("--quantization", "fp8")


def test_a_gguf_file_is_the_way_down_where_vllm_does_not_fit():
    made = ladder(card="rtx-3060", gguf=llama_8b())
    assert (taken(made).engine, taken(made).name) == (Engine.LLAMA, "llama-server, all on the card")
    made = ladder(card="rtx-3060", gguf=llama_8b("f16"))
    assert "layers on the card" in taken(made).name


def test_the_last_rung_is_the_host_alone():
    asked = request("Llama-3.1-8B", on=hardware("rtx-3060", free_bytes=GIB), host_bytes=HOST)
    small = Machine(Hardware("rtx-3060", 1, 12 * GIB, GIB), HOST, 8)
    made = climb((asked, LlamaRequest(llama_8b())), small)
    assert taken(made).name == names(made)[-1] == "llama-server, all on the host"


def test_several_cards_are_a_rung():
    made = ladder("Qwen2.5-14B", card="rtx-3090", count=2)
    assert taken(made).name == "vLLM, all cards"
    assert "--tensor-parallel-size" in taken(made).arguments
    assert "vLLM, all cards" not in names(ladder("Qwen2.5-14B", card="rtx-3090"))


def test_the_wanted_context_is_kept_or_the_rung_is_passed_over():
    roomy = ladder(wanted=20_000)
    assert taken(roomy).context >= 20_000
    long = ladder(gguf=llama_8b(), wanted=100_000)
    assert taken(long).name != "vLLM"
    assert taken(long).context >= 100_000
    assert ladder(wanted=200_000, gguf=llama_8b()).taken is None, "no longer than the model was made for"


def test_nothing_is_given_up_on_the_way():
    plain = ladder(wanted=45_000).rungs[0]
    assert (plain.name, plain.fits, plain.context) == ("vLLM", False, 45_000)
    assert "--kv-cache-dtype" not in plain.arguments


def test_a_context_that_was_given_is_wanted_and_stays():
    made = ladder(given=("--max-model-len", "8192"))
    assert made.wanted == taken(made).context == 8192
    assert "--max-model-len" not in taken(made).arguments


def test_what_vllm_refuses_is_refused():
    with pytest.raises(RefusedError):
        ladder(given=("--max-model-len", "999999"))


def test_a_given_argument_leaves_its_rung_out():
    assert "vLLM, fp8 KV cache" not in names(ladder(given=("--kv-cache-dtype", "auto")))


def test_a_gguf_file_alone_has_the_ways_of_llama_server():
    made = climb((LlamaRequest(mixture()),), machine("rtx-3060"))
    assert {rung.engine for rung in made.rungs} == {Engine.LLAMA}
    assert "experts" in taken(made).name


def test_a_mixture_reads_only_the_experts_in_use():
    dense, mixed = (ladder(name, card="h200", count=8) for name in ("Llama-3.3-70B FP8", "Qwen3-235B-A22B"))
    by_name = [{rung.name: rung.seconds for rung in made.rungs} for made in (dense, mixed)]
    assert by_name[1]["vLLM, all cards"] < by_name[0]["vLLM, all cards"]


def test_weights_on_the_host_cross_pcie():
    rungs = {rung.name: rung for rung in ladder(card="rtx-4080").rungs}
    offloaded = rungs["vLLM, weights partly on the host"]
    assert offloaded.host >= GIB
    assert offloaded.seconds > rungs["vLLM"].seconds


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen2.5-14B", "Qwen3-32B"])
@pytest.mark.parametrize("card", KINDS)
def test_what_is_taken_of_vllm_fits_when_it_is_planned_again(model, card):
    made = ladder(model, card, allowed=set(Quality))
    if made.taken is None:
        return
    asked = request(model, *taken(made).arguments, on=hardware(card), host_bytes=HOST)
    again = plan(asked)
    assert again.asked.fits
    assert again.settings.max_model_len >= made.wanted
    assert taken(made).card <= asked.hardware.total_bytes


@pytest.mark.parametrize("card", KINDS)
def test_with_a_gguf_file_there_is_always_a_rung(card):
    made = ladder(card=card, gguf=llama_8b())
    assert taken(made).fits
    assert all(not rung.fits or not rung.allowed or rung.context < made.wanted for rung in made.rungs[: made.taken])


def test_the_arguments_are_ones_that_vllm_has():
    for rung in ladder(allowed=set(Quality), count=2).rungs:
        Arguments.parse(rung.arguments).check()
