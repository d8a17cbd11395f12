"""PURE. The requests and endpoints of one recorded core, with what the core itself does not keep.

A first token is the first count of a request that its core heard of. A request that its gateway ended counts as one
whose client left, and one on which its engine failed as `upstream_error`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.admission.commands import Command, Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Cancelled,
    Declared,
    EndpointDown,
    EndpointGone,
    EndpointId,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Progress,
    RequestId,
    Returned,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy

_ENDED = {
    Verdict.DONE: Outcome.COMPLETED,
    Verdict.ABORTED: Outcome.CLIENT_CLOSED,
    Verdict.FAILED: Outcome.UPSTREAM_ERROR,
    Verdict.UNSERVED: Outcome.CLIENT_CLOSED,
}


@dataclass(slots=True)
class Carried:
    """A request from its arrival to its end. Times are seconds on the core's clock.

    Attributes:
        endpoint: None while it waits.
        sent: when it was dispatched; None while it waits, or if an earlier core dispatched it.
        first: when its first count came; None if an earlier core heard of it.
    """

    arrival: Arrived
    came: float
    endpoint: EndpointId | None = None
    sent: float | None = None
    first: float | None = None
    generated: int = 0


@dataclass(slots=True)
class Told:
    """An endpoint.

    Attributes:
        since: when it went up or down.
        preempted: by its engine's counter when that was seen first.
    """

    since: float
    up: bool = False
    observed: Observed | None = None
    preempted: float | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """A request that has ended."""

    request: RequestId
    carried: Carried
    outcome: Outcome


@dataclass(slots=True)
class FollowedCore:
    """One core of a record. Tell it each event with `heard`.

    Attributes:
        blind: whether the gauges of its endpoints are left out.
    """

    model: str
    controller: AdmissionController
    policy: Policy
    blind: bool = False
    _requests: dict[RequestId, Carried] = field(default_factory=dict)
    _endpoints: dict[EndpointId, Told] = field(default_factory=dict)

    def endpoint(self, endpoint: EndpointId, now: float) -> Told:
        """What the record tells of an endpoint."""
        return self._endpoints.setdefault(endpoint, Told(now))

    def heard(self, event: Event, commands: Sequence[Command], now: float) -> list[Gone]:
        """Follow an event and the decisions on it. Returns the requests that it ended."""
        self._follow(event, now)
        gone = self._ended(event)
        for command in commands:
            match command:
                case Dispatch() if (carried := self._requests.get(command.request)) is not None:
                    carried.endpoint, carried.sent = command.endpoint, now
                case Reject() if command.request in self._requests:
                    gone.append(self._gone(command.request, command.outcome))
        return gone

    def _follow(self, event: Event, now: float) -> None:
        match event:
            case Arrived():
                self._requests[event.request] = Carried(event, now - event.waited)
            case Declared(arrival, endpoint, generated):
                came = now - arrival.waited
                self._requests[arrival.request] = Carried(arrival, came, endpoint, generated=generated)
            case Progress():
                self._progressed(event, now)
            case Returned() if (carried := self._requests.get(event.request)) is not None:
                carried.endpoint, carried.sent, carried.first, carried.generated = None, None, None, 0
            case EndpointUp() | EndpointDown():
                told, up = self.endpoint(event.endpoint, now), isinstance(event, EndpointUp)
                if told.up != up:
                    told.up, told.since = up, now
            case EndpointGone():
                self._endpoints.pop(event.endpoint, None)
            case Observed():
                told = self.endpoint(event.endpoint, now)
                told.observed = event
                told.preempted = event.preemptions if told.preempted is None else told.preempted

    def _progressed(self, event: Progress, now: float) -> None:
        for request, generated in event.generated:
            if generated and (carried := self._requests.get(request)) is not None:
                carried.generated = generated
                if carried.first is None and carried.sent is not None:
                    carried.first = now

    def _ended(self, event: Event) -> list[Gone]:
        """The request that an event ends, if it does."""
        if not isinstance(event, (Cancelled, Finished)) or (carried := self._requests.get(event.request)) is None:
            return []
        if isinstance(event, Cancelled):
            return [self._gone(event.request, Outcome.CLIENT_CLOSED)] if carried.endpoint is None else []
        tokens, outcome = event.completion_tokens, _ENDED[event.verdict]
        if tokens is not None:
            carried.generated = tokens
        if tokens == 0 and event.verdict is Verdict.DONE and carried.arrival.demand.max_tokens:
            outcome = Outcome.ENDPOINT_REFUSED
        return [self._gone(event.request, outcome)]

    def _gone(self, request: RequestId, outcome: Outcome) -> Gone:
        return Gone(request, self._requests.pop(request), outcome)
