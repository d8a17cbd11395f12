"""The test for callers on this machine: neither a proxy for somebody else nor a web page in a browser here."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

_FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
"""Headers that proxies add, besides all that begin with `x-forwarded-`."""


def on_this_machine(scope: Mapping[str, Any]) -> bool:
    """Whether an ASGI request comes from a loopback address, for a loopback host, and no proxy or foreign page sent it.

    A proxy on this machine has a loopback address too. Its `Host` is its client's or its own name for us: an nginx with
    only `proxy_pass` names our address, adds no header and speaks HTTP/1.0 (up to 1.29). A page in a browser can post
    to any address, and a name it owns may resolve to ours; but the browser states the page's origin.
    """
    peer = scope.get("client")
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    return (
        peer is not None
        and scope["http_version"] != "1.0"
        and _loopback(peer[0])
        and len(hosts) == 1
        and _loopback(_hostname(hosts[0]))
        and all(origin == b"%b://%b" % (scope["scheme"].encode(), hosts[0]) for origin in origins)
        and not any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name, _ in scope["headers"])
    )


def _hostname(host: bytes) -> str:
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
