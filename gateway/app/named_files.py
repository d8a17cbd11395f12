"""The files that settings name, read: keys, certificates, chat templates."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.admission.events import EndpointId
from gateway.app.chat_templates import chat_template
from gateway.config.endpoint import EndpointSettings, TlsSettings
from gateway.config.errors import ConfigurationError
from gateway.config.fallback import FallbackSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.config.sources import read_secret
from gateway.config.tls import clients_context, ssl_context
from gateway.relay.client_identity import Client, Clients


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an endpoint.

    Attributes:
        model: the one it is configured under.
        api_key: sent to it.
        tls: for connections to it, probes and requests alike; None where its URL is not https.
    """

    model: ModelSettings
    settings: EndpointSettings
    api_key: str | None
    tls: ssl.SSLContext | None

    @property
    def base_url(self) -> str:
        """Without a trailing slash."""
        return str(self.settings.url).rstrip("/")


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The content of all files that settings name.

    Attributes:
        elsewhere: servers elsewhere, by the fallbacks that they are.
        templates: texts of chat templates, by the models' settings.
        tls: for connections of clients; None where they speak plain HTTP.
    """

    clients: Clients
    admin_key: str | None
    endpoints: Mapping[EndpointId, Access]
    elsewhere: Mapping[FallbackSettings, Access]
    templates: Mapping[str | None, str | None]
    tls: ssl.SSLContext | None


def read_named_files(settings: Settings) -> NamedFiles:
    """Read the files that settings name.

    Raises:
        ConfigurationError: a file cannot be read, or has the wrong content.
    """
    keys, hashed, limits = {}, {}, settings.auth.limits
    for given in settings.auth.keys:
        models = None if given.models is None else frozenset(given.models)
        limited = given.name in limits
        client = Client(given.name, given.priority, models, given.limits.max_tokens, limited, keyed=True)
        if given.key_sha256 is not None:
            hashed[bytes.fromhex(given.key_sha256)] = client
        elif (key := read_secret(given.key, given.key_file)) is not None:
            keys[key] = client
    endpoints, elsewhere = {}, {}
    contexts: dict[TlsSettings, ssl.SSLContext] = {}

    def access(model: ModelSettings, endpoint: EndpointSettings) -> Access:
        key = read_secret(endpoint.api_key, endpoint.api_key_file)
        return Access(model, endpoint, key, _context(endpoint, contexts))

    for model in settings.models:
        for endpoint in model.endpoints:
            endpoints[EndpointId(endpoint.address)] = access(model, endpoint)
        for fallback in model.fallbacks:
            if (server := fallback.elsewhere) is not None:
                elsewhere[fallback] = access(model, server)
    return NamedFiles(
        Clients(keys, settings.server.trusted_flow_header, hashed, settings.server.trusted_objectives),
        read_secret(settings.auth.admin_key, settings.auth.admin_key_file),
        endpoints,
        elsewhere,
        {model.chat_template: chat_template(model) for model in settings.models},
        _of_clients(settings),
    )


def _of_clients(settings: Settings) -> ssl.SSLContext | None:
    try:
        return clients_context(settings.server)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _context(endpoint: EndpointSettings, made: dict[TlsSettings, ssl.SSLContext]) -> ssl.SSLContext | None:
    """The context for an endpoint, made where it is needed, and once: it takes 20 ms and 1.4 MB."""
    if endpoint.url.scheme != "https":
        return None
    if endpoint.tls not in made:
        try:
            made[endpoint.tls] = ssl_context(endpoint.tls)
        except ValueError as error:
            raise ConfigurationError(f"{endpoint.address}: {error}") from None
    return made[endpoint.tls]
