"""PURE. Signs in the log of a client that reached no server, or got no whole answer.

Texts, measured where `log_texts.yaml` says so: openai 3.54 over httpx2, httpx, aiohttp, requests, curl, Node's fetch.
"""

import re
from collections.abc import Iterable
from functools import partial

from engine.diagnosis.sign import Facts, Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.CLIENT, permanent=False, within=r"\A(?![\s\S]*(?:huggingface|modelscope))")
"""A client's sign. It excludes a download from a hub, which is no server of ours: `network.py` has those signs."""

LOOK = "`kvgate doctor --url http://HOST:PORT` looks at the server itself."
_ADDRESSES = tuple(
    re.compile(pattern)
    for pattern in (
        r"host='(?P<host>[^']{1,200})', port=(?P<port>\d{1,5})",
        r"connect E[A-Z]{5,20} (?P<host>[\w.:-]{1,200}):(?P<port>\d{1,5})\b",
        r"Cannot connect to host (?P<host>[^\s/]{1,200}):(?P<port>\d{1,5})\b",
        r"Failed to connect to (?P<host>\S{1,200}) port (?P<port>\d{1,5})\b",
        r"Connect call failed \('(?P<host>[^']{1,200})', (?P<port>\d{1,5})",
        r"dial tcp (?P<host>[^\s/]{1,200}):(?P<port>\d{1,5}):",
        r"https?://(?P<host>[\w.-]{1,200}|\[[\da-f:]{2,40}\]):(?P<port>\d{1,5})\b",
    )
)
"""The ways clients name the server; the last is any URL with a port."""

SIGNS = (
    _sign(
        "proxy between client and server",
        r"ProxyError|Unable to connect to proxy|407 Proxy Authentication|[Tt]unnel connection failed|"
        r"CONNECT tunnel failed",
        "A client went through a proxy that does not let it through to the server.",
        "Name the server's host in NO_PROXY and no_proxy of the client, or correct HTTP_PROXY, HTTPS_PROXY, ALL_PROXY.",
    ),
    _sign(
        "host unknown to a client",
        r"Name or service not known|failure in name resolution|ENOTFOUND|EAI_AGAIN|NameResolutionError|"
        r"Could not resolve host|nodename nor servname|no such host",
        "A client does not know the host that it is to connect to.",
        "Correct the host of its base_url. A name of Docker Compose or Kubernetes is known in that network only.",
    ),
    _sign(
        "client's URL without http",
        r"missing an 'http://' or 'https://' protocol|No scheme supplied|No connection adapters were found|"
        r"Failed to parse URL|unsupported protocol scheme",
        "A client's base_url does not begin with http:// or https://.",
        "Write http://HOST:PORT/v1, with the colon and both slashes.",
    ),
    _sign(
        "TLS to a server without",
        r"WRONG_VERSION_NUMBER|wrong version number|RECORD_LAYER_FAILURE|ERR_SSL_PACKET_LENGTH_TOO_LONG",
        "A client speaks TLS to a server that does not.",
        "Write http:// in place of https:// in its base_url, or name the port of the proxy that ends TLS.",
    ),
    _sign(
        "path unknown to the server",
        r"404 - \{'detail': 'Not Found'\}",
        "The server is there, and does not know the path that a client asks for.",
        "End the client's base_url with /v1, once; look whether the server has that route at all.",
    ),
    _sign(
        "client refused a connection",
        r"ECONNREFUSED|[Cc]onnection refused|Connect call failed|All connection attempts failed|"
        r"Couldn't connect to server|curl: \(7\)|WinError 10061",
        "A client was refused a connection: nothing listens where it asks.",
        "An engine's port opens only when its model is loaded: look whether it is still loading. Else host or port is "
        "wrong: vLLM listens on 8000, kvgate on 8080, and in a container 127.0.0.1 is the container itself. " + LOOK,
    ),
    _sign(
        "client got no connection in time",
        r"ConnectTimeout|UND_ERR_CONNECT_TIMEOUT|Connect Timeout Error|ETIMEDOUT|Connection timeout to host|"
        r"curl: \(28\) (?:Failed to connect|Connection timed out)|\[Errno 110\]|i/o timeout",
        "A client's attempt to connect was not answered at all, not even refused.",
        "Most often the host is wrong, a firewall drops what comes, or a proxy stands between that cannot reach it. "
        "Where the host is right, look whether it is overloaded or still starting. " + LOOK,
    ),
    _sign(
        "connection lost before the answer's end",
        r"RemoteProtocolError|Server disconnected|ServerDisconnectedError|ECONNRESET|UND_ERR_SOCKET|socket hang up|"
        r"RemoteDisconnected|Connection reset by peer|IncompleteRead|curl: \((?:18|52|56)\)",
        "A client's connection was closed before its answer was complete.",
        "The engine died (read its log: `kvgate doctor --log FILE`), a proxy gave up on a long answer (its read "
        "timeout), or an idle connection was used again after the server had closed it. " + LOOK,
    ),
    _sign(
        "client got no answer in time",
        r"ReadTimeout|Read timed out|Timeout on reading data|UND_ERR_(?:HEADERS|BODY)_TIMEOUT|"
        r"curl: \(28\) Operation timed out",
        "A client was connected, and gave up waiting for its answer.",
        "Give it a timeout over the wait in the queue (`queue.ttl`) and the longest answer together, or let it stream: "
        "then its timeout is for the next event. " + LOOK,
    ),
    _sign(
        "client timed out",
        r"APITimeoutError|APIConnectionTimeoutError",
        "A client gave up: no connection or no answer in time.",
        "Look whether the engine is still loading, whether the port is right and whether a proxy stands between; then "
        "give the client more time. " + LOOK,
        weight=Weight.EFFECT,
    ),
    _sign(
        "client without a connection",
        r"APIConnectionError|TypeError: fetch failed|^(?:\S+: ){0,3}Connection error\.",
        "A client did not reach its server.",
        "Look whether the engine is still loading, whether the port is right (vLLM: 8000, kvgate: 8080) and whether a "
        "proxy stands between. " + LOOK,
        weight=Weight.EFFECT,
    ),
)
"""If a log shows several, the first in this order counts: one failed attempt can show several."""


def address(texts: Iterable[str]) -> Facts:
    """The client's server, as `host` and `port`; empty if the log does not say."""
    found: dict[int, Facts] = {}
    for text in texts:
        for rank, pattern in enumerate(_ADDRESSES):
            if rank not in found and (match := pattern.search(text)):
                found[rank] = {"host": match["host"].strip("[]"), "port": match["port"]}
    return found[min(found)] if found else {}
