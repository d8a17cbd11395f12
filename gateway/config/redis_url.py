"""PURE. The address of a Redis or Valkey, alone or behind Sentinel, as a URL that may hold a password.

    redis://[user:password@]host[:port][/database]
    unix:///path[?db=0]
    redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/database]

`rediss` in place of `redis` is TLS; `valkey` and `valkeys` mean the same. No message here repeats a user, a password or
the options: whoever reads a log could use them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

_SCHEMES: Mapping[str, tuple[bool, bool]] = {
    f"{name}{plus}": (tls, bool(plus))
    for name, tls in (("redis", False), ("rediss", True), ("valkey", False), ("valkeys", True))
    for plus in ("", "+sentinel")
}
"""Whether it is TLS, and whether Sentinel, by scheme."""
_OPTIONS = frozenset(
    {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}
    | {"sentinel_username", "sentinel_password"}
)
_PORT, _SENTINEL_PORT = 6379, 26379
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:,\s]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a Redis is, and how to get in.

    Attributes:
        hosts: the one Redis, or the Sentinels that know it; empty with a `path`.
        path: of a unix socket.
        service: what the Sentinels call it; "" is no Sentinel.
        database: its number.
        username: for ACL.
        password: of the Redis.
        tls: whether all connections are encrypted.
        options: the other parts of the query, by name: files for TLS, credentials of the Sentinels.
    """

    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """The places alone, for logs."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return self.path or (f"{self.service} by Sentinel at {hosts}" if self.service else hosts)


def redis_address(url: str) -> RedisAddress:
    """Read a URL.

    Raises:
        ValueError: it is none of the forms above; the message, for its author, holds no part that may be secret.
    """
    scheme, there, rest = url.strip().partition("://")
    rest, _, query = rest.partition("?")
    options = _options(query)
    database = options.pop("db", "0")
    if there and scheme == "unix":
        if not rest.startswith("/"):
            raise ValueError("expected the path of a socket, as unix:///run/redis.sock")
        return RedisAddress((), unquote(rest), database=_number(database), options=options)
    if not there or scheme not in _SCHEMES:
        raise ValueError("expected a URL with its scheme, as redis://host:6379 or redis+sentinel://host:26379/mymaster")
    tls, sentinel = _SCHEMES[scheme]
    credentials, _, places = rest.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts, *path = places.rstrip("/").split("/")
    service = unquote(path.pop(0)) if sentinel and path else ""
    if sentinel and not service:
        raise ValueError("expected the name of the service after the hosts, as redis+sentinel://host:26379/mymaster")
    if path:
        database = path.pop(0)
    if path:
        raise ValueError("expected nothing after the number of the database")
    found = tuple(_host(host, _SENTINEL_PORT if sentinel else _PORT) for host in hosts.split(","))
    if len(found) > 1 and not sentinel:
        raise ValueError("expected one host; several are for Sentinel, as redis+sentinel://host,host2/mymaster")
    return RedisAddress(
        found,
        service=service,
        database=_number(database),
        username=unquote(username) or None,
        password=unquote(password) or None,
        tls=tls,
        options=options,
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if options.keys() - _OPTIONS:
        raise ValueError(f"expected no options but {', '.join(sorted(_OPTIONS))}; in a password, `?` is %3F")
    return options


def _host(text: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or port) > 65535:  # noqa: PLR2004 - the last port
        raise ValueError("expected HOST or HOST:PORT")
    return found["v6"] or found["name"], int(found["port"] or port)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("expected the number of a database after the host, as redis://host:6379/0")
    return int(text)
