"""What the controller would do with a request, and why: the answer of `POST /kvgate/explain`."""

from dataclasses import dataclass

from gateway.admission import picker
from gateway.admission.endpoint import Endpoint
from gateway.admission.events import EndpointId
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.queue import Queue
from gateway.admission.request import Request
from gateway.admission.roster import Roster
from gateway.admission.waits import Waits


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint's answer to the request."""

    endpoint: EndpointId
    takes: bool
    rule: str
    """What decided: "fits", or why not: one of `gate.Closed`, "down", "context_length"."""
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
    """What decided: "fits", the rule of the first candidate that refuses, "order" (somebody before it waits),
    "ttft_target", "queue_full", "promise" (it was told to come back, and that is not yet), "context_length",
    "no_endpoint", or "draining"."""
    endpoint: EndpointId | None
    """Where it would go, now or after its wait; None where it would be refused."""
    prompt_tokens: int
    holds_blocks: int | None
    """Blocks it would hold at its first token, on that endpoint."""
    predicted_output: int
    """Tokens it is expected to generate, at the quantile in force."""
    predicted_wait: float | None
    """Seconds in the queue; None while nothing is known of how fast it empties."""
    predicted_prefill: float
    """Seconds from its dispatch to its first token."""
    ttft_target: float | None
    retry_after: float | None
    """Seconds, unjittered; None unless it would be refused with one."""
    candidates: tuple[Candidate, ...]


def explain(request: Request, now: float, roster: Roster, queue: Queue, waits: Waits, *, draining: bool) -> Explanation:
    """What would happen to a request that is weighed and has its lane, if it fits anywhere. Changes nothing.

    The same functions answer as when it really arrives. One thing is simpler: where somebody is before it, it is
    said to wait, although it might be small enough to pass.
    """
    candidates = tuple(_candidate(e, request, now) for e in sorted(roster, key=lambda e: e.id))
    eligible = roster.eligible(request)
    takers = [e for e in eligible if e.refusal(request, now, peek=True) is None]
    chosen = picker.pick(takers or eligible, request, now)
    promise = request.promise
    early = promise is not None and promise.due > now
    in_turn = promise is None or not early or waits.promises.next_in_turn(promise, now)
    verdict, rule, outcome = "dispatch", "fits", None
    if draining:
        outcome, rule = Outcome.DRAINING, "draining"
    elif roster.lane(request) is None and candidates:
        outcome, rule = Outcome.CONTEXT_LENGTH_EXCEEDED, "context_length"
    elif not eligible:
        verdict, rule = "queue", "no_endpoint"
    elif not takers or _somebody_before(request, queue) or not in_turn:
        verdict = "queue"
        rule = "order" if takers else next(c.rule for c in candidates if c.endpoint == eligible[0].id)
        if promise is not None and early:
            outcome, rule = promise.outcome, "promise"
        elif waits.full(1, request.arrival.body_bytes) and (promise is None or queue.last(request) is None):
            outcome, rule = Outcome.QUEUE_FULL, "queue_full"
        elif promise is None and waits.in_vain(request, now, peek=True):
            outcome, rule = Outcome.WAIT_TOO_LONG, "ttft_target"
    wait = 0.0 if verdict == "dispatch" else waits.predicted(request, now, peek=True)
    return Explanation(
        verdict=verdict if outcome is None else outcome.value,
        rule=rule,
        endpoint=chosen.id if chosen is not None and outcome is None else None,
        prompt_tokens=request.size,
        holds_blocks=None if chosen is None or chosen.capacity.kv_blocks is None else chosen.first_blocks(request),
        predicted_output=0 if chosen is None else chosen.expected(request) * request.sequences,
        predicted_wait=wait,
        predicted_prefill=waits.prefill(request),
        ttft_target=waits.target(request),
        retry_after=waits.would_tell(request, outcome, now) if outcome in FOR_WANT_OF_ROOM else None,
        candidates=candidates,
    )


def _somebody_before(request: Request, queue: Queue) -> bool:
    band, flow = request.arrival.band, request.arrival.flow
    ahead = queue.ahead(band, flow, request.lane, 0.0 if request.promise is None else queue.backlog(band, flow))
    return bool(ahead.urgent or ahead.same)


def _candidate(endpoint: Endpoint, request: Request, now: float) -> Candidate:
    blocks = endpoint.capacity.kv_blocks
    if not endpoint.up:
        rule = "down"
    elif endpoint.longest_prompt < request.longest_prompt:
        rule = "context_length"
    else:
        refusal = endpoint.refusal(request, now, peek=True)
        rule = "fits" if refusal is None else refusal.value
    return Candidate(
        endpoint=endpoint.id,
        takes=rule == "fits",
        rule=rule,
        usage=endpoint.usage(now),
        forecast_without=None if blocks is None else endpoint.forecast(now) / blocks,
        forecast_with=None if blocks is None else endpoint.forecast_with(request, now, peek=True) / blocks,
        cached_tokens=endpoint.cached(request),
    )
