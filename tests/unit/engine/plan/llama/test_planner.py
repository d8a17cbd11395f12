import pytest

from engine.plan.cards import GIB, Hardware, find
from engine.plan.llama.planner import CARD_KEPT, SHORTEST, LlamaVerdict, Machine, Wishes, plan
from engine.plan.llama.settings import GivenError
from tests.unit.engine.plan.llama.models import llama_8b, mixture, model


def machine(card="rtx-3060", count=1, free=None, host=64, cores=8):
    found = find(card)
    hardware = Hardware(found.name, count, found.total_bytes, free)
    return Machine(hardware, None if host is None else host * GIB, cores)


def cpu(gib):
    return Machine(Hardware("the CPU", 1, gib * GIB, gib * GIB, cpu=True), gib * GIB, 8)


def names(made):
    return [rung.name for rung in made.rungs]


def test_what_fits_on_the_card_gets_it_whole():
    made = plan(llama_8b(), machine())
    assert made.verdict is LlamaVerdict.FITS
    assert made.settings.gpu_layers == 33
    assert made.settings.context > 30_000, "and its KV cache what is left"
    assert made.settings.threads is None


def test_the_rungs_go_from_the_card_to_the_host():
    assert [name.split(" of ")[-1] for name in names(plan(llama_8b(), machine()))] == [
        "all on the card",
        "8 bits",
        "KV cache on the host",
        "33 layers on the card",
        "all on the host",
    ]
    assert "experts of 1 layers on the host" in names(plan(mixture(), machine("rtx-3090")))


def test_a_model_too_large_for_the_card_is_split():
    made = plan(llama_8b("f16"), machine())
    assert made.verdict is LlamaVerdict.SPLIT
    assert 1 < made.settings.gpu_layers < 33
    assert made.settings.context == SHORTEST
    assert made.settings.threads == 8
    assert made.nearest == "rtx-4080" or find(made.nearest).total_bytes > find("rtx-3060").total_bytes
    more = plan(llama_8b("f16"), machine(), Wishes(given=("-ngl", str(made.settings.gpu_layers + 1))))
    assert more.verdict is LlamaVerdict.NOT, "one more layer would not fit"


def test_of_a_mixture_the_experts_go_to_the_host_first():
    made = plan(mixture(), machine())
    assert made.settings.gpu_layers == 49
    assert 0 < made.settings.host_experts < 48
    rungs = {rung.name.split()[0]: rung for rung in made.rungs}
    part = next(rung for rung in made.rungs if "of 49 layers" in rung.name)
    assert made.rung.seconds < part.seconds < rungs["all"].seconds or made.rung.seconds < part.seconds


