"""PURE. The fixed state of recurrent layers: Mamba, Mamba2, gated delta nets, short convolutions, KDA.

The shapes are from vLLM 0.32, model_executor/layers/mamba/mamba_utils.py. Each family's keys are those that its model
file reads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.plan.keys import Config, UnknownShapeError, first_integer


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of the fixed state of a recurrent layer, over all ranks.

    Attributes:
        elements: number of elements, without the groups.
        groups: groups, repeated until tensor parallelism divides them (Mamba2's B and C).
        per_group: elements of one group.
        dtype: `""` for the state's dtype, `"conv"` for the model's own, or a fixed dtype.
    """

    elements: int
    groups: int = 0
    per_group: int = 0
    dtype: str = "conv"

    def elements_of_rank(self, tensor_parallel: int) -> int:
        """Return the elements on one of `tensor_parallel` ranks."""
        groups = self.groups if self.groups % tensor_parallel == 0 else tensor_parallel
        return (self.elements + groups * self.per_group) // tensor_parallel


def _mamba1(width: int, state: int, kernel: int) -> tuple[StateTensor, ...]:
    return StateTensor(width * (kernel - 1)), StateTensor(width * state, dtype="")


def _mamba2(*, width: int, groups: int, heads: int, head: int, state: int, kernel: int) -> tuple[StateTensor, ...]:
    return (
        StateTensor(width * (kernel - 1), groups=groups, per_group=2 * state * (kernel - 1)),
        StateTensor(heads * head * state, dtype=""),
    )


def _of(text: Config, *keys: str) -> int:
    return first_integer(text, keys)


def _mamba1_state(text: Config) -> tuple[StateTensor, ...]:
    width = first_integer(text, ("intermediate_size",), default=0) or _of(text, "expand") * _of(text, "hidden_size")
    return _mamba1(width, _of(text, "state_size"), _of(text, "conv_kernel"))


def _jamba_state(text: Config) -> tuple[StateTensor, ...]:
    width = _of(text, "mamba_expand") * _of(text, "hidden_size")
    return _mamba1(width, _of(text, "mamba_d_state"), _of(text, "mamba_d_conv"))


def _mamba2_state(text: Config) -> tuple[StateTensor, ...]:
    return _mamba2(
        width=_of(text, "expand") * _of(text, "hidden_size"),
        groups=_of(text, "n_groups"),
        heads=_of(text, "num_heads"),
        head=_of(text, "head_dim"),
        state=_of(text, "state_size"),
        kernel=_of(text, "conv_kernel"),
    )


def _ssd_state(text: Config) -> tuple[StateTensor, ...]:
    width = first_integer(text, ("mamba_d_ssm",), default=0)
    if not width:
        width = int(_number(text, "mamba_expand") * _of(text, "hidden_size"))
    heads = _of(text, "mamba_n_heads", "n_mamba_heads")
    head = first_integer(text, ("mamba_d_head", "mamba_headdim"), default=0) or width // heads
    return _mamba2(
        width=width,
        groups=_of(text, "mamba_n_groups", "mamba_ngroups"),
        heads=heads,
        head=head,
        state=_of(text, "mamba_d_state"),
        kernel=_of(text, "mamba_d_conv"),
    )


def _nemotron_state(text: Config) -> tuple[StateTensor, ...]:
    heads, head = _of(text, "mamba_num_heads"), _of(text, "mamba_head_dim")
    conv, state = _mamba2(
        width=heads * head,
        groups=_of(text, "n_groups"),
        heads=heads,
        head=head,
        state=_of(text, "ssm_state_size"),
        kernel=_of(text, "conv_kernel"),
    )
    return conv, StateTensor(state.elements, dtype=str(text.get("mamba_ssm_cache_dtype") or "float32"))


def _delta_state(text: Config) -> tuple[StateTensor, ...]:
    keys, values = _of(text, "linear_num_key_heads"), _of(text, "linear_num_value_heads")
    key, value = _of(text, "linear_key_head_dim"), _of(text, "linear_value_head_dim")
    width = 2 * keys * key + values * value
    return (
        StateTensor(width * (_of(text, "linear_conv_kernel_dim") - 1)),
        StateTensor(values * value * key, dtype=str(text.get("mamba_ssm_dtype") or "")),
    )


def _conv_state(text: Config) -> tuple[StateTensor, ...]:
    width = first_integer(text, ("conv_dim",), default=0) or _of(text, "hidden_size")
    return (StateTensor(width * (_of(text, "conv_L_cache") - 1)),)


def _kda_state(text: Config) -> tuple[StateTensor, ...]:
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        raise UnknownShapeError("config.json has no `linear_attn_config`")
    heads, head = int(linear["num_heads"]), int(linear["head_dim"])
    kernel = int(linear.get("short_conv_kernel_size", 4))
    return StateTensor(3 * heads * head * (kernel - 1)), StateTensor(heads * head * head, dtype="float32")


def _number(text: Config, key: str) -> float:
    value = text.get(key)
    if not isinstance(value, int | float):
        raise UnknownShapeError(f"config.json has no `{key}`")
    return float(value)


STATES: Mapping[str, Callable[[Config], tuple[StateTensor, ...]]] = {
    "mamba": _mamba1_state,
    "falcon_mamba": _mamba1_state,
    "jamba": _jamba_state,
    "mamba2": _mamba2_state,
    "falcon_h1": _ssd_state,
    "granitemoehybrid": _ssd_state,
    "bamba": _ssd_state,
    "zamba2": _ssd_state,
    "nemotron_h": _nemotron_state,
    "qwen3_next": _delta_state,
    "qwen3_5_text": _delta_state,
    "qwen3_5_moe_text": _delta_state,
    "olmo_hybrid": _delta_state,
    "lfm2": _conv_state,
    "lfm2_moe": _conv_state,
    "kimi_linear": _kda_state,
}
"""The sizes of the state, by family with recurrent layers."""


CHECKPOINTED = frozenset({"mamba2", "falcon_h1", "granitemoehybrid", "bamba", "zamba2", "nemotron_h", "kimi_linear"})
"""Families whose kernels export a state during a prefill (0.32, mamba_mixer2.py and kda.py)."""
