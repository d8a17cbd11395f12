import pytest

from engine.plan.llama.settings import GivenError, LlamaSettings, read_given


def test_the_arguments_say_what_was_planned_and_that_it_shall_be_so():
    words = LlamaSettings(gpu_layers=20, context=8192, slots=2, threads=6, host_experts=3, cache_ram=512).arguments()
    assert words == (
        *("--fit", "off", "--gpu-layers", "20", "--ctx-size", "8192", "--parallel", "2", "--kv-unified"),
        *("--n-cpu-moe", "3", "--threads", "6", "--cache-ram", "512"),
    )


def test_what_is_llama_servers_own_default_is_not_said():
    words = LlamaSettings(gpu_layers=33, context=4096).arguments()
    assert not {"--threads", "--cache-ram", "--cache-type-k", "--no-kv-offload", "--device"} & set(words)


def test_a_quantized_cache_of_values_needs_fused_attention():
    words = LlamaSettings(gpu_layers=1, context=4096, cache_type_k="q8_0", cache_type_v="q8_0").arguments()
    assert words[-6:] == ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "on")


def test_without_layers_on_a_card_none_is_touched():
    words = LlamaSettings(gpu_layers=0, context=4096).arguments()
    assert words[words.index("--device") + 1] == "none"


def test_what_was_given_stays_and_is_not_said_twice():
    given = ("-c", "2048", "-ngl", "all", "--no-kv-unified", "--jinja", "-fa", "off")
    settings = LlamaSettings(gpu_layers=33, context=2048, unified=False, flash=False)
    assert settings.arguments(given) == ("--fit", "off", "--parallel", "4", *given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("-c 4096 -np 8", {"context": 4096, "slots": 8}),
        ("--ctx-size 0", {}),
        ("--ctx_size 512", {"context": 512}),
        ("-ngl all", {"gpu_layers": 33}),
        ("--n-gpu-layers 99", {"gpu_layers": 33}),
        ("--gpu-layers auto -np -1 -t -1", {}),
        ("-ctk q8_0 -ctv q4_0 -fa on", {"cache_type_k": "q8_0", "cache_type_v": "q4_0", "flash": True}),
        ("--no-kv-offload -no-kvu --swa-full", {"kv_on_host": True, "unified": False, "swa_full": True}),
        ("-kvo -kvu", {"kv_on_host": False, "unified": True}),
        ("--cpu-moe --fit on", {"host_experts": 1 << 16}),
        ("--n-cpu-moe 4 -ub 256 --jinja", {"host_experts": 4, "ubatch": 256}),
    ],
)
def test_given_arguments_are_read(given, found):
    assert read_given(given.split(), 33) == found


@pytest.mark.parametrize("given", ["-c many", "-c -5", "-np", "-ngl some", "-ctk f17", "--ctx-size 99999999999999"])
def test_a_value_that_cannot_be_read_is_told(given):
    with pytest.raises(GivenError, match=given.split(maxsplit=1)[0]):
        read_given(given.split(), 33)


def test_a_split_cache_gives_each_request_its_share():
    assert LlamaSettings(gpu_layers=0, context=8192, slots=4, unified=False).longest == 2048
    assert LlamaSettings(gpu_layers=0, context=8192, slots=4).longest == 8192
