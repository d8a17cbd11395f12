"""PURE. The way from a client of this machine to its server: listeners, engines still starting, a proxy in between."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.diagnosis.machine import Listener

KVGATE_PORT, VLLM_PORT = 8080, 8000
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})


@dataclass(frozen=True, slots=True)
class Way:
    """The observations on the way to a server.

    Attributes:
        host: The server's host; empty if unknown.
        port: The server's port; None if unknown.
        looked_at: The checked ports of this machine; none if the server is on another machine.
        listeners: The listeners on these ports.
        starting: Engines of this machine that will listen on one of them but do not yet, by port.
        proxy: Host and port of the proxy that clients of this environment use; empty if they use none.
    """

    host: str = ""
    port: int | None = None
    looked_at: Sequence[int] = ()
    listeners: Sequence[Listener] = ()
    starting: Sequence[tuple[int, str]] = ()
    proxy: str = ""


def is_local(host: str) -> bool:
    """Whether this host name means the machine itself."""
    return host in _LOCAL or host.startswith("127.")


def ports(host: str, port: int | None) -> tuple[int, ...]:
    """The ports of this machine worth checking: the server's own, and the defaults of kvgate and vLLM."""
    if host and not is_local(host):
        return ()
    return tuple(dict.fromkeys((*([port] if port else []), KVGATE_PORT, VLLM_PORT)))


def proxy_between(host: str, environ: Mapping[str, str], *, scheme: str = "http") -> str:
    """The proxy that clients of this environment use, without its password; empty if they use none."""
    upper = {name[:-6].lower(): value for name, value in environ.items() if name.endswith("_PROXY") and value}
    lower = {name[:-6]: value for name, value in environ.items() if name.endswith("_proxy") and value}
    proxies = upper | lower
    url = proxies.get(scheme) or proxies.get("all", "")
    straight = [name.strip().lstrip(".") for name in proxies.get("no", "").split(",") if name.strip()]
    if not url or any(name == "*" or f".{host}".endswith(f".{name}") for name in straight):
        return ""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2]


def seen(way: Way) -> str:
    """The things that were looked at, in one clause; empty if there were none."""
    clauses = [_port(way, port) for port in way.looked_at]
    if way.proxy:
        clauses.append(f"the environment's proxy {way.proxy} stands between")
    return "; ".join(clauses)


def remedy(way: Way) -> str:
    """The remedy for what was seen; empty if that does not explain the failure."""
    return " ".join(_remedies(way))


def _port(way: Way, port: int) -> str:
    loading = [engine for of, engine in way.starting if of == port]
    listener = next((listener for listener in way.listeners if listener.port == port), None)
    if loading:
        return f"port {port} is not open yet: {', '.join(loading)} is starting"
    if listener is None:
        return f"nobody listens on port {port} here"
    who = "kvgate" if listener.is_kvgate else listener.name or "a process of another user"
    return f"port {port} is open here: {who}"


def _remedies(way: Way) -> Iterator[str]:
    if way.proxy:
        yield f"Name {way.host or 'the server'} in NO_PROXY and no_proxy: a proxy stands between."
    open_ports = {listener.port: listener for listener in way.listeners}
    if loading := [port for port, _ in way.starting if way.port in {port, None}]:
        yield (
            f"Wait: the engine on port {loading[0]} is still loading, and its port opens when the model is loaded. "
            "kvgate answers while engines load, and holds requests for them."
        )
    elif way.port is not None and way.looked_at and way.port not in open_ports:
        others = [listener for listener in way.listeners if listener.is_kvgate or listener.port == VLLM_PORT]
        if others:
            who = "kvgate" if others[0].is_kvgate else "a server"
            yield f"Take port {others[0].port}, where {who} listens: nobody listens on {way.port}."
        else:
            yield f"Start the server: nobody listens on port {way.port}, and no engine of this machine is loading."
