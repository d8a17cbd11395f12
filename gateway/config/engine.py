"""The settings of an engine that kvgate launches."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.fields import HostAndPort, OptionalSeconds, Seconds, Section


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
    """An engine that kvgate launches: a vLLM, or a llama-server for a GGUF file."""

    model: str = Field(
        description="Model folder or hub id, or a file that ends in `.gguf`, or one of a hub, as `owner/name:Q4_K_M`.",
        examples=["owner/name"],
    )
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
        description="Further arguments of the engine's server, as on its command line. `true` after a switch sets it, "
        "`false` its `--no-`.",
        examples=[["--max-model-len", 2048]],
    )
    choice: Literal["given", "auto"] = Field(
        "given",
        description="`auto` measures cards and host, and takes the first way to serve the model that fits, keeps the "
        "context and changes no answers but as `quality` allows: vLLM, its remedies for memory, `alternatives`, a "
        "llama-server. The context is that of `args`, else `min_model_len`, else 4,096 tokens.",
    )
    alternatives: tuple[str, ...] = Field(
        (),
        description="Other checkpoints of the same model for `choice: auto`, in the order of preference: folders, hub "
        "ids, GGUF files. `args` are for them, too, where they are for the same engine.",
        examples=[["owner/name-AWQ", "name-q4_k_m.gguf"]],
    )
    quality: tuple[Literal["kv-cache", "weights"], ...] = Field(
        (),
        description="What `choice: auto` may make of 8 bits or less by itself, which changes answers a little.",
        examples=[["kv-cache"]],
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
    llama_server: str | None = Field(
        None,
        description="Path or name of the `llama-server` for a GGUF file; if not given, the one in PATH, else that of "
        "the package `xllamacpp`.",
    )
    start_timeout: Seconds = Field(1800.0, description="Longest time from launch to healthy.")
    stop_timeout: Seconds = Field(30.0, description="From SIGTERM to SIGKILL of its process group.")
    max_restarts: int = Field(5, ge=0, description="Failures in a row before kvgate gives up on it.")
    hung_timeout: OptionalSeconds = Field(
        60.0,
        description="Time in a known hang (`health.hung_after`, several requests) or down, after which it is killed "
        "and started again; `none` leaves it.",
    )
    on_demand: bool = Field(False, description="It starts with its first request, which waits for it.")
    idle_stop: OptionalSeconds = Field(
        300.0, description="With `on_demand`: time without a request after which it leaves; `none` keeps it."
    )
    idle: Literal["stop", "sleep"] = Field(
        "stop",
        description="With `on_demand`: how it leaves. `stop` ends its process; `sleep`, for a vLLM on GPUs, keeps it "
        "with the weights in main memory, and ends it where that fails.",
    )
    group: str | None = Field(
        None,
        description="With `on_demand`: engines of one group have the same GPUs, and take turns: one runs at a time. "
        "Where not given, those that name the same `gpus` do so if these do not hold them at once.",
        examples=["card0"],
    )
    at: HostAndPort | None = Field(
        None,
        description="In a tier: HOST:PORT at which all its gateways reach the engine. The one whose `tier.advertise` "
        "has this host launches it. It needs `on_demand`, and a `name` of its model.",
        examples=["10.0.0.7:8001"],
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
    def _chosen(self) -> Self:
        if self.choice == "given" and (self.alternatives or self.quality):
            name = "alternatives" if self.alternatives else "quality"
            raise ValueError(f"`{name}` is for `choice: auto`")
        if self.choice == "auto" and self.share_gpu:
            raise ValueError("`choice: auto` goes by what its cards hold, so it cannot `share_gpu`")
        return self

    @model_validator(mode="after")
    def _gpus_for_each(self) -> Self:
        if self.gpus is not None and len(self.gpus) != self.replicas:
            raise ValueError(f"`gpus` names GPUs for {len(self.gpus)} replicas, and there are {self.replicas}")
        return self

    @model_validator(mode="after")
    def _one_on_demand(self) -> Self:
        if self.on_demand and self.replicas > 1:
            raise ValueError(f"an engine that starts on demand is one process, and `replicas` is {self.replicas}")
        if self.group is not None and not self.on_demand:
            raise ValueError("engines of a `group` take turns: say `on_demand: true`, too")
        if self.idle == "sleep" and not self.on_demand:
            raise ValueError("`idle: sleep` is for engines that come and go: say `on_demand: true`, too")
        return self

    @model_validator(mode="after")
    def _for_all_of_a_tier(self) -> Self:
        if self.at is None:
            return self
        if not self.on_demand:
            raise ValueError("`at` is for engines that come and go: say `on_demand: true`, too")
        if self.choice == "auto":
            raise ValueError("`choice: auto` goes by one machine, and all gateways know an engine `at` an address")
        if self.idle == "sleep":
            raise ValueError("`idle: sleep` has routes for its own machine alone, and others reach this engine")
        return self


@dataclass(frozen=True, slots=True)
class OnDemand:
    """How a launched engine comes and goes.

    Attributes:
        idle_stop: see the setting of this name.
        place: what one engine at a time may have; see `place_of`.
    """

    idle_stop: float | None
    place: str


def host_of(address: str) -> str:
    """The host of a HOST:PORT."""
    return address.rpartition(":")[0]


Launched = Mapping[str, OnDemand | None]
"""The engines that kvgate launches, in a tier any of its gateways, by their addresses; None: it always runs."""


def place_of(engine: EngineSettings, name: str, number: int) -> str:
    """What one engine at a time may have: the cards of a group of its machine, or else the name of its model.

    With the name an engine follows the one that it replaces. `number`: which one it is of those with this name.
    """
    what = f"model {number} {name}" if engine.group is None else f"group {engine.group}"
    return what if engine.at is None else f"{what} at {host_of(engine.at)}"


def as_word(address: str, engine: EngineSettings, place: str) -> str:
    """An entry of `Launched`, of an engine with this place, as a word of a command line."""
    on_demand = OnDemand(engine.idle_stop, place) if engine.on_demand else None
    return json.dumps([address, None if on_demand is None else asdict(on_demand)])


def from_words(words: Iterable[str]) -> Launched:
    """The engines of such words."""
    entries = map(json.loads, words)
    return {address: None if on_demand is None else OnDemand(**on_demand) for address, on_demand in entries}
