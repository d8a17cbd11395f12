"""The settings of a source of endpoints that come and go."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, HttpUrl, model_validator

from gateway.config.endpoint import BaseUrl, EndpointSettings, Reached
from gateway.config.fields import Seconds


def _is_name(url: HttpUrl) -> HttpUrl:
    host = (url.host or "").strip("[]")
    if _is_address(host):
        raise ValueError(f"expected a name, and {host} is an address: it goes to `endpoints`")
    return url


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _service(name: str) -> str:
    """An SRV name with its scheme."""
    name = name.strip()
    if not _SRV.fullmatch(name):
        raise ValueError(
            "expected the name of SRV records, as _vllm._tcp.example.org or https://_vllm._tcp.example.org"
        )
    return name if "://" in name else f"http://{name}"


_SRV = re.compile(r"(https?://)?[\w-]+(\.[\w-]+)*\.?")


def _server(text: str) -> str:
    """The address of a name server, with its port."""
    found = _SERVER.fullmatch(text.strip())
    host = found["six"] or found["four"] if found is not None else ""
    if found is None or not _is_address(host):
        raise ValueError("expected the address of a name server, as 127.0.0.1:8600 or [::1]:53")
    return text.strip() if found["port"] else f"{text.strip()}:{_DNS_PORT}"


_SERVER = re.compile(r"(\[(?P<six>[^]]+)\]|(?P<four>[^:]+))(:(?P<port>\d{1,5}))?")
_DNS_PORT = 53


class DiscoverySettings(Reached):
    """A source of endpoints that come and go. Its other settings are those of every endpoint found there."""

    dns: Annotated[BaseUrl, AfterValidator(_is_name)] | None = Field(
        None,
        description="URL with a name of which every address is an endpoint: its A records, or AAAA where it has none. "
        "A name server is asked, and no `/etc/hosts`. With https the certificate must name the address.",
        examples=["http://vllm-headless.default.svc.cluster.local:8000"],
    )
    srv: Annotated[str, AfterValidator(_service)] | None = Field(
        None,
        description="Name of SRV records, each with the host and port of an endpoint; `https://` before it for TLS. "
        "Priority and weight are not used.",
        examples=["_vllm._tcp.example.org"],
    )
    file: Path | None = Field(
        None,
        description="YAML or JSON file with a list of endpoints: URLs, or entries as in `endpoints`. Read again when "
        "it changes.",
    )
    nameserver: Annotated[str, AfterValidator(_server)] | None = Field(
        None, description="Address of the name server; the system's where not given.", examples=["127.0.0.1:8600"]
    )
    interval: Seconds = Field(
        10.0,
        description="Longest time until DNS is asked again; sooner where a record's TTL (at least 1 s) is shorter.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.dns, self.srv, self.file)) != 1:
            raise ValueError("give exactly one of `dns`, `srv` and `file`")
        if self.file is not None and self.nameserver is not None:
            raise ValueError("`nameserver` goes with `dns` or `srv`")
        return self

    @property
    def name(self) -> str:
        """What logs call it."""
        return str(self.dns or self.srv or self.file).rstrip("/")

    def endpoint(self, **given: object) -> EndpointSettings:
        """An endpoint found there; what is `given` goes before the settings of the source.

        Raises:
            ValidationError: something is wrong with it.
        """
        common: dict[str, object] = {name: getattr(self, name) for name in Reached.model_fields}
        if not given.keys().isdisjoint(_KEYS):
            common = {name: value for name, value in common.items() if name not in _KEYS}
        return EndpointSettings.model_validate({**common, **given})


_KEYS = frozenset({"api_key", "api_key_file"})
