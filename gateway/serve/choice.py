"""The choice of how each engine serves its model: by what the cards and the host hold when it is first described.

It turns an engine with `choice: auto` into one that is described whole: the checkpoint, the arguments, the cards. All
that comes after knows only the latter. A choice stays while its description does, so a reload or a restart of an engine
does not move it; what a new one would be is `news`.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from engine.arguments import ArgumentError, Arguments
from engine.cache import SetupError
from engine.descent import family
from engine.gpu import Gpu
from engine.host_cores import cores
from engine.host_memory import free_bytes
from engine.interpreter import has_package
from engine.kinds import kind_of
from engine.llama.hub import is_on_hub
from engine.llama.program import IN_PROCESS, llama_server
from engine.plan.budget import RefusedError, Request
from engine.plan.cards import GIB, Hardware
from engine.plan.gguf import GgufError, is_gguf
from engine.plan.hub import CheckpointError
from engine.plan.kv import UnpackableError
from engine.plan.ladder import BNB_PLUGIN, Engine, Ladder, LlamaRequest, Rung, climb
from engine.plan.llama.planner import Machine
from engine.plan.llama.said import UnknownModelError
from engine.plan.llama.settings import GivenError, fields_given
from engine.plan.named import read_named
from engine.plan.quality import Quality
from engine.plan.shape import UnknownShapeError
from gateway.config.engine import EngineSettings
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings, Settings
from gateway.serve.fetch import local
from gateway.serve.hardware import cards_here, freest, hardware_of, host_here, tells

_CHANGED = GIB
"""Bytes of a card that others must take or give back before it is news."""

_UNPLANNED = (ArgumentError, GivenError, RefusedError, UnknownModelError, UnknownShapeError, UnpackableError)

Tell = Callable[["Choice"], None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for an engine, and all that the choice stood on.

    Attributes:
        asked: the engine as it was described.
        model: the name that clients use.
        engine: the engine that was chosen.
        ladder: the ways to serve it.
        checkpoints: that it stood on.
        machine: for a llama-server.
        lacking: packages and engines that were not there.
        cards: NVML indices of the cards of all replicas, those of one after those of another.
        hardware: those of one replica as they were then, or the CPU.
    """

    asked: EngineSettings
    model: str
    engine: EngineSettings
    ladder: Ladder
    checkpoints: tuple[Request | LlamaRequest, ...]
    machine: Machine
    lacking: frozenset[str]
    cards: tuple[int, ...]
    hardware: Hardware

    @property
    def rung(self) -> Rung:
        """The way that was chosen."""
        assert self.ladder.taken is not None  # noqa: S101 - else there is no choice
        return self.ladder.rungs[self.ladder.taken]


