"""The checks before anything starts: key files, chat templates, and the models of engines to launch."""

import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from shutil import which

from gateway.app.chat_templates import chat_template, template_of
from gateway.config.auth import AuthSettings
from gateway.config.endpoint import TlsSettings
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.config.sources import read_secret
from gateway.config.tls import expect_usable, ssl_context
from gateway.ops.otlp import environment
from gateway.tier.key_file import tier_key

_USUAL = TlsSettings()
"""It names no file that could be wrong."""


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, without any network: no models, missing files.

    Raises:
        ConfigurationError: lists every fault, one a line.
    """
    if faults := list(_faults(settings)):
        raise ConfigurationError("\n".join(faults))


def _faults(settings: Settings) -> Iterator[str]:
    if not settings.models:
        yield "models: there is nothing to serve; write one, as [{endpoints: [{url: http://127.0.0.1:8000}]}]"
    try:
        expect_usable(settings.server)
    except ValueError as error:
        yield str(error)
    yield from _of_event_log(settings.admission.event_log)
    auth = settings.auth
    yield from _of_clients(auth)
    readable: Mapping[str, Callable[[], object]] = {
        "auth.admin_key_file": lambda: read_secret(auth.admin_key, auth.admin_key_file),
        "tier.key_file": lambda: tier_key(settings.tier),
        "OpenTelemetry": lambda: environment.read(os.environ),
    }
    for where, read in readable.items():
        try:
            read()
        except ConfigurationError as error:
            yield f"{where}: {error}"
    yield from _of_engines(settings)
    for model in settings.models:
        try:
            chat_template(model)
        except ConfigurationError as error:
            yield str(error)
        named = [
            *((endpoint.address, endpoint) for endpoint in model.endpoints),
            *((d.name, d) for d in model.discover),
            *((server.address, server) for one in model.fallbacks if (server := one.elsewhere) is not None),
        ]
        for name, endpoint in named:
            try:
                read_secret(endpoint.api_key, endpoint.api_key_file)
                if endpoint.tls != _USUAL:
                    ssl_context(endpoint.tls)
            except (ConfigurationError, ValueError) as error:
                yield f"endpoint {name}: {error}"


def _of_event_log(file: Path | None) -> Iterator[str]:
    """What a process that decides would end of; a reload must find it before that process takes over."""
    if file is None:
        return
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        why = (
            "it is a folder"
            if file.is_dir()
            else "it may not be written"
            if file.exists()
            else "no such folder to write in"
        )
        yield f"admission.event_log = {str(file)!r}: {why}"


def _of_engines(settings: Settings) -> Iterator[str]:
    """What engines need, and what they need in a tier, and only there."""
    tier = settings.tier.redis is not None
    for model in settings.models:
        if (engine := model.engine) is None:
            continue
        if tier and engine.at is None:
            yield (
                f"model {model.known_as}: in a tier every gateway reaches every engine: give it `at` and `on_demand`, "
                "or serve it apart, as one of `endpoints`"
            )
        elif engine.at is not None and not tier:
            yield f"model {model.known_as}: `at` of its engine is for a `tier`"
        elif engine.at is not None and model.name is None:
            yield f"model {model.known_as}: it needs a `name`, as not every gateway of the tier has its files"
        elif engine.python is not None and settings.launches(model) and which(engine.python) is None:
            yield f"model {model.known_as}: `python` of its engine is {str(engine.python)!r}, which is no program here"


def _of_clients(auth: AuthSettings) -> Iterator[str]:
    known: dict[str, str] = {}
    for number, key in enumerate(auth.keys):
        where = f"auth.keys[{number}]"
        try:
            secret = key.key_sha256 or sha256((read_secret(key.key, key.key_file) or "").encode()).hexdigest()
        except ConfigurationError as error:
            yield f"{where}: {error}"
            continue
        if (first := known.setdefault(secret, where)) != where:
            yield f"{where}: it is the same key as {first}, so nobody can tell the two apart; give each its own"


def preflight(settings: Settings) -> None:
    """Refuse in a second a model or template that would fail only after an engine's start.

    Raises:
        ConfigurationError: a model or a template is gated, missing, misspelt, offline or broken. The message gives the
            way out.
    """
    from engine.kinds import kind_of  # noqa: PLC0415 - only who launches an engine needs all this
    from engine.plan.hub import CheckpointError  # noqa: PLC0415
    from gateway.serve.adapters import check_adapters  # noqa: PLC0415

    for model in settings.models:
        if model.engine is None or not settings.launches(model):
            chat_template(model)
            continue
        kind, args = kind_of(model.engine.model), model.engine.args
        given = kind.fronted(model.engine.model, args).chat_template
        chat_template(model.model_copy(update={"chat_template": template_of(model, given)}))
        environ = {**os.environ, **{name: value.get_secret_value() for name, value in model.engine.env.items()}}
        try:
            base = kind.check(model.engine.model, args, environ)
        except CheckpointError as error:
            raise ConfigurationError(
                f"model {model.name or model.engine.model}: {error.cause}\n{error.remedy}"
            ) from None
        check_adapters(model, kind, args, base)
