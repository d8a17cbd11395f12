"""The setup of each launched engine: its GPUs, the filled-in arguments, and the settings that may be lowered to fit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import SecretStr

from engine.gpu import Gpu
from engine.gpu_placement import PlacementError, Wish, devices, place, visible
from engine.kinds import kind_of
from engine.memory_ladder import Bounds
from engine.program import Engine
from engine.spec import EngineSpec
from gateway.config.engine import EngineSettings
from gateway.config.errors import ConfigurationError
from gateway.config.secrets import revealed
from gateway.config.settings import ModelSettings, Settings


@dataclass(frozen=True, slots=True)
class Seat:
    """The place where one engine runs.

    Attributes:
        gpus: Value of `CUDA_VISIBLE_DEVICES`; empty to leave it unchanged.
        cards: Those GPUs, with their free memory as if kvgate's own engines were gone; none if their indices are
            unknown.
        on_gpus: Whether this machine has any.
        engines: How many engines share them.
    """

    gpus: tuple[str, ...]
    cards: tuple[Gpu, ...] = ()
    on_gpus: bool = False
    engines: int = 1


def seats(
    engines: Sequence[EngineSettings],
    cards: Sequence[Gpu],
    environ: Mapping[str, str],
    running: Sequence[Engine] = (),
) -> list[Seat]:
    """Return a seat for each replica of each engine, in order.

    Args:
        engines: the engines to launch.
        cards: this machine's GPUs, measured now.
        environ: kvgate's own environment.
        running: engines that already run. Their memory counts as free, since they are replaced or share a card.

    Raises:
        ConfigurationError: the engines cannot be placed.
    """
    wanted = [(engine, given) for engine in engines for given in engine.gpus or (None,) * engine.replicas]
    turns = [engine.group or number for number, (engine, _) in enumerate(wanted)]
    wishes: dict[str | int, Wish] = {}
    """Engines of one group are placed as one: they take turns."""
    for turn, (engine, given) in zip(turns, wanted, strict=True):
        wish = Wish(given, kind_of(engine.model).gpus_needed(engine.args), engine.share_gpu)
        wishes[turn] = wish if turn not in wishes else _together(wishes[turn], wish, engine.group)
    present = [card.index for card in cards]
    if present and len(wishes) > 1 and any("CUDA_VISIBLE_DEVICES" in engine.env for engine in engines):
        raise ConfigurationError(
            "engines: with several engines, an engine's `env` cannot set CUDA_VISIBLE_DEVICES, as the others would not "
            "know of it: give `gpus`"
        )
    try:
        placed = dict(zip(wishes, place([*wishes.values()], present, environ), strict=True))
    except PlacementError as error:
        raise ConfigurationError(f"engines: {error}") from None
    ours = _shares(running, present, environ)
    unheld = [
        replace(card, free_bytes=min(card.total_bytes, card.free_bytes + round(held * card.total_bytes)))
        for card in cards
        for held in [ours.get(str(card.index), 0.0)]
    ]

    def seat(turn: str | int, engine: EngineSettings) -> Seat:
        given, wish = placed[turn], wishes[turn]
        used = given or visible(present, {**environ, **revealed(engine)["env"]})[: wish.size]
        sharing = max((sum(device in other for other in placed.values()) for device in given), default=1)
        return Seat(
            given,
            tuple(card for card in unheld if str(card.index) in used),
            bool(cards),
            sharing,
        )

    return [seat(turn, engine) for turn, (engine, _) in zip(turns, wanted, strict=True)]


def _together(one: Wish, other: Wish, group: str | None) -> Wish:
    """The GPUs that two engines need which take turns.

    Raises:
        ConfigurationError: they name different ones.
    """
    if one.gpus != other.gpus:
        raise ConfigurationError(f"engines: those of the group {group!r} take turns on the same GPUs: name them alike")
    return replace(one, size=max(one.size, other.size), shares=one.shares and other.shares)


def _shares(running: Sequence[Engine], present: Sequence[int], environ: Mapping[str, str]) -> Mapping[str, float]:
    """The share of each GPU's memory given to kvgate's engines."""
    shares: dict[str, float] = defaultdict(float)
    for engine in running:
        kind, args = engine.spec.kind, engine.spec.args
        for device in devices(engine.spec, present, environ)[: kind.gpus_needed(args)]:
            shares[device] += kind.share_of(args)
    return shares


def debugged(settings: Settings) -> Settings:
    """The same, with each engine in the debug environment of its kind. Its own `env` overrides that."""

    def debug(model: ModelSettings) -> ModelSettings:
        if model.engine is None:
            return model
        debugging = kind_of(model.engine.model).debug
        env = {**{name: SecretStr(value) for name, value in debugging.items()}, **model.engine.env}
        return model.model_copy(update={"engine": model.engine.model_copy(update={"env": env})})

    return settings.model_copy(update={"models": tuple(map(debug, settings.models))})


def fitted(spec: EngineSpec, settings: EngineSettings, seat: Seat) -> tuple[EngineSpec, tuple[str, ...], Bounds | None]:
    """Return the engine with filled-in arguments, what was filled and why, and what may be lowered to fit."""
    more = spec.kind.filled(spec.model, settings.args, seat.cards, settings.gpus is not None, seat.engines)
    bounds = Bounds(spec.kind.flags(settings.args), settings.min_model_len, on_gpus=seat.on_gpus)
    return (
        replace(spec, args=(*spec.args, *(arg for fill in more for arg in fill.args))),
        tuple(map(str, more)),
        bounds if settings.fit == "auto" else None,
    )
