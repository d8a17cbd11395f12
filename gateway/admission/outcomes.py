"""The outcomes of requests: exactly one for each request that reached a route with admission."""

from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a request. The value is the `outcome` label of `kvgate_requests_total` and of the access line.

    `gateway.wire.errors.REFUSALS` has the answer to the client for each refusal.
    """

    COMPLETED = "completed"
    """The endpoint answered, and the client got all of it."""
    ENDPOINT_REFUSED = "endpoint_refused"
    """The endpoint answered with a 4xx of its own, passed on as it came."""
    CLIENT_CLOSED = "client_closed"
    """The client left before its answer ended."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_FIELD = "forbidden_field"
    MODEL_NOT_FOUND = "model_not_found"
    BODY_TOO_LARGE = "body_too_large"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

    QUEUE_FULL = "queue_full"
    """The queue's cap on requests or bytes was reached when the request arrived."""
    WAIT_TOO_LONG = "wait_too_long"
    """Its first token could not come within its TTFT target: seen on its arrival, or at the end of its queue budget."""
    QUEUE_TIMEOUT = "queue_timeout"
    """Its time to live in the queue passed although an endpoint was live."""
    NO_ENDPOINT = "no_endpoint"
    """No endpoint became ready within the time to live for that case."""
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    """It was over a limit of its tenant: requests or tokens per minute, requests at once, or a prompt over its share of
    the KV cache."""
    DRAINING = "draining"
    """The gateway is shutting down: it takes no new work, and cuts the answers that have not ended in time."""

    UPSTREAM_ERROR = "upstream_error"
    """The endpoint failed: before the first byte on every allowed try, or during its answer."""
    UPSTREAM_TIMEOUT = "upstream_timeout"

    GATEWAY_FULL = "gateway_full"
    """kvgate has no room for it: too many connected clients, or no file descriptor left."""

    RESPONSE_NOT_FOUND = "response_not_found"
    """No known endpoint has made the stored response that it asks for."""
    INTERNAL_ERROR = "internal_error"
    """A defect of kvgate."""


FOR_WANT_OF_ROOM = frozenset({Outcome.QUEUE_FULL, Outcome.WAIT_TOO_LONG, Outcome.QUEUE_TIMEOUT})
"""Temporary refusals: the same request may be served when it comes back."""

BEYOND_ITS_MODEL = FOR_WANT_OF_ROOM | {Outcome.NO_ENDPOINT, Outcome.CONTEXT_LENGTH_EXCEEDED}
"""Refusals for what this model cannot do in time or in length, and another perhaps can."""
