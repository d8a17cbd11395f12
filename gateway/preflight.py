"""What is looked at before anything is set up or started: the models of the engines to launch, and chat templates."""

import os

from engine.plan.hub import CheckpointError
from engine.preflight import check_model
from gateway.chat_templates import chat_template, template_of
from gateway.config import Settings
from gateway.settings_sources import ConfigurationError


def preflight(settings: Settings) -> None:
    """Refuse what cannot be loaded, in a second rather than after an engine's start.

    Raises:
        ConfigurationError: a model or a template is gated, missing, misspelt, offline or broken; with the way out.
    """
    for model in settings.models:
        if model.engine is None:
            chat_template(model)
            continue
        chat_template(model.model_copy(update={"chat_template": template_of(model, model.engine.args)}))
        environ = {**os.environ, **{name: value.get_secret_value() for name, value in model.engine.env.items()}}
        try:
            check_model(model.engine.model, model.engine.args, environ)
        except CheckpointError as error:
            raise ConfigurationError(
                f"model {model.name or model.engine.model}: {error.cause}\n{error.remedy}"
            ) from None
