"""The kinds of values that settings share."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OptionalSeconds = Annotated[Seconds | None, BeforeValidator(lambda value: None if value == "none" else value)]
"""Null in the environment and on the command line, which have none of their own."""
OptionalTokens = Annotated[
    Annotated[int, Field(gt=0)] | None, BeforeValidator(lambda value: None if value == "none" else value)
]
Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]


def usable_key(text: str) -> str:
    """The key as sent, without surrounding white space.

    Raises:
        ValueError: the key is empty, which would let everybody in, or cannot stand in a header.
    """
    key = text.strip()
    if not key:
        raise ValueError("expected a key, this one is empty")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("expected a key of one line of ASCII characters")
    return key


Key = Annotated[SecretStr, AfterValidator(lambda key: SecretStr(usable_key(key.get_secret_value())))]


def _host_and_port(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise ValueError("expected HOST:PORT, as 10.0.0.7:8500")
    if host in {"0.0.0.0", "[::]", "::", "*"}:
        raise ValueError("expected the address of this machine as the others reach it, not every address")
    return text.strip().lower()


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]
"""Of one machine of a tier, as the others reach it."""


UNIX = "unix:"
"""Before the path of a unix socket."""
_SOCKET = re.compile(r"unix:(?://(?=/))?(?P<path>/(?!/)[\w./:@+,=~-]*[\w.:@+,=~-])", re.ASCII)
_LONGEST_SOCKET = 107
"""Most bytes of a unix socket's path in its address (sockaddr_un)."""


def unix_socket(text: str) -> str:
    """The unix socket in one spelling, `unix:/run/vllm.sock`.

    Raises:
        ValueError: its path is none of a socket, or is not plain.
    """
    found = _SOCKET.fullmatch(text.strip())
    if found is None:
        raise ValueError("expected the whole path of a socket, of plain characters, as unix:/run/vllm.sock")
    if len(found["path"]) > _LONGEST_SOCKET:
        raise ValueError(f"expected a path of at most {_LONGEST_SOCKET} characters, the most that a socket may have")
    return f"{UNIX}{found['path']}"


def is_loopback(host: str | None) -> bool:
    """Whether a host, as an address or in a URL, is surely this machine."""
    host = (host or "").strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Section(BaseModel):
    """A part of the settings. Once made it does not change. `sources.py` says what is wrong with one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
