"""Models of a hub that are fetched before anything starts: GGUF files, which a llama-server takes from a disk."""

import os
from collections.abc import Mapping

from engine.cache import to_stderr
from engine.llama.hub import fetched, is_on_hub
from engine.plan.hub import CheckpointError
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings, Settings


def local(model: str, environ: Mapping[str, str]) -> str:
    """The path of a GGUF file on a hub; any other model as it was named.

    Raises:
        CheckpointError: it cannot be fetched.
    """
    return fetched(model, environ, to_stderr) if is_on_hub(model) else model


def with_local_models(settings: Settings) -> Settings:
    """The same, with each engine's GGUF file of a hub as a file of this machine.

    Raises:
        ConfigurationError: one cannot be fetched.
    """
    models = (_local(model) if settings.launches(model) else model for model in settings.models)
    return settings.model_copy(update={"models": tuple(models)})


def _local(model: ModelSettings) -> ModelSettings:
    engine = model.engine
    if engine is None or not is_on_hub(engine.model):
        return model
    environ = {**os.environ, **{name: value.get_secret_value() for name, value in engine.env.items()}}
    try:
        path = local(engine.model, environ)
    except CheckpointError as error:
        raise ConfigurationError(f"model {model.name or engine.model}: {error.cause}\n{error.remedy}") from None
    return model.model_copy(update={"engine": engine.model_copy(update={"model": path})})
