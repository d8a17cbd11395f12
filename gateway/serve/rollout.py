"""PURE. The rollout of new settings: the engines to replace, add and remove, and the notice of a visible change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import AnyUrl

from engine.program import Engine
from gateway.config.endpoint import EndpointSettings
from gateway.config.fallback import FallbackSettings
from gateway.config.settings import ModelSettings, Settings


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the set of engines.

    Attributes:
        taken_over: Pairs of an old engine and the new one at its address, which cannot come before that has ended.
        replaced: Other pairs of an old engine and its replacement.
        added: New engines that replace none.
        removed: Old engines without a replacement.
    """

    taken_over: tuple[tuple[Engine, Engine], ...] = ()
    replaced: tuple[tuple[Engine, Engine], ...] = ()
    added: tuple[Engine, ...] = ()
    removed: tuple[Engine, ...] = ()

    @classmethod
    def between(cls, old: Sequence[Engine], new: Sequence[Engine]) -> "Change":
        """Pair old engines with new ones: first those of one address, then those of one served name, then in order."""
        going = [program for program in old if program not in new]
        coming = [program for program in new if program not in old]

        def pairs(alike: Callable[[Engine, Engine], bool]) -> Iterator[tuple[Engine, Engine]]:
            for program in list(coming):
                match = next((one for one in going if alike(one, program)), None)
                if match is not None:
                    going.remove(match)
                    coming.remove(program)
                    yield match, program

        taken_over = (*pairs(lambda one, other: one.spec.address == other.spec.address),)
        replaced = (*pairs(lambda one, other: serves(one) == serves(other)), *pairs(lambda _one, _other: True))
        return cls(taken_over, replaced, tuple(coming), tuple(going))


def serves(engine: Engine) -> str:
    """The name clients use for an engine's model."""
    return engine.spec.served_name


def meanwhile(settings: Settings, now: Settings, coming: Sequence[Engine], going: Sequence[Engine]) -> Settings:
    """A gateway's settings while some engines have yet to come, and others that are to go still serve.

    A model that has nothing else before its engine comes keeps what it has, be it an endpoint or an adapter.

    Args:
        settings: What is to be, with those to come, and without those to go.
        now: What is.
        coming: Those to come: nobody is to wait for them yet.
        going: Those to go.
    """
    to_come, to_go = ({engine.spec.address for engine in engines} for engines in (coming, going))
    present = _with(settings, lambda endpoints: [at for at in endpoints if at.address not in to_come])
    awaited = {
        model.name
        for model, there in zip(settings.models, present.models, strict=True)
        if model.endpoints and not (there.endpoints or there.discover)
    }
    kept = [
        model
        if model.name in awaited
        else model.model_copy(update={"endpoints": tuple(at for at in model.endpoints if at.address in to_go)})
        for model in now.models
    ]
    both = beside(present, now.model_copy(update={"models": tuple(kept)}))
    adapters = {model.name: [one for one in model.lora if one.name in awaited] for model in now.models}
    models = [
        model.model_copy(update={"lora": (*model.lora, *adapters.get(model.name, ()))})
        for model in both.models
        if model.endpoints or model.discover
    ]
    return _of(both, models)


def elsewhere(settings: Settings, engine: Engine, now: Engine) -> Settings:
    """Settings in which an engine has another's address."""

    def moved(endpoint: EndpointSettings) -> EndpointSettings:
        is_its = endpoint.address == engine.spec.address
        return endpoint.model_copy(update={"url": AnyUrl(now.spec.url)}) if is_its else endpoint

    return _with(settings, lambda endpoints: map(moved, endpoints))


def _with(settings: Settings, change: Callable[[Sequence[EndpointSettings]], Iterable[EndpointSettings]]) -> Settings:
    """Settings with each model's endpoints changed like this."""
    models = (model.model_copy(update={"endpoints": tuple(change(model.endpoints))}) for model in settings.models)
    return settings.model_copy(update={"models": tuple(models)})


def beside(settings: Settings, other: Settings) -> Settings:
    """Settings with the models and endpoints of others, too; not with a model whose name is an adapter's in the other.

    While one set of gateways takes over from another, whoever decides, and who still carries requests, knows both.
    """
    models = list(settings.models)
    taken = {endpoint.address for model in models for endpoint in model.endpoints}
    for also in other.models:
        new = tuple(endpoint for endpoint in also.endpoints if endpoint.address not in taken)
        taken.update(endpoint.address for endpoint in new)
        at = next((number for number, model in enumerate(models) if model.name == also.name), None)
        if at is not None:
            models[at] = models[at].model_copy(update={"endpoints": (*models[at].endpoints, *new)})
        elif new and not any(_clash(also, model) or _clash(model, also) for model in models):
            models.append(also.model_copy(update={"endpoints": new}))
    return _of(settings, models)


def _of(settings: Settings, models: Sequence[ModelSettings]) -> Settings:
    """Settings with these models, and no fallback to another one."""
    names = {model.known_as for model in models}

    def is_there(fallback: FallbackSettings) -> bool:
        return fallback.url is not None or fallback.model in names

    there = (model.model_copy(update={"fallbacks": (*filter(is_there, model.fallbacks),)}) for model in models)
    return settings.model_copy(update={"models": (*there,)})


def _clash(model: ModelSettings, other: ModelSettings) -> bool:
    return any(adapter.name == model.name for adapter in other.lora)


def notice(old: Engine, new: Engine, *, others: int, took: float | None, patience: float) -> str:
    """The effect on clients of replacing an engine in its place.

    Args:
        old: The engine that goes first.
        new: The one that comes then.
        others: How many more serve its model meanwhile.
        took: Seconds of its last start; None if unknown.
        patience: Seconds that a request waits for an engine.
    """
    if serves(new) != serves(old):
        return f"{serves(old)} ends, and {serves(new)} is served when its engine is ready"
    if others:
        return f"{serves(old)} is served by {others} of {others + 1} engines meanwhile"
    wait = f"requests for {serves(old)} wait for those on it"
    if took is None:
        return f"{wait} and then for the new engine; after {patience:g} s they are refused"
    wait += f", and about {took:.0f} s then"
    if took <= patience:
        return f"{wait}: so long its last start took"
    return f"{wait}, as its last start took; those that have waited {patience:g} s are refused with 503"


def knows(settings: Settings, engine: Engine) -> bool:
    """Whether an engine is one of a gateway's endpoints."""
    return engine.spec.address in addresses(settings)


def addresses(settings: Settings) -> set[str]:
    """The addresses of a gateway's endpoints."""
    return {endpoint.address for model in settings.models for endpoint in model.endpoints}
