"""How a request can end: exactly one of these, for every request that reached a route that admits."""

from enum import StrEnum


class Outcome(StrEnum):
    """The end of a request. The value is the `outcome` label of `kvgate_requests_total` and of the access line.

    `gateway.wire.errors.REFUSALS` says what the client of each of them is told.
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
    """Its first token could not come in the time its TTFT target leaves: told at its arrival, or when that passed."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The time to live passed in the queue although an endpoint was live."""
    NO_ENDPOINT = "no_endpoint"
    """No endpoint became ready within the time to live kept for that."""
    DRAINING = "draining"
    """The gateway is shutting down and takes no new work."""

    UPSTREAM_ERROR = "upstream_error"
    """The endpoint failed: before the first byte on every try allowed, or in the middle of its answer."""
    UPSTREAM_TIMEOUT = "upstream_timeout"

    GATEWAY_FULL = "gateway_full"
    """kvgate has no room for it: too many clients are connected, or its machine has no file descriptor left."""

    RESPONSE_NOT_FOUND = "response_not_found"
    """No endpoint is known to have made the stored response that was asked for."""
    INTERNAL_ERROR = "internal_error"
    """A defect of kvgate's own."""


FOR_WANT_OF_ROOM = frozenset({Outcome.QUEUE_FULL, Outcome.WAIT_TOO_LONG, Outcome.QUEUE_TIMEOUT})
"""Refusals that pass: the same request may be served when it comes back."""