class Choices:
    """The choices of one kvgate, each made once.

    Args:
        tell: gets each choice when it is made.
        environ: kvgate's environment.
    """

    def __init__(self, tell: Tell, environ: Mapping[str, str] = os.environ) -> None:
        self._tell = tell
        self._environ = environ
        self._lock = threading.Lock()
        """A reload reads settings in a thread, and news are looked for in another."""
        self._made: list[Choice] = []
        self._said: dict[str, int] = {}
        """By model, the free bytes of its cards when news of them were last told."""
        self._moved: set[str] = set()
        """Models whose cards had other free bytes at the last look: one look alone may fall into a start."""

    def applied(self, settings: Settings) -> Settings:
        """The same, with each engine as it was chosen.

        Raises:
            ConfigurationError: an engine cannot be planned, or there is no way to serve it.
        """
        launched = [model.engine for model in settings.models if model.engine is not None]
        if not any(engine.choice == "auto" for engine in launched):
            return settings
        with self._lock:
            made: list[Choice] = []

            def chosen(model: ModelSettings) -> ModelSettings:
                if model.engine is None or model.engine.choice != "auto":
                    return model
                name = model.name or kind_of(model.engine.model).served_name(model.engine.model)
                choice = self._known(model.engine, name) or self._choose(model.engine, name, len(launched), made)
                made.append(choice)
                return model.model_copy(update={"engine": choice.engine, "name": name})

            models = tuple(map(chosen, settings.models))
            self._made = made
            return settings.model_copy(update={"models": models})

    def news(self) -> Iterator[str]:
        """A line for each model whose cards others have filled or freed since it was chosen, or since the last line."""
        ours = family(os.getpid())
        with self._lock:
            for choice in self._made:
                now = cards_here(_environ(choice.asked, self._environ), choice.cards, ours)
                if not choice.cards or len(now) < len(choice.cards) or (choice.rung.card and not tells(now, ours)):
                    continue
                free = min(card.free_bytes for card in now)
                before = self._said.get(choice.model, choice.hardware.free_bytes or 0)
                if abs(free - before) < _CHANGED:
                    self._moved.discard(choice.model)
                elif choice.model not in self._moved:
                    self._moved.add(choice.model)
                else:
                    self._said[choice.model] = free
                    yield _news(choice, _again(choice, now), free)

    def _known(self, engine: EngineSettings, name: str) -> Choice | None:
        return next((made for made in self._made if (made.asked, made.model) == (engine, name)), None)

    def _choose(self, engine: EngineSettings, name: str, launched: int, before: Sequence[Choice]) -> Choice:
        environ = _environ(engine, self._environ)
        cards = _cards(engine, name, launched, environ)
        of_each = len(cards) // engine.replicas
        hardware = replace(hardware_of(cards, family(os.getpid())), count=of_each) if cards else host_here()
        taken = sum(choice.rung.host * choice.asked.replicas for choice in before)
        host = max(0, free_bytes() - taken) // engine.replicas
        if hardware.cpu:
            hardware = replace(hardware, free_bytes=min(hardware.total_bytes, host))
        lacking, processor = _lacking(engine, self._environ)
        machine = Machine(host_here() if processor else hardware, host, cores())

        def climbed(models: Sequence[str]) -> tuple[tuple[Request | LlamaRequest, ...], Ladder]:
            checkpoints = read_named(models, engine.args, hardware, environ, host_bytes=host)
            wanted = None if _says_context(engine) else engine.min_model_len
            allowed = frozenset(map(Quality, engine.quality))
            return checkpoints, climb(checkpoints, machine, allowed=allowed, wanted=wanted, lacking=lacking)

        models = (engine.model, *engine.alternatives)
        try:
            checkpoints, ladder = climbed([name for name in models if not is_on_hub(name)])
            if ladder.taken is None and any(map(is_on_hub, models)):  # a download only where nothing else holds
                checkpoints, ladder = climbed([local(name, environ) for name in models])
        except (CheckpointError, GgufError) as error:
            raise ConfigurationError(f"model {name}: {error.cause}\n{error.remedy}") from None
        except _UNPLANNED as error:
            raise ConfigurationError(f"model {name}: it cannot be planned, so nothing can be chosen: {error}") from None
        if ladder.taken is None:
            raise ConfigurationError(f"model {name}: {_nothing(ladder)}")
        indices = tuple(card.index for card in cards)
        made = _described(engine, ladder.rungs[ladder.taken], indices)
        choice = Choice(engine, name, made, ladder, checkpoints, machine, lacking, indices, hardware)
        self._tell(choice)
        return choice


