"""The question to a vLLM whether it cuts `max_tokens` to what its length leaves, or refuses the request."""

from http import HTTPStatus

import msgspec

from gateway.endpoints.identity import Identity
from gateway.tokens.engine_count import Target, UnansweredError
from gateway.wire.stream import error_message

_ROUTE = "/v1/completions"
_REFUSAL = "maximum context length"
"""In the refusal of every version that refuses (0.8.5 to 0.31)."""
_PATIENCE = 60.0
"""Seconds: the first step of a cold engine takes long."""


def question(identity: Identity) -> bytes:
    """A request for one token more than the length leaves. It is answered with one token, and nobody reads that."""
    return msgspec.json.encode(
        {
            "model": identity.names[0],
            "prompt": [0],
            "max_tokens": identity.max_model_len,
            "allowed_token_ids": [0],
            "stop_token_ids": [0],
            "stream": True,
        }
    )


async def clamps(target: Target, identity: Identity) -> bool | None:
    """Ask an engine; None if its answer tells nothing.

    Raises:
        OutOfDescriptorsError: this process could not ask.
    """
    try:
        status, answer = await target.ask(_ROUTE, question(identity), silence=_PATIENCE, longest=_PATIENCE, most=2048)
    except UnansweredError:
        return None
    if status == HTTPStatus.OK:
        return True
    return False if status == HTTPStatus.BAD_REQUEST and _REFUSAL in error_message(answer) else None
