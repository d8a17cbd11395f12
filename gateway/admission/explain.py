"""What the controller would do with a request, and why: values for `POST /kvgate/explain`."""

from dataclasses import dataclass

from gateway.admission.events import EndpointId


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint's answer to the request."""

    endpoint: EndpointId
    takes: bool
    rule: str
    """What decided: "fits", or why not: one of `gate.Closed`, "forecast", "down", "context_length"."""
    usage: float | None
    """Effective usage of its KV cache now, a share."""
    forecast_without: float | None
    """Peak of what is in flight there, a share of its KV cache; None where its size is unknown."""
    forecast_with: float | None
    """The same with this request."""
    cached_tokens: int
    """Of its prompt, probably in the endpoint's prefix cache."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen to a request that arrived now."""

    verdict: str
    """Either "dispatch", "queue", or the outcome it would be refused with."""
    rule: str
    """What decided: a candidate's rule, "order" (somebody before it waits), "ttft_target", "queue", "draining"."""
    endpoint: EndpointId | None
    """Where it would go, now or after its wait; None where it would be refused."""
    prompt_tokens: int
    holds_blocks: int | None
    """Blocks it would hold at its first token, on that endpoint."""
    predicted_output: int
    """Tokens it is expected to generate, at the quantile in force."""
    predicted_wait: float
    """Seconds in the queue."""
    predicted_prefill: float
    """Seconds from its dispatch to its first token."""
    ttft_target: float | None
    retry_after: float | None
    """Seconds, unjittered; None unless it would be refused with one."""
    candidates: tuple[Candidate, ...]
