from typing import Any

import pytest

from engine.plan.keys import UnknownShapeError
from engine.plan.states import CHECKPOINTED, STATES, StateTensor

# Elements of the convolution's and the recurrence's state on one rank of one and of two, by hand from the shapes in
# vLLM's mamba_utils.py.
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "mamba": ({"intermediate_size": 512, "state_size": 16, "conv_kernel": 4}, (1536, 8192), (768, 4096)),
    "jamba": (
        {"mamba_expand": 2, "hidden_size": 256, "mamba_d_state": 16, "mamba_d_conv": 4},
        (1536, 8192),
        (768, 4096),
    ),
    # One group is on both ranks: (512 + 2*2*64)*3/2.
    "mamba2": (
        {
            "expand": 2,
            "hidden_size": 256,
            "n_groups": 1,
            "num_heads": 16,
            "head_dim": 32,
            "state_size": 64,
            "conv_kernel": 4,
        },
        (1920, 32768),
        (1152, 16384),
    ),
    "qwen3_next": (
        {
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
        },
        (3072, 32768),
        (1536, 16384),
    ),
    "lfm2": ({"hidden_size": 256, "conv_L_cache": 3}, (512,), (256,)),
    "kimi_linear": (
        {"linear_attn_config": {"num_heads": 4, "head_dim": 32, "short_conv_kernel_size": 4}},
        (1152, 4096),
        (576, 2048),
    ),
}


@pytest.mark.parametrize("family", CASES)
def test_a_state_has_the_elements_of_vllms_shapes(family: str) -> None:
    config, alone, of_two = CASES[family]
    state = STATES[family](config)
    assert tuple(tensor.elements_of_rank(1) for tensor in state) == alone
    assert tuple(tensor.elements_of_rank(2) for tensor in state) == of_two


def test_nemotron_keeps_its_recurrence_in_float32_unless_its_config_says_otherwise() -> None:
    config = {"mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 1, "ssm_state_size": 16, "conv_kernel": 4}
    assert [tensor.dtype for tensor in STATES["nemotron_h"](config)] == ["conv", "float32"]
    told = {**config, "mamba_ssm_cache_dtype": "bfloat16"}
    assert [tensor.dtype for tensor in STATES["nemotron_h"](told)] == ["conv", "bfloat16"]


@pytest.mark.parametrize("family", STATES)
def test_a_state_whose_sizes_are_missing_is_an_error(family: str) -> None:
    with pytest.raises(UnknownShapeError):
        STATES[family]({})


def test_groups_are_repeated_until_ranks_divide_them() -> None:
    tensor = StateTensor(0, groups=2, per_group=10)
    assert [tensor.elements_of_rank(ranks) for ranks in (1, 2, 4)] == [20, 10, 10]


def test_checkpoints_are_of_families_with_a_state() -> None:
    assert set(STATES) >= CHECKPOINTED
