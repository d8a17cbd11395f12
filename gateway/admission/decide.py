"""The decision about a request, as a value. Making it changes nothing.

`barred`, `place` and `shed` are its three steps. The controller takes each when its turn comes, for the request that is
next. `decide` takes all at once: for observe mode, which notes the decision, and for `/kvgate/explain`, which shows it.
"""

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gateway.admission.limits.limit import Exceeded
from gateway.admission.outcomes import Outcome
from gateway.admission.placing import picker
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import LaneKey, RequestRecord
from gateway.admission.placing.request_lifecycle import State
from gateway.admission.placing.rules import Rule, declined_by, spared
from gateway.admission.pool import Pool

REASONS = {
    "fits": "it goes at once",
    "order": "an endpoint would take it, but another request goes before it",
    "promise": "it came back before the time it was told, and is told the same time again",
    "queue_full": "the queue is full",
    "ttft_target": "its predicted wait is over twice its queue budget",
    "context_length": "it fits no endpoint",
    "no_endpoint": "no endpoint that it fits is live and in reach of its front",
    "draining": "this gateway shuts down",
    "limit": "its key is over a limit: `exceeded` says which, and when it frees",
}
"""Reasons beside the rules of the endpoints (`RULES`), with their meanings."""


class Action(StrEnum):
    """The action on a request."""

    DISPATCH = "dispatch"
    QUEUE = "queue"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a request, and its reason.

    Attributes:
        rule: The reason: one of `REASONS`, or the one of `RULES` by which its first endpoint declines it.
        outcome: Its outcome if it is refused.
        endpoint: The endpoint it goes to, now or after its wait; None if there is none.
        exceeded: The limit of its tenant for which it is refused.
    """

    action: Action
    rule: str
    outcome: Outcome | None = None
    endpoint: EndpointRecord | None = None
    exceeded: Exceeded | None = None

    @property
    def would(self) -> str | None:
        """The note on a request that observe mode dispatches anyway: "queued" or an outcome; None if it may go."""
        if self.action is Action.DISPATCH:
            return None
        return "queued" if self.outcome is None else self.outcome.value


class Refused(NamedTuple):
    """The outcome of a refused request, the rule that refused it, and the limit of its tenant if it is over one."""

    outcome: Outcome
    rule: str
    exceeded: Exceeded | None = None


Placement = tuple[EndpointRecord | None, list[tuple[EndpointRecord, Rule]]]
"""The endpoint that takes a request now, and the rules by which others decline it."""


def place(pool: Pool, request: RequestRecord, now: float, without: Container[EndpointRecord] = ()) -> Placement:
    """Place a request now, on one of the endpoints that it fits, `without` those that are kept for others."""
    takers: list[EndpointRecord] = []
    declined: list[tuple[EndpointRecord, Rule]] = []
    for endpoint in pool.endpoints.eligible(request):
        if endpoint in without:
            continue
        rule = declined_by(endpoint, request, now, pool.throttling)
        if rule is None:
            takers.append(endpoint)
        else:
            declined.append((endpoint, rule))
    return picker.pick(takers, request, now), declined


def let_through(pool: Pool, request: RequestRecord, now: float) -> EndpointRecord | None:
    """The endpoint to which observe mode dispatches a request: any in reach whose engine is not `busy`.

    A spared one is taken only if there is no other: it is the emptiest, and would get all that has no room elsewhere.
    """
    identifier, reach = request.arrival.request, pool.endpoints.reach
    free = [e for e in pool.endpoints.live if e.busy_for(now) <= 0 and reach.reaches(identifier, e.id)]
    fitting = [endpoint for endpoint in pool.endpoints.eligible(request) if endpoint in free]
    fitting = fitting or free
    return picker.pick([e for e in fitting if not spared(e, request, now)] or fitting, request, now)


def barred(pool: Pool, request: RequestRecord, lane: LaneKey | None) -> Refused | None:
    """Reason why a request may not even wait; None if it may. A `lane` of None means that it fits no endpoint."""
    if pool.draining:
        return Refused(Outcome.DRAINING, "draining")
    if lane is None:
        return Refused(Outcome.CONTEXT_LENGTH_EXCEEDED, "context_length")
    if pool.kv_shares.shares and (exceeded := pool.too_large(request)) is not None:
        return Refused(Outcome.RATE_LIMIT_EXCEEDED, "kv_share", exceeded)
    return None


def shed(pool: Pool, request: RequestRecord, now: float) -> Refused | None:
    """Reason why a request that cannot go on arrival is shed; None if it may wait."""
    promise = request.promise
    if promise is not None and not promise.used and promise.due > now:
        return Refused(promise.outcome, "promise")
    if pool.waits.full_with(request) and pool.waits.gives_way(request) is None:
        return Refused(Outcome.QUEUE_FULL, "queue_full")
    if promise is None and pool.waits.in_vain(request, now):
        return Refused(Outcome.WAIT_TOO_LONG, "ttft_target")
    return None


def decide(pool: Pool, request: RequestRecord, now: float) -> Decision:
    """Decide about a request that arrives now: its cost is estimated, it has its lane, and it is not in the queue.

    One thing is simpler than in the controller: it is never backfilled, so behind another request it waits.
    """
    refused = barred(pool, request, pool.endpoints.lane(request))
    if refused is not None:
        return Decision(Action.REFUSE, refused.rule, refused.outcome, exceeded=refused.exceeded)
    endpoint, declined = placed = place(pool, request, now)
    if endpoint is not None and _in_order(pool, request, now):
        return Decision(Action.DISPATCH, "fits", endpoint=endpoint)
    refused = shed(pool, request, now)
    if refused is not None:
        return Decision(Action.REFUSE, refused.rule, refused.outcome)
    if endpoint is None and declined:
        endpoint = nearest(pool, request, now)
    return Decision(Action.QUEUE, why_waiting(placed), endpoint=endpoint)


def why_waiting(placed: Placement) -> str:
    """Why a request with this placement waits: one of `REASONS` or `RULES`."""
    endpoint, declined = placed
    if endpoint is not None:
        return "order"
    return declined[0][1].name if declined else "no_endpoint"


def nearest(pool: Pool, request: RequestRecord, now: float) -> EndpointRecord | None:
    """The endpoint that a waiting request would go to if all its endpoints took it now."""
    return picker.pick(pool.endpoints.eligible(request), request, now)


def _in_order(pool: Pool, request: RequestRecord, now: float) -> bool:
    """Whether no request goes before it: none that waits, and none that comes back for an earlier turn."""
    queue, promise = pool.queue, request.promise
    band, flow = request.arrival.band, request.arrival.flow
    own = request.cost if request.state is State.WAITING else 0.0
    ahead = queue.ahead(band, flow, request.lane, own if promise is None else queue.backlog(band, flow))
    if ahead.urgent or ahead.same:
        return False
    return promise is None or promise.due <= now or pool.promises.next_in_turn(promise, now)
