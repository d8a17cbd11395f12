"""The headers that cross the gateway, in both directions."""

import os
import re
from math import ceil

from gateway.admission.limits.limit import Standing
from gateway.ops.otlp.trace import TRACE_HEADERS, told
from gateway.server.asgi import Headers, Scope, header

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""Hop-by-hop headers (RFC 9110, 7.6.1; RFC 7540, 3.2.1): they concern one connection, not the message.

So do the headers that `Connection` names."""

TTFT_HEADERS = (b"x-kvgate-ttft-ms", b"x-llm-d-slo-ttft-ms")
"""Headers in which a client asks for a time to first token, in milliseconds; the first one present counts."""
FALLBACK_HEADER = b"x-kvgate-fallback"
"""Of a request: `allow` lets another model answer. Of an answer: the one that does."""
_OURS = b"x-kvgate-"
"""Prefix of headers between client and kvgate. They never go to an endpoint, and an endpoint's never to a client."""

_NOT_SENT = _HOP_BY_HOP | {
    *TTFT_HEADERS,
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",  # kvgate could not read an encoded answer
    b"x-request-id",
    b"x-data-parallel-rank",  # the picker decides the rank
    b"x-vllm-priority",
}
_CREDENTIALS = frozenset({b"authorization", b"x-api-key"})
_NOT_RETURNED = _HOP_BY_HOP | {
    b"content-length",
    b"date",  # uvicorn writes its own
    b"x-request-id",
    b"x-accel-buffering",
}
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_DRAWN = 256
"""Request ids drawn at once: the kernel is asked once for all of them."""
_spare: list[bytes] = []


def request_id(scope: Scope) -> bytes:
    """The client's `x-request-id` if it is printable and short, else a new one."""
    given = header(scope, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    if not _spare:
        drawn = os.urandom(16 * _DRAWN).hex().encode()
        _spare.extend(drawn[start : start + 32] for start in range(0, len(drawn), 32))
    return _spare.pop()


def sampled_trace(scope: Scope) -> str | None:
    """The id of the trace that the client keeps of this request, as its `traceparent` says (W3C Trace Context 1)."""
    parent = told(header(scope, b"traceparent"))
    return f"{parent.trace_id:032x}" if parent is not None and parent.sampled else None


def bearer(scope: Scope) -> str | None:
    """The key that a client presents, in the header of OpenAI's SDKs or of Anthropic's."""
    authorization = header(scope, b"authorization")
    if authorization is not None and authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip().decode("latin-1")
    key = header(scope, b"x-api-key")
    return key.decode("latin-1") if key is not None else None


def rate_limits(standing: Standing) -> list[tuple[bytes, bytes]]:
    """The headers in which OpenAI's clients look for what is left of their rates."""
    headers = []
    for name, quota in ((b"requests", standing.requests), (b"tokens", standing.tokens)):
        if quota is not None:
            headers += [
                (b"x-ratelimit-limit-" + name, b"%d" % quota.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % quota.remaining),
                (b"x-ratelimit-reset-" + name, b"%dms" % ceil(quota.reset * 1000)),
            ]
    return headers


def towards_endpoint(
    scope: Scope,
    identifier: bytes,
    *,
    api_key: str | None,
    keep_credentials: bool,
    priority: int | None = None,
    trace: Headers = (),
) -> Headers:
    """The headers an endpoint gets.

    Args:
        scope: the client's request.
        identifier: the request id.
        api_key: the endpoint's own key, in place of what the client sent.
        keep_credentials: pass on the client's key if the endpoint has none of its own.
        priority: the priority band, for engines that schedule by it. It overrides the client's body.
        trace: the place of the request in its trace, in place of what the client sent.
    """
    drop_credentials = api_key is not None or not keep_credentials
    named = _named_by_connection(scope["headers"])
    if trace:
        named |= TRACE_HEADERS
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in _NOT_SENT
        and name not in named
        and not (drop_credentials and name in _CREDENTIALS)
        and not name.startswith(_OURS)
    ]
    headers.append((b"x-request-id", identifier))
    headers.append((b"accept-encoding", b"identity"))
    headers += trace
    if api_key is not None:
        headers.append((b"authorization", b"Bearer " + api_key.encode()))
    if priority is not None:
        headers.append((b"x-vllm-priority", b"%d" % priority))
    return headers


def towards_elsewhere(scope: Scope, api_key: str | None, *, anthropic: bool) -> Headers:
    """The headers that a server elsewhere gets: none of the client's but its version of Anthropic's API.

    `anthropic`: the request is one of that API, where the key has a header of its own.
    """
    headers = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity"), (b"user-agent", b"kvgate")]
    if api_key is not None:
        headers.append((b"authorization", b"Bearer " + api_key.encode()))
    if anthropic:
        headers += [(b"x-api-key", api_key.encode())] if api_key is not None else []
        headers += [(name, value) for name, value in scope["headers"] if name == b"anthropic-version"]
    return headers


def towards_client(headers: Headers, identifier: bytes, *, length: int | None) -> list[tuple[bytes, bytes]]:
    """The headers a client gets; `length` is the body's in bytes, if known."""
    named = _named_by_connection(headers)
    kept = [
        (name, value)
        for name, value in headers
        if name not in _NOT_RETURNED and name not in named and not name.startswith(_OURS)
    ]
    if length is not None:
        kept.append((b"content-length", b"%d" % length))
    kept.append((b"x-request-id", identifier))
    kept.append((b"x-accel-buffering", b"no"))
    return kept


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The headers that `Connection` limits to this connection."""
    options = [value for name, value in headers if name == b"connection"]
    return frozenset([option.strip().lower() for value in options for option in value.split(b",")])


def is_stream(headers: Headers) -> bool:
    """Whether an answer with these headers is a stream of events."""
    return any(name == b"content-type" and value[:17].lower() == b"text/event-stream" for name, value in headers)
