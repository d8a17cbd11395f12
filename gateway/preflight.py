"""What is looked at before anything starts: files of keys, chat templates, and the models of engines to launch."""

import os
from collections.abc import Iterator

from engine.plan.hub import CheckpointError
from engine.preflight import check_model
from gateway.chat_templates import chat_template, template_of
from gateway.config import Settings
from gateway.endpoints.tls import ssl_context
from gateway.settings_sources import ConfigurationError, read_secret


def check(settings: Settings) -> None:
    """Refuse settings that can be seen not to work, without asking anybody: no models, files that are not there.

    Raises:
        ConfigurationError: every fault, one a line.
    """
    if faults := list(_faults(settings)):
        raise ConfigurationError("\n".join(faults))


def _faults(settings: Settings) -> Iterator[str]:
    if not settings.models:
        yield "models: there is nothing to serve; write one, as [{endpoints: [{url: http://127.0.0.1:8000}]}]"
    auth = settings.auth
    known: dict[str, str] = {}
    for number, key in enumerate(auth.keys):
        where = f"auth.keys[{number}]"
        try:
            secret = read_secret(key.key, key.key_file) or ""
        except ConfigurationError as error:
            yield f"{where}: {error}"
            continue
        if (first := known.setdefault(secret, where)) != where:
            yield f"{where}: it is the same key as {first}, so nobody can tell the two apart; give each its own"
    try:
        read_secret(auth.admin_key, auth.admin_key_file)
    except ConfigurationError as error:
        yield f"auth.admin_key_file: {error}"
    for model in settings.models:
        try:
            chat_template(model)
        except ConfigurationError as error:
            yield str(error)
        for endpoint in model.endpoints:
            try:
                read_secret(endpoint.api_key, endpoint.api_key_file)
                ssl_context(endpoint.tls)
            except (ConfigurationError, ValueError) as error:
                yield f"endpoint {endpoint.address}: {error}"


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
