"""What each engine that is launched gets: its GPUs, the arguments nobody gave, and what may be lowered to fit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import SecretStr

from engine.command import DEBUG_ENVIRONMENT, EngineSpec, flags_of
from engine.filling import filled, gpus_needed, share_of
from engine.fit import Bounds
from engine.gpu import Gpu
from engine.placement import PlacementError, Wish, place, visible
from engine.program import Program
from gateway.config import EngineSettings, ModelSettings, Settings
from gateway.settings_sources import ConfigurationError


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one engine runs.

    Attributes:
        gpus: What `CUDA_VISIBLE_DEVICES` shall hold; nothing to leave it as it is.
        cards: Those GPUs, with what would be free without kvgate's own engines; none where they are not known by
            index.
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
    running: Sequence[Program] = (),
) -> list[Seat]:
    """Return a seat for each replica of each engine, in order.

    Args:
        engines: that are launched.
        cards: this machine's GPUs, measured now.
        environ: kvgate's own environment.
        running: engines that run already; what they hold counts as free, as they are replaced or share a card.

    Raises:
        ConfigurationError: they cannot be placed.
    """
    wishes = [
        Wish(group, gpus_needed(engine.args), engine.share_gpu)
        for engine in engines
        for group in engine.gpus or (None,) * engine.replicas
    ]
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
    seen = visible(present, environ)
    ours = _shares(running, seen)
    unheld = [
        replace(card, free_bytes=min(card.total_bytes, card.free_bytes + round(held * card.total_bytes)))
        for card in cards
        for held in [ours.get(str(card.index), 0.0)]
    ]

    def seat(devices: tuple[str, ...], wish: Wish) -> Seat:
        used = devices or tuple(seen[: wish.size])
        sharing = max((sum(device in other for other in placed) for device in devices), default=1)
        return Seat(
            devices,
            tuple(card for card in unheld if str(card.index) in used),
            bool(cards),
            sharing,
        )

    return [seat(devices, wish) for devices, wish in zip(placed, wishes, strict=True)]


def _shares(running: Sequence[Program], seen: Sequence[str]) -> Mapping[str, float]:
    """The share of each GPU's memory that engines of kvgate's were given."""
    shares: dict[str, float] = defaultdict(float)
    for program in running:
        said = program.env.get("CUDA_VISIBLE_DEVICES")
        for device in (said.split(",") if said else seen)[: gpus_needed(program.argv)]:
            shares[device] += share_of(program.argv)
    return shares


def debugged(settings: Settings) -> Settings:
    """The same, with each engine in vLLM's debug environment; what its own `env` says of it stays."""

    def debug(model: ModelSettings) -> ModelSettings:
        if model.engine is None:
            return model
        env = {**{name: SecretStr(value) for name, value in DEBUG_ENVIRONMENT.items()}, **model.engine.env}
        return model.model_copy(update={"engine": model.engine.model_copy(update={"env": env})})

    return settings.model_copy(update={"models": tuple(map(debug, settings.models))})


def fitted(spec: EngineSpec, settings: EngineSettings, seat: Seat) -> tuple[EngineSpec, tuple[str, ...], Bounds | None]:
    """Return the engine with what nobody gave filled in, what was filled and why, and what may be lowered to fit."""
    more = filled(settings.args, seat.cards, named=settings.gpus is not None, engines=seat.engines)
    bounds = Bounds(flags_of(settings.args), settings.min_model_len, on_gpus=seat.on_gpus)
    return (
        replace(spec, args=(*spec.args, *(arg for fill in more for arg in fill.args))),
        tuple(map(str, more)),
        bounds if settings.fit == "auto" else None,
    )
