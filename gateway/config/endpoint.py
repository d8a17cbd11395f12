"""The settings of an endpoint: its address, key and TLS."""

import re
from pathlib import Path
from typing import Annotated, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, AnyUrl, BeforeValidator, Field, HttpUrl, UrlConstraints, model_validator

from gateway.config.fields import UNIX, Key, Section, unix_socket
from gateway.wire.engine_kinds import KINDS

_API_PATH = re.compile(r"(?<=[^/:])/+v1(?:/+(?P<more>[^?#]+)|/*)$")
"""The part of a URL from `/v1` on."""
_USER = re.compile(r"//.*@")
_Url = TypeVar("_Url", bound=AnyUrl)


class TlsSettings(Section):
    """The trust in an endpoint's certificate."""

    verify: bool = Field(True, description="False accepts any certificate.")
    ca_file: Path | None = Field(None, description="CA bundle to trust instead of the system's.")
    cert_file: Path | None = Field(None, description="Client certificate (PEM).")
    key_file: Path | None = Field(None, description="Key of the client certificate (PEM).")


def _as_pasted(url: object) -> object:
    """Accept the URL people have at hand: the `base_url` of their clients."""
    if not isinstance(url, str):
        return url
    url = url.strip()
    if "://" not in url:
        raise ValueError(f"expected a URL with its scheme, as http://{url.rpartition('@')[2]}")
    if (found := _API_PATH.search(url)) is None:
        return url
    if found["more"]:
        base = _USER.sub("//", url[: found.start()])
        raise ValueError(f"expected the base URL, {base}: kvgate adds the paths that are asked for")
    return url[: found.start()]


def _or_unix(url: object) -> object:
    """Accept a unix socket, too."""
    return unix_socket(url) if isinstance(url, str) and url.strip().startswith(UNIX) else _as_pasted(url)


def _plain(url: _Url) -> _Url:
    if url.username is not None or url.password is not None:
        raise ValueError("expected no user or password: give `api_key`")
    if url.query is not None or url.fragment is not None:
        raise ValueError("expected a base URL, without `?` and `#`")
    return url


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"expected one of {', '.join(KINDS)}")
    return kind


BaseUrl = Annotated[HttpUrl, BeforeValidator(_as_pasted), AfterValidator(_plain)]
_EndpointUrl = Annotated[
    AnyUrl,
    UrlConstraints(max_length=2083, allowed_schemes=["http", "https", "unix"]),
    BeforeValidator(_or_unix),
    AfterValidator(_plain),
]


def asked_at(base_url: str) -> str:
    """The base URL at which an HTTP client asks an endpoint: of a unix socket any, as the client has the socket."""
    return "http://localhost" if base_url.startswith(UNIX) else base_url


class Reached(Section):
    """How an endpoint is used, wherever its address comes from."""

    api_key: Key | None = Field(None, description="Sent to the endpoint as a bearer token.")
    api_key_file: Path | None = Field(None, description="File that holds the endpoint's key.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS towards the endpoint.")
    kind: Annotated[str, AfterValidator(_known)] | None = Field(
        None,
        description=f"What engine it is: {', '.join(f'`{name}`' for name in KINDS)}. It is asked where not given.",
    )
    max_model_len: int | None = Field(
        None, gt=0, description="Its length in tokens; read from it where not given. TensorRT-LLM does not tell it."
    )
    max_num_seqs: int | None = Field(None, gt=0, description="Its sequence limit; learned where not given.")
    kv_tokens: int | None = Field(None, gt=0, description="Its KV cache in tokens; read from it where not given.")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give at most one of `api_key` and `api_key_file`")
        return self

    @property
    def keyed(self) -> bool:
        """Whether it has a key of its own."""
        return self.api_key is not None or self.api_key_file is not None


class EndpointSettings(Reached):
    """An engine that already runs."""

    url: _EndpointUrl = Field(
        description="Base URL; a `/v1` at its end is taken off. Or a unix socket of this machine, as "
        "`unix:/run/vllm.sock`.",
        examples=["http://127.0.0.1:8000"],
    )

    @property
    def address(self) -> str:
        """Its host and port, or unix socket: its name in logs, metrics and the admin API."""
        return str(self.url) if self.unix is not None else urlsplit(str(self.url)).netloc

    @property
    def unix(self) -> str | None:
        """Path of its unix socket; None where it has a host and port."""
        return self.url.path if self.url.scheme == "unix" else None