def _cards(engine: EngineSettings, name: str, launched: int, environ: Mapping[str, str]) -> list[Gpu]:
    """The cards for an engine, as many for each replica; none on a machine without any."""
    ours = family(os.getpid())
    if engine.gpus is not None:
        if len({len(group) for group in engine.gpus}) > 1:
            raise ConfigurationError(f"model {name}: `choice: auto` needs as many `gpus` for each replica")
        by_index = {card.index: card for card in cards_here(environ, ours=ours)}
        wanted = [index for group in engine.gpus for index in group]
        if missing := [index for index in wanted if index not in by_index]:
            raise ConfigurationError(f"model {name}: `gpus` names GPU {missing[0]}, which kvgate does not see")
        return [by_index[index] for index in wanted]
    cards = cards_here(environ, ours=ours)
    if not cards:
        return []
    if launched > 1:
        raise ConfigurationError(
            f"model {name}: beside other engines `choice: auto` needs its cards named: gpus: [[{cards[0].index}]]"
        )
    alike = freest(cards)
    if len(alike) < engine.replicas:
        raise ConfigurationError(
            f"model {name}: {engine.replicas} replicas, and {len(alike)} cards are about as free as the freest"
        )
    return alike[: len(alike) // engine.replicas * engine.replicas]


def _lacking(engine: EngineSettings, environ: Mapping[str, str]) -> tuple[frozenset[str], bool]:
    """What is not here of what rungs need, and whether the llama-server here computes on the processor only."""
    lacking, processor = set(), False
    try:
        processor = llama_server(engine.llama_server, environ)[0] is IN_PROCESS
    except SetupError:
        lacking.add(Engine.LLAMA.value)
    python = engine.python or environ.get("KVGATE_ENGINE_PYTHON")
    if not (python and Quality.WEIGHTS.value in engine.quality and has_package(Path(python), BNB_PLUGIN)):
        lacking.add(BNB_PLUGIN)  # kvgate's own environment does not have it
    return frozenset(lacking), processor


def _says_context(engine: EngineSettings) -> bool:
    if is_gguf(engine.model):
        return "context" in fields_given(engine.args)
    return Arguments.parse(engine.args).has("--max-model-len")


def _described(engine: EngineSettings, rung: Rung, cards: Sequence[int]) -> EngineSettings:
    """The engine that a rung is."""
    of_each = len(cards) // engine.replicas
    used = of_each if rung.engine is Engine.LLAMA else rung.world
    groups = tuple(tuple(cards[first : first + used]) for first in range(0, len(cards), of_each)) if cards else None
    return engine.model_copy(
        update={
            "model": rung.model,
            "args": (*rung.given, *rung.arguments),
            "env": {**{variable: SecretStr(value) for variable, value in rung.environ}, **engine.env},
            "gpus": groups,
        }
    )


def _environ(engine: EngineSettings, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, **{name: value.get_secret_value() for name, value in engine.env.items()}}


def _nothing(ladder: Ladder) -> str:
    """Why there is no way, and what would make one."""
    if able := [rung for rung in ladder.rungs if rung.fits and rung.context >= ladder.wanted]:
        first = able[0]
        how = (
            f"engine.quality: [{', '.join(sorted(first.changes))}] allows it"
            if not first.allowed
            else f"it needs {first.lacks}, which is not here"
        )
        return f"no way to serve it is allowed and here; the first that fits is {first.name}: {how}"
    nearest = min(ladder.rungs, key=lambda rung: (rung.context < ladder.wanted, rung.short))
    short = f"lacks {nearest.short / GIB:.1f} GiB" if not nearest.fits else f"has {nearest.context:,} tokens"
    return (
        f"no way to serve it fits and keeps {ladder.wanted:,} tokens; the nearest, {nearest.name}, {short}. Name a "
        "smaller checkpoint in engine.alternatives, as a GGUF file, or shorten it with --max-model-len"
    )


def _again(choice: Choice, cards: Sequence[Gpu]) -> Ladder:
    """The ladder with what is free now."""
    hardware = replace(hardware_of(cards, family(os.getpid())), count=choice.hardware.count)
    checkpoints = tuple(
        replace(checkpoint, hardware=hardware) if isinstance(checkpoint, Request) else checkpoint
        for checkpoint in choice.checkpoints
    )
    machine = choice.machine if choice.machine.hardware.cpu else replace(choice.machine, hardware=hardware)
    allowed: Collection[Quality] = frozenset(map(Quality, choice.asked.quality))
    return climb(checkpoints, machine, allowed=allowed, wanted=choice.ladder.wanted, lacking=choice.lacking)


def _news(choice: Choice, again: Ladder, free: int) -> str:
    was = choice.hardware.free_bytes or 0
    cards = "GPU" + ("s " if len(choice.cards) > 1 else " ") + ", ".join(map(str, choice.cards))
    said = (
        f"{choice.model}: others hold {abs(was - free) / GIB:.1f} GiB {'more' if free < was else 'less'} of {cards} "
        f"than when it was chosen as {choice.rung.name}"
    )
    if again.taken is None:
        return f"{said}: with {free / GIB:.1f} GiB free there would be no way to serve it. {_STAYS}"
    rung = again.rungs[again.taken]
    if (rung.name, rung.model) == (choice.rung.name, choice.rung.model):
        return f"{said}: the choice would be the same"
    return f"{said}: with {free / GIB:.1f} GiB free the choice would be {rung.name}. {_STAYS}"


_STAYS = "The engine stays as it is until kvgate starts again."