def test_without_room_on_the_card_it_is_the_host_alone():
    made = plan(llama_8b(), machine(free=CARD_KEPT // 2))
    assert made.verdict is LlamaVerdict.HOST
    assert made.settings.gpu_layers == 0
    assert "--device" in made.arguments()


def test_a_machine_without_cards_has_the_host():
    made = plan(llama_8b(), cpu(16))
    assert (made.verdict, names(made), made.nearest) == (LlamaVerdict.FITS, ["all on the host"], "")
    assert made.settings.context == 4 * SHORTEST


def test_what_fits_nowhere_is_said_with_what_is_missing():
    made = plan(llama_8b("f16"), machine(host=8))
    assert made.verdict is LlamaVerdict.NOT
    assert made.rung.short > 0
    assert all(not rung.fits for rung in made.rungs if rung.allowed)


def test_a_host_that_nobody_measured_is_no_bound():
    assert plan(llama_8b("f16"), machine(host=None)).verdict is LlamaVerdict.SPLIT


def test_a_wished_context_is_kept_before_layers_stay_on_the_card():
    made = plan(llama_8b(), machine(), Wishes(context=65536))
    assert made.settings.context >= 65536
    assert made.verdict is LlamaVerdict.SPLIT
    assert plan(llama_8b(), machine(), Wishes(context=16384)).settings.context == 16384


def test_a_context_over_the_models_own_is_not_planned_for():
    assert plan(model(), machine(), Wishes(context=100_000)).settings.context == 8192


def test_a_small_cache_is_taken_only_where_it_is_allowed():
    wishes = Wishes(context=65536)
    small = next(rung for rung in plan(llama_8b(), machine(), wishes).rungs if rung.name == "KV cache of 8 bits")
    assert small.fits
    assert not small.allowed
    allowed = plan(llama_8b(), machine(), Wishes(context=65536, small_cache=True))
    assert allowed.rung.name == "KV cache of 8 bits"
    assert "--flash-attn" in allowed.arguments()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("-c 8192 -np 2", {"context": 8192, "slots": 2}),
        ("-ngl 10", {"gpu_layers": 10}),
        ("-ngl 0", {"gpu_layers": 0}),
        ("-ctk q8_0 -ctv q8_0", {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        ("-nkvo", {"kv_on_host": True}),
        ("-np 4 --no-kv-unified -c 16384", {"unified": False, "context": 16384}),
        ("-t 3 -ngl 5", {"threads": 3}),
    ],
)
def test_what_was_given_stays(given, expected):
    made = plan(llama_8b(), machine(), Wishes(given=tuple(given.split())))
    assert {field: getattr(made.settings, field) for field in expected} == expected
    for rung in made.rungs:
        assert {field: getattr(rung.settings, field) for field in expected} == expected, rung.name
    words = made.arguments()
    assert words[-len(given.split()) :] == tuple(given.split())


def test_states_stay_with_their_layers():
    states = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 16}
    assert "KV cache on the host" not in names(plan(model("falcon-h1", **states), machine()))
    assert "KV cache on the host" in names(plan(model(), machine()))


def test_given_experts_stay():
    made = plan(mixture(), machine(), Wishes(given=("--n-cpu-moe", "40")))
    assert made.settings.host_experts == 40
    assert made.arguments().count("--n-cpu-moe") == 1


def test_a_split_cache_has_room_for_the_wished_length_in_each_slot():
    made = plan(llama_8b(), machine(), Wishes(context=4096, slots=3, given=("--no-kv-unified",)))
    assert made.settings.longest == 4096


def test_old_prompts_get_what_is_left_of_the_host():
    assert plan(llama_8b(), machine(host=64)).settings.cache_ram == 8192
    assert plan(llama_8b("f16"), cpu(20)).settings.cache_ram < 4096
    assert plan(llama_8b("f16"), cpu(20), Wishes(given=("--cache-ram", "9999"))).settings.cache_ram == 9999


def test_a_card_of_unknown_bandwidth_is_planned_by_what_lies_on_the_host():
    made = plan(llama_8b("f16"), Machine(Hardware("a card of 12GiB", 1, 12 * GIB), 64 * GIB))
    assert made.verdict is LlamaVerdict.SPLIT
    assert made.rung.seconds is None


def test_a_value_that_cannot_be_read_is_told():
    with pytest.raises(GivenError, match="-c much"):
        plan(llama_8b(), machine(), Wishes(given=("-c", "much")))


MODELS = {"llama": llama_8b(), "f16": llama_8b("f16"), "mixture": mixture(), "small": model(tied=True)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("card", ["rtx-4060", "rtx-3060", "rtx-4090", "a100-40gb", "h100", "b200"])
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_taken_fits_is_the_fastest_and_is_planned_again_the_same(name, card, count):
    here = machine(card, count)
    made = plan(MODELS[name], here)
    assert made.verdict is not LlamaVerdict.NOT
    memory = made.rung.memory
    assert memory.fullest <= here.card_room
    assert memory.host.total + memory.old_prompts <= 64 * GIB
    fitting = [rung for rung in made.rungs if rung.fits and rung.allowed]
    assert made.rung.seconds == min(rung.seconds for rung in fitting)
    words = made.settings.arguments()
    again = plan(MODELS[name], here, Wishes(given=words))
    assert again.settings == made.settings
    assert again.rung.fits
