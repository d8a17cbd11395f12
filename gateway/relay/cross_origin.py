"""The permission for web pages of other sites to use the routes of clients, as the Fetch standard has it (CORS).

A browser asks before it sends JSON or a key: that question is answered here, and needs no key. Then it shows an answer
to the page, a refusal too, only if that says that the page's origin may see it. No cookie is ever taken.
"""

from collections.abc import Collection, Sequence

from gateway.server.asgi import Headers, Message, Scope, Send, header

ANY = "*"
_METHOD, _HEADERS = b"access-control-request-method", b"access-control-request-headers"
_ORIGIN, _EXPOSED = b"access-control-allow-origin", b"access-control-expose-headers"
_PERMISSION = frozenset({_ORIGIN, _EXPOSED, b"access-control-allow-credentials"})
_REMEMBERED = b"600"
"""Seconds for which a browser need not ask again."""


def permission(scope: Scope, origins: Collection[str]) -> Headers | None:
    """The headers that let the page which sends this request see the answer; None if it is none of a permitted origin.

    `origins`: those that are permitted; `*` is any.
    """
    origin = header(scope, b"origin") if origins else None
    if origin is None:
        return None
    if ANY in origins:
        return [(_ORIGIN, b"*"), (_EXPOSED, b"*")]
    if origin.decode("latin-1") not in origins:
        return None
    return [(_ORIGIN, origin), (_EXPOSED, b"*"), (b"vary", b"origin")]


def permitting(scope: Scope, send: Send, permitted: Headers) -> tuple[Scope, Send]:
    """The request and its `send` such that each head of an answer has the permission, in the place of its engine's."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [one for one in message["headers"] if one[0] not in _PERMISSION]
            message = {**message, "headers": [*kept, *permitted]}
        await send(message)

    return {**scope, "extensions": {}}, sending  # nothing may go past `sending`


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page may send."""
    return scope["method"] == "OPTIONS" and header(scope, _METHOD) is not None


async def answer_preflight(scope: Scope, send: Send, allowed: Sequence[str]) -> None:
    """Say that the page may send any header with these methods."""
    headers = [
        (b"access-control-allow-methods", ", ".join(allowed).encode()),
        (b"access-control-allow-headers", header(scope, _HEADERS) or b"*"),  # `*` would not let a key pass
        (b"access-control-max-age", _REMEMBERED),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
