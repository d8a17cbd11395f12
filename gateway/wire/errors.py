"""The table from a request's outcome to the error its client gets, and the error's shape in each API."""

from dataclasses import dataclass
from math import ceil, inf

import msgspec

from gateway.admission.outcomes import Outcome
from gateway.wire.request import Api


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error that a client gets.

    Attributes:
        status: HTTP status.
        type: OpenAI's error type.
        code: OpenAI's error code; the field programs should read.
        retry: whether the same request can succeed later. True sends `Retry-After` if the core computed one;
            False sends `x-should-retry: false`, which OpenAI's SDKs obey.
        anthropic_type: the error type on `/v1/messages`.
    """

    status: int
    type: str
    code: str
    retry: bool
    anthropic_type: str


SHUTTING_DOWN = "This gateway is shutting down."
"""The sentence of `Outcome.DRAINING`."""
REFUSALS: dict[Outcome, Refusal] = {
    Outcome.INVALID_REQUEST: Refusal(
        400, "invalid_request_error", "invalid_request", retry=False, anthropic_type="invalid_request_error"
    ),
    Outcome.FORBIDDEN_FIELD: Refusal(
        400, "invalid_request_error", "forbidden_field", retry=False, anthropic_type="invalid_request_error"
    ),
    Outcome.CONTEXT_LENGTH_EXCEEDED: Refusal(
        400, "invalid_request_error", "context_length_exceeded", retry=False, anthropic_type="invalid_request_error"
    ),
    Outcome.UNAUTHORIZED: Refusal(
        401, "invalid_request_error", "invalid_api_key", retry=False, anthropic_type="authentication_error"
    ),
    Outcome.MODEL_NOT_FOUND: Refusal(
        404, "invalid_request_error", "model_not_found", retry=False, anthropic_type="not_found_error"
    ),
    Outcome.BODY_TOO_LARGE: Refusal(
        413, "invalid_request_error", "body_too_large", retry=False, anthropic_type="request_too_large"
    ),
    Outcome.QUEUE_FULL: Refusal(429, "rate_limit_error", "queue_full", retry=True, anthropic_type="rate_limit_error"),
    Outcome.WAIT_TOO_LONG: Refusal(
        429, "rate_limit_error", "wait_too_long", retry=True, anthropic_type="rate_limit_error"
    ),
    Outcome.QUEUE_TIMEOUT: Refusal(
        429, "rate_limit_error", "queue_timeout", retry=True, anthropic_type="rate_limit_error"
    ),
    Outcome.RATE_LIMIT_EXCEEDED: Refusal(
        429, "rate_limit_error", "rate_limit_exceeded", retry=True, anthropic_type="rate_limit_error"
    ),
    Outcome.NO_ENDPOINT: Refusal(503, "server_error", "no_endpoint", retry=True, anthropic_type="overloaded_error"),
    Outcome.DRAINING: Refusal(503, "server_error", "draining", retry=True, anthropic_type="overloaded_error"),
    Outcome.GATEWAY_FULL: Refusal(503, "server_error", "gateway_full", retry=True, anthropic_type="overloaded_error"),
    Outcome.UPSTREAM_ERROR: Refusal(502, "server_error", "upstream_error", retry=True, anthropic_type="api_error"),
    Outcome.UPSTREAM_TIMEOUT: Refusal(504, "server_error", "upstream_timeout", retry=True, anthropic_type="api_error"),
    Outcome.RESPONSE_NOT_FOUND: Refusal(
        404, "invalid_request_error", "response_not_found", retry=False, anthropic_type="not_found_error"
    ),
    Outcome.INTERNAL_ERROR: Refusal(500, "server_error", "internal_error", retry=True, anthropic_type="api_error"),
    # No client reads this one: it gives the access line its status.
    Outcome.CLIENT_CLOSED: Refusal(
        499, "invalid_request_error", "client_closed", retry=False, anthropic_type="invalid_request_error"
    ),
}

_DROPPED: dict[Outcome, bytes] = {
    Outcome.QUEUE_FULL: b"rejected-saturated",
    Outcome.WAIT_TOO_LONG: b"rejected-saturated",
    Outcome.GATEWAY_FULL: b"rejected-saturated",
    Outcome.QUEUE_TIMEOUT: b"rejected-ttl-expired",
    Outcome.NO_ENDPOINT: b"rejected-ttl-expired",
    Outcome.DRAINING: b"rejected-shutting-down",
}
"""llm-d's word for a refusal, where its own flow control would refuse too (`RequestDroppedReason` of its router)."""


def reasons(outcome: Outcome) -> tuple[tuple[bytes, bytes], ...]:
    """The headers in which programs read why a request was refused: kvgate's own, and llm-d's where it has a word."""
    ours = (b"x-kvgate-reason", outcome.value.encode())
    word = _DROPPED.get(outcome)
    return (ours,) if word is None else (ours, (b"x-llm-d-request-dropped-reason", word))


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A complete answer that carries an error."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def error_answer(
    outcome: Outcome,
    message: str,
    *,
    api: Api | None = None,
    param: str | None = None,
    retry_after: float | None = None,
) -> ErrorAnswer:
    """The error answer for an outcome, in the shape of the request's API.

    Args:
        outcome: of the request; a key of `REFUSALS`.
        message: what happened, with which value, what to do.
        api: whose shape to use; None means OpenAI's.
        param: the field at fault.
        retry_after: seconds until a retry makes sense; infinity: never.
    """
    refusal = REFUSALS[outcome]
    headers = [(b"content-type", b"application/json")]
    if outcome is Outcome.UNAUTHORIZED:  # RFC 9110, 15.5.2
        headers.append((b"www-authenticate", b"Bearer"))
    if not refusal.retry or retry_after == inf:
        headers.append((b"x-should-retry", b"false"))
    elif retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, ceil(retry_after))))
        headers.append((b"retry-after-ms", b"%d" % ceil(retry_after * 1000)))
    if api is Api.MESSAGES:
        body = _anthropic(refusal.anthropic_type, message)
    else:
        body = openai_error(message, refusal.type, refusal.code, param)
    headers.append((b"content-length", b"%d" % len(body)))
    return ErrorAnswer(refusal.status, tuple(headers), body)


def openai_error(message: str, error_type: str, code: str | None, param: str | None = None) -> bytes:
    """An error body in OpenAI's shape."""
    return msgspec.json.encode({"error": {"message": message, "type": error_type, "param": param, "code": code}})


def _anthropic(error_type: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": error_type, "message": message}})


def stream_error(api: Api, outcome: Outcome, message: str) -> bytes:
    """The last event of a stream that failed after it had started, in its API's shape."""
    refusal = REFUSALS[outcome]
    if api is Api.MESSAGES:
        return b"event: error\ndata: " + _anthropic(refusal.anthropic_type, message) + b"\n\n"
    if api is Api.RESPONSES:
        event = {"type": "error", "code": refusal.code, "message": message, "param": None}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    return b"data: " + openai_error(message, refusal.type, refusal.code) + b"\n\n"
