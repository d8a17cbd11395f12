"""The LoRA adapters of an engine to launch: its arguments for them, and what is wrong with one before it starts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.adapter import DEFAULT_RANK, Adapter, AdapterError, expect_fitting, other_name, rank_for, read_adapter
from engine.arguments import Arguments
from engine.spec import EngineKind
from engine.vllm.kind import VLLM
from gateway.config.adapter import AdapterSettings
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings

_UPDATING = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
UPDATING = {_UPDATING: "True"}
"""Lets kvgate load and unload adapters while the engine runs. Clients cannot: kvgate serves none of these routes."""
_TRUE = frozenset({"1", "true"})
"""What vLLM takes for yes, in any case."""
_RANK = "--max-lora-rank"


def switches(model: ModelSettings, args: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments that an engine needs for its adapters, of those not among its `args`.

    Raises:
        ConfigurationError: an adapter cannot be loaded.
    """
    if not model.lora:
        return ()
    given = Arguments.parse(args)
    enabled = () if given.has("--enable-lora") else ("--enable-lora",)
    highest = max([_read(model, one).rank for one in model.lora if _is_here(one)], default=0)
    if given.has(_RANK) or highest <= DEFAULT_RANK:
        return enabled
    try:
        return (*enabled, _RANK, str(rank_for(highest)))
    except AdapterError as error:
        raise ConfigurationError(f"model {model.known_as}: an adapter cannot be loaded: {error}") from None


def modules(model: ModelSettings) -> tuple[str, ...]:
    """The arguments by which an engine loads its adapters at its start: only if its `env` keeps it from doing so later.

    Otherwise the gateway has it load them. After a reload these would be others than those of its command line, whose
    folders may be gone when it starts again.
    """
    given = None if model.engine is None else model.engine.env.get(_UPDATING)
    if not model.lora or given is None or given.get_secret_value().strip().lower() in _TRUE:
        return ()
    return ("--lora-modules", *(f"{one.name}={one.path}" for one in model.lora))


def check_adapters(model: ModelSettings, kind: EngineKind, args: tuple[str, ...], base: Mapping[str, Any]) -> None:
    """Refuse adapters that the engine could not load.

    Args:
        model: theirs.
        kind: the engine's.
        args: the engine's.
        base: `config.json` of their base; empty where it is not known.

    Raises:
        ConfigurationError: one is missing, not whole, of another base, or of too high a rank; or the engine is no vLLM.
    """
    if model.lora and kind is not VLLM:
        raise ConfigurationError(
            f"model {model.known_as}: kvgate loads LoRA adapters into vLLM alone; "
            f"give a {kind.name} its own flags for them in engine.args"
        )
    written = Arguments.parse(args).text(_RANK)
    most = int(written) if written is not None and written.isdecimal() else None
    for one in model.lora:
        if _is_here(one):
            try:
                expect_fitting(_read(model, one), base, model.known_as or "its base", most)
            except AdapterError as error:
                raise _fault(model, one, error) from None


def doubts(model: ModelSettings) -> Iterator[str]:
    """A line for each adapter that names another base than its model, and may be of it all the same."""
    for one in model.lora:
        if not _is_here(one) or model.engine is None:
            continue
        named = other_name(_read(model, one), model.engine.model)
        if named is not None:
            yield f"the adapter {one.name} says that it is of {named}: see that this is {model.engine.model}"


def _is_here(adapter: AdapterSettings) -> bool:
    """Whether its path is of this machine, and not a hub id, which the engine loads."""
    return Path(adapter.path).is_absolute() or adapter.path.startswith(("~", ".")) or Path(adapter.path).exists()


def _read(model: ModelSettings, adapter: AdapterSettings) -> Adapter:
    try:
        return read_adapter(Path(adapter.path).expanduser())
    except AdapterError as error:
        raise _fault(model, adapter, error) from None


def _fault(model: ModelSettings, adapter: AdapterSettings, error: AdapterError) -> ConfigurationError:
    return ConfigurationError(f"model {model.known_as}: adapter {adapter.name}: {error}")
