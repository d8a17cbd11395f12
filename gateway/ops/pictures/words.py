"""PURE. The names of outcomes on the page, and the kind of each."""

from typing import Literal, NamedTuple

from gateway.admission.outcomes import Outcome

Kind = Literal["done", "left", "refused", "failed"]


class Called(NamedTuple):
    """An outcome for people."""

    words: str
    kind: Kind


OUTCOMES: dict[Outcome, Called] = {
    Outcome.COMPLETED: Called("answered", "done"),
    Outcome.ENDPOINT_REFUSED: Called("refused by the engine", "refused"),
    Outcome.CLIENT_CLOSED: Called("client left", "left"),
    Outcome.INVALID_REQUEST: Called("malformed", "refused"),
    Outcome.UNAUTHORIZED: Called("no valid key", "refused"),
    Outcome.FORBIDDEN_FIELD: Called("forbidden field", "refused"),
    Outcome.MODEL_NOT_FOUND: Called("unknown model", "refused"),
    Outcome.BODY_TOO_LARGE: Called("body too large", "refused"),
    Outcome.CONTEXT_LENGTH_EXCEEDED: Called("too long for the model", "refused"),
    Outcome.QUEUE_FULL: Called("queue full", "refused"),
    Outcome.WAIT_TOO_LONG: Called("would miss its target", "refused"),
    Outcome.QUEUE_TIMEOUT: Called("waited too long", "refused"),
    Outcome.NO_ENDPOINT: Called("no engine", "failed"),
    Outcome.RATE_LIMIT_EXCEEDED: Called("over its key's limit", "refused"),
    Outcome.DRAINING: Called("gateway shuts down", "refused"),
    Outcome.UPSTREAM_ERROR: Called("engine failed", "failed"),
    Outcome.UPSTREAM_TIMEOUT: Called("engine silent", "failed"),
    Outcome.GATEWAY_FULL: Called("gateway full", "refused"),
    Outcome.RESPONSE_NOT_FOUND: Called("unknown response", "refused"),
    Outcome.INTERNAL_ERROR: Called("defect of kvgate", "failed"),
}
