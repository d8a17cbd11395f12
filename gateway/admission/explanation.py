"""The explanation of a decision: the answer of `POST /kvgate/explain`."""

from dataclasses import dataclass, replace

from gateway.admission.decide import Action, decide, let_through, nearest
from gateway.admission.events import EndpointId
from gateway.admission.limits.limit import Exceeded
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.rules import declined_by, shortage_of
from gateway.admission.policy import Mode
from gateway.admission.pool import Pool


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint's answer to the request."""

    endpoint: EndpointId
    takes: bool
    rule: str
    """The reason: "fits", or the name of one of `RULES`, "down", "unreached" or "context_length"."""
    lacks: float | None
    """Shortage by which that rule declines, in `unit`; None if it is no amount."""
    unit: str | None
    """"seconds", "sequences" or "blocks"."""
    usage: float | None
    """Effective usage of its KV cache now, as a share."""
    forecast_without: float | None
    """Predicted peak of its requests in flight, as a share of its KV cache; None if the size is unknown."""
    forecast_with: float | None
    """Predicted peak with this request."""
    cached_tokens: int
    """Prompt tokens that are probably in the endpoint's prefix cache."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision about a request that arrived now."""

    verdict: str
    """One of "dispatch", "queue", or the outcome that it would be refused with."""
    rule: str
    """The reason, see `Decision.rule`."""
    would: str | None
    """What `enforce` would do with a request that observe mode dispatches: "queued" or an outcome."""
    endpoint: EndpointId | None
    """Endpoint that it would go to, now or after its wait; None if it would be refused."""
    prompt_tokens: int
    holds_blocks: int | None
    """Blocks that it would add there with its first token."""
    predicted_output: int
    """Expected output of all its sequences, tokens, at the quantile in force."""
    predicted_wait: float | None
    """Predicted wait in the queue, seconds; None while no drain rate is known."""
    predicted_prefill: float
    """Predicted seconds from its dispatch to its first token."""
    ttft_target: float | None
    retry_after: float | None
    """Unjittered Retry-After, seconds; None unless it would be refused with one."""
    candidates: tuple[Candidate, ...]
    exceeded: Exceeded | None = None
    """The limit of its key that it is over."""

    def over(self, exceeded: Exceeded | None) -> "Explanation":
        """The same, if it is refused for this limit before the core sees it; None: it is not."""
        if exceeded is None:
            return self
        return replace(
            self,
            verdict=Outcome.RATE_LIMIT_EXCEEDED.value,
            rule="limit",
            would=None,
            endpoint=None,
            retry_after=exceeded.retry_after,
            exceeded=exceeded,
        )


def explain(pool: Pool, request: RequestRecord, now: float) -> Explanation:
    """Explain the decision about a request as for `decide`. Changes nothing."""
    decision = decide(pool, request, now)
    waits, outcome = pool.waits, decision.outcome
    candidates = tuple(_candidate(pool, e, request, now) for e in sorted(pool.endpoints, key=lambda e: e.id))
    near = decision.endpoint or nearest(pool, request, now)
    verdict = decision.action.value if outcome is None else outcome.value
    endpoint = decision.endpoint
    would = decision.would
    if pool.policy.mode is Mode.OBSERVE and would is not None and (anyway := let_through(pool, request, now)):
        verdict, endpoint, outcome = Action.DISPATCH.value, anyway, None
    else:
        would = None
    goes = verdict == Action.DISPATCH.value
    return Explanation(
        verdict=verdict,
        rule=decision.rule,
        would=would,
        endpoint=None if endpoint is None else endpoint.id,
        prompt_tokens=request.size,
        holds_blocks=None if near is None or near.capacity.kv_blocks is None else near.first_blocks(request),
        predicted_output=0 if near is None else near.expected_length(request) * request.sequences,
        predicted_wait=0.0 if goes else waits.predicted(request, now),
        predicted_prefill=waits.prefill(request),
        ttft_target=waits.target(request),
        retry_after=pool.retry_after.preview(request, outcome, now) if outcome in FOR_WANT_OF_ROOM else None,
        candidates=candidates,
        exceeded=decision.exceeded,
    )


def _candidate(pool: Pool, endpoint: EndpointRecord, request: RequestRecord, now: float) -> Candidate:
    blocks = endpoint.capacity.kv_blocks
    declining = None
    if not endpoint.live:
        rule = "down"
    elif not pool.endpoints.reach.reaches(request.arrival.request, endpoint.id):
        rule = "unreached"
    elif endpoint.longest_prompt < pool.endpoints.least(request):
        rule = "context_length"
    else:
        declining = declined_by(endpoint, request, now, pool.throttling)
        rule = "fits" if declining is None else declining.name
    return Candidate(
        endpoint=endpoint.id,
        takes=rule == "fits",
        rule=rule,
        lacks=None if declining is None else shortage_of(declining, endpoint, request, now),
        unit=None if declining is None else declining.unit,
        usage=endpoint.usage(now),
        forecast_without=None if blocks is None else endpoint.forecast(now) / blocks,
        forecast_with=None if blocks is None else endpoint.forecast_with(request, now) / blocks,
        cached_tokens=endpoint.cached(request),
    )
