"""The setup of each launched engine: its GPUs, the filled-in arguments, and the settings that may be lowered to fit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import SecretStr

from engine.arguments import Arguments
from engine.command import DEBUG_ENVIRONMENT, EngineSpec
from engine.filling import filled, gpus_needed, share_of
from engine.gpu import Gpu
from engine.memory_ladder import Bounds
from engine.placement import PlacementError, Wish, devices, place, visible
from engine.program import Engine
from gateway.config.engine import EngineSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.config.sources import ConfigurationError, revealed


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
    wanted = [(engine, group) for engine in engines for group in engine.gpus or (None,) * engine.replicas]
    wishes = [Wish(group, gpus_needed(Arguments.parse(engine.args)), engine.share_gpu) for engine, group in wanted]
    present = [card.index for card in cards]
    if present and len(wishes) > 1 and any("CUDA_VISIBLE_DEVICES" in engine.env for engine in engines):
        raise ConfigurationError(
            "engines: with several engines, an engine's `env` cannot set CUDA_VISIBLE_DEVICES, as the others would not "
            "know of it: give `gpus`"
        )
    try:
        placed = place(wishes, present, environ)
    except PlacementError as error:
        raise ConfigurationError(f"engines: {error}") from None
    ours = _shares(running, present, environ)
    unheld = [
        replace(card, free_bytes=min(card.total_bytes, card.free_bytes + round(held * card.total_bytes)))
        for card in cards
        for held in [ours.get(str(card.index), 0.0)]
    ]

    def seat(given: tuple[str, ...], wish: Wish, engine: EngineSettings) -> Seat:
        used = given or visible(present, {**environ, **revealed(engine)["env"]})[: wish.size]
        sharing = max((sum(device in other for other in placed) for device in given), default=1)
        return Seat(
            given,
            tuple(card for card in unheld if str(card.index) in used),
            bool(cards),
            sharing,
        )

    return [seat(given, wish, engine) for given, wish, (engine, _) in zip(placed, wishes, wanted, strict=True)]


def _shares(running: Sequence[Engine], present: Sequence[int], environ: Mapping[str, str]) -> Mapping[str, float]:
    """The share of each GPU's memory given to kvgate's engines."""
    shares: dict[str, float] = defaultdict(float)
    for engine in running:
        arguments = engine.spec.arguments
        for device in devices(engine.spec, present, environ)[: gpus_needed(arguments)]:
            shares[device] += share_of(arguments)
    return shares


def debugged(settings: Settings) -> Settings:
    """The same, with each engine in vLLM's debug environment. Its own `env` overrides that."""

    def debug(model: ModelSettings) -> ModelSettings:
        if model.engine is None:
            return model
        env = {**{name: SecretStr(value) for name, value in DEBUG_ENVIRONMENT.items()}, **model.engine.env}
        return model.model_copy(update={"engine": model.engine.model_copy(update={"env": env})})

    return settings.model_copy(update={"models": tuple(map(debug, settings.models))})


def fitted(spec: EngineSpec, settings: EngineSettings, seat: Seat) -> tuple[EngineSpec, tuple[str, ...], Bounds | None]:
    """Return the engine with filled-in arguments, what was filled and why, and what may be lowered to fit."""
    given = Arguments.parse(settings.args)
    more = filled(given, seat.cards, named=settings.gpus is not None, engines=seat.engines)
    bounds = Bounds(given.flags, settings.min_model_len, on_gpus=seat.on_gpus)
    return (
        replace(spec, args=(*spec.args, *(arg for fill in more for arg in fill.args))),
        tuple(map(str, more)),
        bounds if settings.fit == "auto" else None,
    )
