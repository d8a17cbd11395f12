"""The engines on demand that take turns though no `group` says so: the GPUs they name do not hold them all at once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.kinds import kind_of
from engine.plan.budget import UTILIZATION
from gateway.config.engine import EngineSettings, host_of
from gateway.config.settings import ModelSettings, Settings


@dataclass(frozen=True, slots=True)
class Shared:
    """GPUs that several engines on demand name.

    Attributes:
        name: of these GPUs.
        models: names of the engines' models.
        share: of each card's memory that all of them would take.
    """

    name: str
    models: tuple[str, ...]
    share: float

    @property
    def fits(self) -> bool:
        """Whether they may all run at once, with as much left free as one engine leaves by default."""
        return self.share <= UTILIZATION

    def __str__(self) -> str:
        names = ", ".join(self.models)
        if self.fits:
            return f"{names}: run side by side on {self.name}, of which they take {self.share:.0%}"
        return f"{names}: take turns on {self.name}, of which they would take {self.share:.0%} at once"


def shared(settings: Settings) -> Iterator[Shared]:
    """The GPUs that engines on demand name alike, where neither `group` nor `share_gpu` says how they share them."""
    yield from _found(settings).values()


def with_turns(settings: Settings) -> Settings:
    """The same, where such engines have a `group` if they do not fit at once, and else `share_gpu`."""
    found = _found(settings)

    def told(model: ModelSettings) -> ModelSettings:
        if model.engine is None or (at := found.get(_place(model.engine))) is None:
            return model
        how = {"share_gpu": True} if at.fits else {"group": at.name}
        return model.model_copy(update={"engine": model.engine.model_copy(update=how)})

    return settings.model_copy(update={"models": tuple(map(told, settings.models))})


def _found(settings: Settings) -> Mapping[object, Shared]:
    on: dict[object, list[ModelSettings]] = defaultdict(list)
    for model in settings.models:
        if model.engine is not None and (place := _place(model.engine)) is not None:
            on[place].append(model)
    return {place: _shared(models) for place, models in on.items() if len(models) > 1}


def _place(engine: EngineSettings) -> object:
    """The machine and the GPUs that an engine has; None where its settings say how it shares them, or name none."""
    if not engine.on_demand or engine.group is not None or engine.share_gpu or engine.gpus is None:
        return None
    return None if engine.at is None else host_of(engine.at), engine.gpus


def _shared(models: Sequence[ModelSettings]) -> Shared:
    engines = [model.engine for model in models if model.engine is not None]
    ((cards,), *_) = (engine.gpus for engine in engines if engine.gpus is not None)
    name = f"GPU{'s' if len(cards) > 1 else ''} {', '.join(map(str, cards))}"
    # A llama-server takes what it finds free.
    share = sum(kind_of(engine.model).share_of(engine.args) or 1.0 for engine in engines)
    return Shared(name, tuple(str(model.known_as) for model in models), share)
