import pytest

from tests.unit.engine.plan.llama.models import model

FULL = (64, 64)
"""Keys and values of a layer with two KV heads of 32."""


def windows(found):
    return [layer.kept.window for layer in found.layers]


def states(found):
    return [layer.kept.state for layer in found.layers]


def cached(found):
    return [(layer.kept.keys, layer.kept.values) for layer in found.layers]


def test_keys_and_values_are_of_the_kv_heads():
    assert cached(model()) == [FULL] * 4
    assert cached(model(attention__key_length=48, attention__value_length=16)) == [(96, 32)] * 4
    assert cached(model(attention__head_count_kv=[2, 1, 2, 0])) == [FULL, (32, 32), FULL, (0, 0)]
    assert cached(model(attention__head_count_kv=None)) == [(256, 256)] * 4, "no KV heads said: as many as heads"


def test_latent_attention_keeps_one_row_and_no_values():
    latent = {"attention__key_length": 576, "attention__value_length": 512, "attention__head_count_kv": 1}
    found = model("deepseek2", **latent, attention__key_length_mla=192, attention__value_length_mla=128)
    assert cached(found) == [(576, 0)] * 4


@pytest.mark.parametrize(
    ("architecture", "said", "layers", "whole"),
    [
        ("gemma3", {"attention__sliding_window": 512}, 13, {5, 11}),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 4}, 8, {3, 7}),
        ("gemma2", {}, 4, {1, 3}),
        ("gpt-oss", {"attention__sliding_window": 128}, 6, {1, 3, 5}),
        ("cohere2moe", {"attention__sliding_window": 4096}, 8, {0, 4}),
        ("llama4", {}, 8, {3, 7}),
        ("smallthinker", {"attention__sliding_window": 1}, 8, {0, 4}),
        ("step35", {"attention__sliding_window": 9, "attention__sliding_window_pattern": [True, False]}, 2, {1}),
        ("lfm2", {"attention__sliding_window": 9, "attention__head_count_kv": [0, 2], "shortconv__l_cache": 3}, 2, {0}),
    ],
)
def test_windows_are_where_the_architecture_has_them(architecture, said, layers, whole):
    found = model(architecture, layers, **said)
    assert {number for number, window in enumerate(windows(found)) if not window} == whole


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("gemma3", {}),
        ("phi3", {"attention__sliding_window": 2048}),
        ("qwen2", {"attention__sliding_window": 2048}),
        ("llama4", {"attention__sliding_window": 0}),
        ("smallthinker", {}),
        ("exaone4", {"attention__sliding_window": 4096}),
    ],
)
def test_where_there_are_none_all_is_kept(architecture, said):
    assert not any(windows(model(architecture, **said)))


@pytest.mark.parametrize(
    ("architecture", "said", "window"),
    [
        ("llama4", {"attention__sliding_window": 4}, 8192),
        ("smallthinker", {"attention__sliding_window": 4}, 4096),
        ("gemma2", {}, 4096),
        ("gemma3", {"attention__sliding_window": 512}, 512),
    ],
)
def test_a_window_is_as_long_as_llama_server_makes_it(architecture, said, window):
    assert model(architecture, **said).window == window


def test_windowed_layers_may_have_heads_of_another_size():
    said = {"attention__sliding_window": 9, "attention__sliding_window_pattern": [True, False, True, False]}
    found = model("gemma4", **said, attention__key_length=64, attention__key_length_swa=32, attention__value_length=64)
    assert [keys for keys, _ in cached(found)] == [64, 128, 64, 128]


def test_later_layers_may_attend_to_what_earlier_ones_keep():
    said = {"attention__sliding_window": 9, "attention__sliding_window_pattern": [True, False, True, False]}
    assert cached(model("gemma4", **said, attention__shared_kv_layers=2)) == [FULL, FULL, (0, 0), (0, 0)]
    assert [keys > 0 for keys, _ in cached(model("gemma3n", 30, attention__sliding_window=9))] == [
        number < 20 for number in range(30)
    ]


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 16, "ssm__group_count": 2}
SSM_BYTES = 4 * (3 * (512 + 2 * 2 * 16) + 16 * 512)


@pytest.mark.parametrize(
    ("architecture", "said", "expected", "attends"),
    [
        ("mamba2", SSM, [SSM_BYTES] * 4, []),
        ("falcon-h1", SSM, [SSM_BYTES] * 4, [0, 1, 2, 3]),
        ("jamba", SSM | {"attention__head_count_kv": [0, 2, 0, 2]}, [SSM_BYTES, 0, SSM_BYTES, 0], [1, 3]),
        ("qwen3next", SSM, [SSM_BYTES] * 3 + [0], [3]),
        ("qwen35", SSM | {"full_attention_interval": 2}, [SSM_BYTES, 0, SSM_BYTES, 0], [1, 3]),
        ("qwen35", SSM | {"attention__recurrent_layers": [True, True, True, False]}, [SSM_BYTES] * 3 + [0], [3]),
        ("rwkv7", {"wkv__head_size": 64}, [4 * 256 * (2 + 64)] * 4, []),
        ("lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": [0, 0, 0, 2]}, [4 * 256 * 2] * 3 + [0], [3]),
        (
            "nemotron_h",
            SSM | {"attention__head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 512, 0]},
            [SSM_BYTES, 0, 0, SSM_BYTES],
            [1],
        ),
        (
            "kimi-linear",
            {"kda__head_dim": 32, "ssm__conv_kernel": 4, "attention__head_count_kv": [0, 0, 0, 1]},
            [4 * 8 * 32 * (9 + 32)] * 3 + [0],
            [3],
        ),
    ],
)
def test_states_are_where_the_architecture_has_them(architecture, said, expected, attends):
    found = model(architecture, **said)
    assert states(found) == expected
    assert [number for number, (keys, _) in enumerate(cached(found)) if keys] == attends


def test_an_encoder_keeps_nothing():
    assert cached(model("bert")) == [(0, 0)] * 4
