"""The settings of an engine that kvgate launches."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.fields import OptionalSeconds, Seconds, Section


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(args: Sequence[object]) -> list[object]:
    """Arguments as words of a command line, from YAML's values."""
    words: list[object] = []
    for value in args:
        before = words[-1] if words else None
        if isinstance(value, bool):
            if not isinstance(before, str) or not before.startswith("--") or "=" in before:
                raise ValueError("`true` and `false` go after a switch, as [--enable-prefix-caching, false]")
            if not value:
                words[-1] = f"--no-{before.removeprefix('--')}"
        elif isinstance(value, str) and (found := _TWO_WORDS.fullmatch(value)):
            raise ValueError(f"{value!r} is two words: write [{found['flag']}, {found['value']}]")
        else:
            words.append(str(value) if _is_number(value) else value)
    return words


_TWO_WORDS = re.compile(r"(?P<flag>--[\w.-]+)\s+(?P<value>.+)", re.DOTALL)


class EngineSettings(Section):
    """A vLLM that kvgate launches."""

    model: str = Field(description="Model folder or hub id.", examples=["owner/name"])
    replicas: int = Field(1, ge=1, le=64, description="Number of processes.")
    gpus: tuple[tuple[int, ...], ...] | None = Field(
        None,
        description="NVML indices for each replica. By default each engine of all models gets as many free GPUs, in "
        "order, as its parallel sizes in `args` require; a single engine sees all.",
        examples=[[[0], [1]]],
    )
    share_gpu: bool = Field(False, description="It may share its GPUs with other engines that set this too.")
    args: tuple[str, ...] = Field(
        (),
        description="Further arguments of vLLM's server, as on its command line. `true` after a switch sets it, "
        "`false` its `--no-`.",
        examples=[["--max-model-len", 2048]],
    )
    env: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further environment of the process.", examples=[{"HF_HUB_OFFLINE": 1}]
    )
    fit: Literal["auto", "off"] = Field(
        "auto",
        description="`auto` starts an engine that failed for memory again with less, at most three times, and says "
        "what was lowered; what `args` gives stays.",
    )
    min_model_len: int | None = Field(
        None,
        gt=0,
        description="The shortest context (tokens) that `fit: auto` may set; by default it never shortens.",
    )
    python: Path | None = Field(None, description="Interpreter that has vllm; kvgate's own environment if not given.")
    start_timeout: Seconds = Field(1800.0, description="Longest time from launch to healthy.")
    stop_timeout: Seconds = Field(30.0, description="From SIGTERM to SIGKILL of its process group.")
    max_restarts: int = Field(5, ge=0, description="Failures in a row before kvgate gives up on it.")
    hung_timeout: OptionalSeconds = Field(
        60.0,
        description="Time in a known hang (`health.hung_after`, several requests) or down, after which it is killed "
        "and started again; `none` leaves it.",
    )
    reload: Literal["auto", "surge", "in_place"] = Field(
        "auto",
        description="How a changed engine replaces the old one. `surge`: it is ready before the old one goes; "
        "`in_place`: the old one goes first, and requests wait; `auto`: `surge` where there is memory for both.",
    )

    @field_validator("args", mode="before")
    @classmethod
    def _as_words(cls, args: object) -> object:
        return _words(args) if isinstance(args, (list, tuple)) else args

    @field_validator("env", mode="before")
    @classmethod
    def _as_text(cls, env: object) -> object:
        if not isinstance(env, Mapping):
            return env
        return {name: str(value) if _is_number(value) else value for name, value in env.items()}

    @field_validator("fit", mode="before")
    @classmethod
    def _off_in_yaml(cls, fit: object) -> object:
        return "off" if fit is False else fit

    @model_validator(mode="after")
    def _gpus_for_each(self) -> Self:
        if self.gpus is not None and len(self.gpus) != self.replicas:
            raise ValueError(f"`gpus` names GPUs for {len(self.gpus)} replicas, and there are {self.replicas}")
        return self
