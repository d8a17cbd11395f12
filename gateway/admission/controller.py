"""The admission controller of one model. It alone changes the state of the core, and only in `handle`.

A request arrives and enters the queue. After each change, the heads of the queue are offered to the endpoints that can
take them (`placing/rules.py`), in the order of bands and of fairness between flows. If a rule throttles the flow of a
head, the flow's requests in the lane of that head are set aside, and the next flow has its turn; if it leaves room for
others, the next one of its band. Else the endpoint that declines a head is kept for it: no request of another lane
or band goes there. If the rule allows it, a few smaller ones of its lane go first (backfill).

The core refuses a request in four ways, each with a `Reject`: it bars one that may not wait (`decide.barred`), sheds
one on arrival that would surely wait in vain or finds the queue full (`decide.shed`), evicts one from the queue, as
when its deadline passes (`Waits`), and gives up one that failed too often (`max_failures`).
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from math import inf
from typing import Any, Final

from gateway.admission.account.ledger import Reservation
from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.decide import Placement, barred, decide, let_through, place, shed, why_waiting
from gateway.admission.events import (
    Arrived,
    Back,
    Behind,
    Cancelled,
    Declared,
    EndpointDown,
    EndpointGone,
    EndpointId,
    EndpointUp,
    Event,
    Expected,
    Finished,
    Learned,
    Observed,
    PolicyChanged,
    Progress,
    RequestId,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
    Warmth,
)
from gateway.admission.explanation import Explanation, explain
from gateway.admission.limits.limit import Exceeded
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.in_flight import InFlight
from gateway.admission.placing.presence import EndpointEvent
from gateway.admission.placing.request import LaneKey, RequestRecord, service
from gateway.admission.placing.request_lifecycle import State, Trigger
from gateway.admission.placing.rules import Next, all_closed_until, may_fit, next_in_line
from gateway.admission.policy import Mode, Policy
from gateway.admission.pool import Pool
from gateway.admission.queueing.positions import Position, positions
from gateway.admission.queueing.queue import OfferResult
from gateway.admission.scaling import scaling
from gateway.admission.snapshot import FlowSnapshot, Load, PoolState, RequestSnapshot, Turn
from gateway.admission.tuning import TUNING
from gateway.admission.view import (
    delivering_state,
    endpoint_state,
    flight_state,
    flow_states,
    oldest_arrival,
    queue_state,
    waiting_state,
)

WITH_RETRY_AFTER = frozenset({*FOR_WANT_OF_ROOM, Outcome.NO_ENDPOINT, Outcome.DRAINING})
_NONE: AbstractSet[EndpointRecord] = frozenset()
MOST_WARM = 500
"""Most flows, and most promises, in a `Warmth`. The fronts get one each second and keep it for the next owner."""
POSITIONS_AGE = 0.5
"""Seconds for which positions are kept: computing them for 2,048 waiting requests takes 3 to 5 ms."""
_OFFER_RESULTS = {
    Next.NOBODY: OfferResult.CLOSED,
    Next.SMALLER: OfferResult.NO_ROOM,
    Next.OTHER_FLOWS: OfferResult.NOT_ITS_FLOW,
    Next.ITS_BAND: OfferResult.OTHERS_FIRST,
}


_OBSERVE: Final = Mode.OBSERVE  # constants: in Python 3.11 each access to an enum member is a function call
_WAITING: Final = State.WAITING
_CLOSED: Final = OfferResult.CLOSED
_TAKEN: Final = OfferResult.TAKEN
_OTHER_FLOWS: Final = Next.OTHER_FLOWS
_ITS_BAND: Final = Next.ITS_BAND
_NOBODY: Final = Next.NOBODY


class AdmissionController:
    """Admission to the endpoints of one model.

    Deadlines: while an endpoint that takes it is live, a request waits at most its queue budget, which is never over
    `ttl`. Without one it waits at most M, the larger of `no_endpoint_ttl` and twice an engine's expected time to start.
    Its wait begins anew when the longest live endpoint goes or comes, but is at most `ttl` + M in all. If an endpoint
    fails on the request, or cannot be reached when it is first tried, all these limits start again: the time spent
    there was no wait for room. The outcome tells whether its budget, `ttl` or `no_endpoint_ttl` ended it
    (`Waits.overdue`).
    """

    def __init__(self, policy: Policy) -> None:
        self._pool = pool = Pool(policy)
        self._requests: dict[RequestId, RequestRecord] = {}
        self._flights: dict[RequestId, InFlight] = {}
        """One per request in flight. Whoever calls `_leave_endpoint` must release its reservation."""
        self._behind: dict[RequestId, float] = {}
        """Those of them whose client was behind at any time, and when that was first heard."""
        self._delivering: dict[RequestId, InFlight] = {}
        """Requests that their engine is done with. Their reservations are released, and their ends are yet to come."""
        self._queue = pool.queue
        self._predictor = pool.predictor
        self._endpoints = pool.endpoints
        self._waits = pool.waits
        self._tokens, self._places = pool.tokens, pool.places
        self._kv_shares = pool.kv_shares
        self._promises = pool.promises
        self._accrued_at = -inf
        """When the service of requests in flight was counted last (`_accrue`)."""
        self._offer_due = True
        """Whether the queue is offered after this event: False only if its handler knows that it freed no room."""
        self._all_closed = False
        """Whether every endpoint was closed at the last offer; False again once the queue is empty."""
        self._all_closed_until = -inf
        """They stay closed until then, whatever progress is made."""
        self._wake_at = inf
        self._positions: tuple[float, dict[RequestId, Position]] = (-inf, {})
        """When they were computed, and the positions by request; see `positions`."""
        self._commands: list[Command] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Arrived: self._arrived,
            Declared: self._declared,
            Cancelled: self._cancelled,
            Progress: self._progress,
            Behind: self._fell_behind,
            Finished: self._finished,
            Returned: self._returned,
            EndpointUp: self._endpoint_changed,
            EndpointDown: self._endpoint_changed,
            EndpointGone: self._endpoint_changed,
            Expected: self._expected,
            Observed: self._scraped,
            Learned: self._recall,
            Warmth: self._warm_up,
            PolicyChanged: self._policy_changed,
            ShutdownStarted: self._shutdown_started,
            Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle one event of time `now` (seconds, never before the last one), and return the commands.

        An event that does not apply (its request or endpoint is unknown, gone or in another state) only lets time pass.
        """
        commands = self._commands = []
        self._handlers[type(event)](event, now)
        if self._endpoints.reach.changes_at <= now:
            self._endpoints.reach.pass_time(now)
            self._offer_due = True
            self._relane(now)
        if self._queue.depth:
            self._expire(now)
            for endpoint in self._endpoints.live:
                endpoint.advance_once(now)
            if self._offer_due:
                self._dispatch_waiting(now)
        else:
            self._all_closed, self._all_closed_until = False, -inf
        if type(event) is Arrived:
            self._shed(event, now)
        self._offer_due = True  # for the next event
        # If only throttled flows wait, there is no pressure: more room would not let them go.
        throttled = self._pool.throttled_flows
        if self._queue.depth and not (throttled and self._pool.waiting_throttled() == self._queue.depth):
            self._waits.drain_rate.pressed(now)
        self._announce_wake(now)
        return commands

    def snapshot(self, now: float) -> PoolState:
        """State of the pool, for people and metrics. Changes nothing."""
        endpoints = tuple(endpoint_state(e, now) for e in sorted(self._endpoints, key=lambda e: e.id))
        rate = self._waits.rate(now)
        return PoolState(
            endpoints=endpoints,
            queue=queue_state(self._queue, now),
            scaling=scaling(endpoints, self._queue, rate),
            drain_rate=rate,
            draining=self._pool.draining,
        )

    def flows(self, now: float, most: int) -> tuple[FlowSnapshot, ...]:
        """The flows that wait, at most `most`: those with the most requests. Changes nothing."""
        return flow_states(self._pool, now, most)

    def requests(self, now: float, most: int) -> list[RequestSnapshot]:
        """The requests that wait or are in flight, at most `most`, the latest first. Changes nothing."""
        return [self._request_state(request, now) for request in islice(reversed(self._requests.values()), most)]

    def _request_state(self, request: RequestRecord, now: float) -> RequestSnapshot:
        identifier = request.arrival.request
        if (flight := self._flights.get(identifier)) is not None:
            return flight_state(request, flight.endpoint, flight.reservation, now)
        if (done := self._delivering.get(identifier)) is not None:
            return delivering_state(request, done.endpoint, done.reservation)
        return waiting_state(request)

    def load(self, now: float) -> Load:
        """Load of the pool. Changes nothing."""
        usages = ((endpoint.id, endpoint.usage(now)) for endpoint in self._endpoints if endpoint.live)
        return Load(
            waiting=self._queue.depth,
            sequences=sum(endpoint.ledger.sequences for endpoint in self._endpoints),
            usage=tuple((name, usage) for name, usage in usages if usage is not None),
        )

    def oldest_arrival(self) -> float | None:
        """When the oldest waiting request arrived; None if none waits. Changes nothing."""
        return oldest_arrival(self._queue)

    def in_flight(self, endpoint: EndpointId) -> int:
        """Requests on an endpoint. Changes nothing."""
        known = self._endpoints.get(endpoint)
        return 0 if known is None else known.carried

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """The decision that `handle` would make if the request arrived now, and its reasons. Changes nothing."""
        request = RequestRecord(arrival, now, self._predictor.like(arrival))
        if arrival.key:
            request.promise = self._promises.find(arrival.key, now)
        lane = self._pool.lane(request)
        if lane is not None:
            request.lane = lane
            self._pool.estimate(request)
            self._pool.apply_shares(request, self._pool.kept(now), now)
        return explain(self._pool, request, now)

    def turn(self, identifier: RequestId, now: float) -> Turn | None:
        """Position in the queue and predicted wait of a request, and the rule it waits for; None if it does not wait.

        Changes nothing but the positions that it keeps for the next questions, for at most `POSITIONS_AGE` seconds.
        """
        request = self._requests.get(identifier)
        if request is None or not request.ticket:
            return None
        made_at, found = self._positions
        if now - made_at >= POSITIONS_AGE:
            found = positions(self._queue)
            self._positions = now, found
        rule = why_waiting(place(self._pool, request, now))
        position = found.get(identifier)
        if position is None:
            return Turn(None, None, rule)
        return Turn(position.number, self._waits.behind(request, position.service(request.cost), now), rule)

    def learned(self) -> Learned:
        """Output lengths learned, for a later core of this model. Changes nothing."""
        return self._predictor.learned()

    def warmth(self, now: float) -> Warmth:
        """What was measured, served and promised, for a core that takes over. Changes nothing."""
        return Warmth(
            drained=self._waits.drain_rate.measured(now),
            debts=tuple(islice(self._queue.debts(), MOST_WARM)),
            promises=tuple(islice(self._promises.open(self._queue.tickets, now), MOST_WARM)),
            learned=self._predictor.learned(),
        )

    def next_reports(self, requests: Iterable[RequestId]) -> dict[RequestId, float]:
        """For each request in flight, the token count below which a report changes nothing; 0: report all.

        It depends on the endpoints' block sizes: ask again after an endpoint came up.
        """
        flights = self._flights
        return {
            request: flight.reservation.next_report
            for request in requests
            if (flight := flights.get(request)) is not None
        }

    @property
    def aborting(self) -> bool:
        """Whether aborted requests still hold blocks: until the engine's next step is seen, at most `abort_bound`."""
        for endpoint in self._endpoints:  # noqa: SIM110 - a generator would cost more than the rest
            if endpoint.ledger.aborting:
                return True
        return False

    @property
    def time_may_dispatch(self) -> bool:
        """Whether time alone might let a waiting request go before the next wake-up: predictions change with time."""
        return self._queue.depth > 0 and not self._all_closed

    # Requests

    def _arrived(self, event: Arrived, now: float) -> None:
        if event.request in self._requests:
            return
        request = self._requests[event.request] = RequestRecord(event, now, self._predictor.kind(event))
        if event.key:
            self._recognise(request, now)
        request.apply(Trigger.ARRIVED)
        if not self._queue.depth and self._bypass_queue(request, now):
            return
        self._wait(request, now)
        # Its arrival frees nothing for a declined head, so the queue is offered only if the new request itself may go.
        self._offer_due = request.state is _WAITING and self._queue.may_go(request) and self._in_turn(request, now)

    def _bypass_queue(self, request: RequestRecord, now: float) -> bool:
        """Dispatch a request at once, past the empty queue; False if it may have to wait, or to be refused.

        Afterwards all is as if it had entered the queue, been offered and been taken out.
        """
        pool = self._pool
        if request.arrival.waited or pool.policy.mode is _OBSERVE or pool.throttling:
            return False
        if self._endpoints.reach.changes_at <= now:
            return False
        if barred(pool, request, pool.lane(request)) is not None or not self._in_turn(request, now):
            return False
        request.estimate_cost(self._predictor)
        pool.apply_shares(request, pool.kept(now), now)
        for endpoint in self._endpoints.live:
            endpoint.advance_once(now)
        chosen, _ = self._place(request, _NONE, now)
        if chosen is not None:
            self._queue.bypass(request)
            self._send(request, chosen, None, now)
        return chosen is not None

    def _recognise(self, request: RequestRecord, now: float) -> None:
        """Look up an earlier refusal. A request that comes back when it was told to has its earlier turn."""
        promise = request.promise = self._promises.find(request.arrival.key, now)
        if promise is not None and promise.due <= now:
            self._promises.use(promise, now)
            request.order = promise.order

    def _in_turn(self, request: RequestRecord, now: float) -> bool:
        """Whether its turn has come: not if it came back early and another request has an earlier promise."""
        promise = request.promise
        return (
            self._pool.policy.mode is _OBSERVE
            or promise is None
            or promise.used
            or self._promises.next_in_turn(promise, now)
        )

    def _wait(self, request: RequestRecord, now: float) -> None:
        """Enter a request in state `WAITING` into the queue, or refuse it if it may not wait."""
        if request.failures >= TUNING.max_failures:
            self._refuse(request, Outcome.UPSTREAM_ERROR, now)
            return
        lane = self._pool.lane(request)
        refused = barred(self._pool, request, lane)
        if refused is not None:
            self._refuse(request, refused.outcome, now, refused.exceeded, refused.rule)
        elif lane is not None:
            for endpoint in self._endpoints.live:
                endpoint.advance_once(now)
            self._pool.estimate(request)
            self._pool.note_waiting(request, now)
            self._queue.push(request, lane)

    def _declared(self, event: Declared, now: float) -> None:
        arrival, endpoint = event.arrival, self._endpoints.get(event.endpoint)
        if arrival.request in self._requests or endpoint is None:
            return
        request = self._requests[arrival.request] = RequestRecord(arrival, now, self._predictor.kind(arrival))
        request.apply(Trigger.ARRIVED)
        request.apply(Trigger.DISPATCHED)
        self._pool.estimate(request)
        endpoint.ledger.resume(arrival.request)
        reservation = self._reserve(request, endpoint, now)
        if event.generated:
            endpoint.ledger.progress(reservation, event.generated, now)
        if event.behind:
            self._behind[arrival.request] = now
        self._endpoints.advance(endpoint, now)

    def _cancelled(self, event: Cancelled, _now: float) -> None:
        request = self._requests.get(event.request)
        if request is not None and request.apply(Trigger.CANCELLED):
            self._leave_queue(request)
            del self._requests[event.request]

    def _progress(self, event: Progress, now: float) -> None:
        touched: dict[EndpointRecord, float] = {}  # ordered; with the time of a request that speaks for it
        flights, endpoint = self._flights, None
        for identifier, generated in event.generated:
            flight = flights.get(identifier)
            if flight is None:
                if (done := self._delivering.get(identifier)) is not None:
                    done.reservation.reported = max(done.reservation.reported, generated)
                continue
            reservation = flight.reservation
            if generated <= reservation.reported:
                continue
            if flight.endpoint is not endpoint:
                endpoint = flight.endpoint
                touched.setdefault(endpoint, -inf)
            if reservation.sent_at >= endpoint.fails_since:
                touched[endpoint] = reservation.sent_at
            if reservation.reported and generated < reservation.next_report:  # the usual case: nothing else to do
                reservation.reported = generated
            else:
                endpoint.ledger.progress(reservation, generated, now)
        for endpoint, sent_at in touched.items():
            self._endpoints.generated(endpoint, sent_at, now)
            endpoint.ledger.note_step(now)
            self._endpoints.advance(endpoint, now)
        self._offer_due = now >= self._all_closed_until

    def _fell_behind(self, event: Behind, now: float) -> None:
        if event.request in self._flights:
            self._behind.setdefault(event.request, now)
        self._offer_due = now >= self._all_closed_until

    def _let_go(self, endpoint: EndpointRecord, first: float, last: float, now: float) -> None:
        """Release what an engine is done with, as two scrapes show that it has no requests.

        The end of such an answer may come a minute later. Until then its request would keep others out.
        """
        if not first < last:  # the same scrape again
            return
        done = [
            identifier
            for identifier, since in self._behind.items()
            if since < first and since + TUNING.let_go_after <= last and self._flights[identifier].endpoint is endpoint
        ]
        for identifier in done:
            flight = self._delivering[identifier] = self._leave_endpoint(self._requests[identifier], now)
            flight.let_go(first, now)
        if done:
            self._endpoints.advance(endpoint, now)

    def _finished(self, event: Finished, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.apply(Trigger.FINISHED):
            return
        del self._requests[event.request]
        flight = self._leave_endpoint(request, now)
        endpoint, reservation = flight.endpoint, flight.reservation
        tokens = event.completion_tokens
        aborted = event.verdict is Verdict.ABORTED
        length = reservation.reported if tokens is None else tokens
        if event.verdict is Verdict.DONE and length:
            self._predictor.learn(request.kind, -(-length // reservation.sequences), reservation.limit)
        generated = flight.generated(now) if tokens is None else tokens
        if event.verdict is Verdict.UNSERVED:
            had = used = 0.0
        elif not generated and tokens is None and event.verdict is Verdict.DONE:  # it completed without its length
            had = used = request.cost
        else:
            had = service(request.size, generated) if generated or aborted else 0.0
            used = had if event.prompt_tokens is None or not had else service(event.prompt_tokens, generated)
            used = max(used, flight.held(now, tokens or 0))
        self._queue.settle(request, flight.charge, used, self._longest_debt(now))
        # By its estimate, as those that wait are counted.
        self._waits.drain_rate.completed(had or min(used, request.cost), now)
        if length:
            self._endpoints.generated(endpoint, reservation.sent_at, now)
        elif event.verdict is Verdict.FAILED:
            self._endpoints.failed(endpoint, request, now)
        flight.release(tokens, now, aborted=aborted)
        self._endpoints.advance(endpoint, now)

    def _returned(self, event: Returned, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.apply(Trigger.RETURNED):
            return
        flight = self._leave_endpoint(request, now)
        endpoint = flight.endpoint
        flight.release(None, now, aborted=False)
        used = min(flight.held(now, 0), request.cost) if event.why is Back.FAILED else 0.0
        self._queue.settle(request, flight.charge, used, self._longest_debt(now))
        match event.why:
            case Back.BUSY:
                endpoint.note_busy(now)
            case Back.UNREACHED:
                if self._endpoints.reach.lost(event.request, endpoint.id, now):
                    self._relane(now)
                if endpoint.id not in request.avoid:  # once each: a front that reaches none would try for ever
                    request.avoid, request.arrived_at = request.avoid | {endpoint.id}, now
            case Back.LACKING:
                request.lacking = request.lacking | {endpoint.id}
                request.avoid = request.avoid | {endpoint.id}
            case Back.FAILED:
                request.arrived_at = now
                self._endpoints.failed(endpoint, request, now)
                request.failures += 1
                request.avoid = request.lacking | {endpoint.id}
        self._endpoints.advance(endpoint, now)
        self._wait(request, now)

    def _leave_endpoint(self, request: RequestRecord, now: float) -> InFlight:
        """Take a request out of those in flight, or of those let go. The caller must release its reservation."""
        identifier, flow = request.arrival.request, request.arrival.flow
        if (delivered := self._delivering.pop(identifier, None)) is not None:
            return delivered
        flight = self._flights.pop(identifier)
        self._behind.pop(identifier, None)
        self._tokens.left(flow, flight.tokens, now)
        self._places.left(flow, request.sequences, now)
        if self._kv_shares.shares:
            self._kv_shares.left(flow, identifier)
        return flight

    def _refuse(
        self,
        request: RequestRecord,
        outcome: Outcome,
        now: float,
        exceeded: Exceeded | None = None,
        rule: str | None = None,
    ) -> None:
        """Refuse a request in state `WAITING` that is not in the queue yet, or no longer."""
        request.apply(Trigger.REFUSED)
        identifier = request.arrival.request
        del self._requests[identifier]
        retry_after = self._pool.retry_after.grant(request, outcome, now) if outcome in WITH_RETRY_AFTER else None
        flow = request.arrival.flow
        if outcome in FOR_WANT_OF_ROOM:
            self._pool.note_refused(request, now)
        if outcome in FOR_WANT_OF_ROOM and flow in self._pool.throttled_flows and self._pool.over_share(request):
            exceeded = self._pool.over_limit(flow, request.size + request.sequences)
        self._commands.append(Reject(identifier, outcome, retry_after, exceeded, rule=rule))

    def _leave_queue(self, request: RequestRecord) -> None:
        """Take a request out of the queue, and end its promise."""
        self._queue.remove(request)
        if request.promise is not None and request.promise.used:
            self._promises.end(request.promise)

    def _evict(self, request: RequestRecord, outcome: Outcome, now: float, rule: str | None = None) -> None:
        """Refuse a request that is in the queue."""
        self._leave_queue(request)
        self._refuse(request, outcome, now, rule=rule)

    def _shed(self, event: Arrived, now: float) -> None:
        """Refuse a new request that no endpoint takes now, if the queue is full or it would wait in vain.

        One that comes back too early is told the same time again. If the queue is full, another request may be
        evicted for it (`Waits.gives_way`).
        """
        request = self._requests.get(event.request)
        if request is None or request.arrival is not event or request.state is not _WAITING or event.waited:
            return
        if not request.throttled:
            self._waits.drain_rate.pressed(now)
        refused = shed(self._pool, request, now)
        while refused is None and self._waits.full_with(request) and (other := self._waits.gives_way(request)):
            self._evict(other, Outcome.QUEUE_FULL, now)
            refused = shed(self._pool, request, now)
        if refused is not None:
            self._evict(request, refused.outcome, now, refused.rule)

    # Endpoints

    def _endpoint_changed(self, event: EndpointEvent, now: float) -> None:
        """Adapt deadlines and lanes to the endpoints of now."""
        endpoints = self._endpoints
        longest_prompts, longest_live = endpoints.longest_prompts, endpoints.longest_live
        endpoints.apply(event, now)
        if longest_live != endpoints.longest_live:
            self._reschedule()
        if (longest_prompts, longest_live) != (endpoints.longest_prompts, endpoints.longest_live):
            self._relane(now)

    def _expected(self, event: Expected, now: float) -> None:
        self._waits.ready_at = event.ready_at
        if self._endpoints.live:
            return
        if event.failed:
            for request in list(self._queue):
                self._evict(request, Outcome.NO_ENDPOINT, now)
        self._reschedule()

    def _reschedule(self) -> None:
        """Recompute the deadlines of all waiting requests."""
        for request in self._queue:
            request.deadline = self._waits.deadline(request)
        self._queue.reschedule()

    def _relane(self, now: float) -> None:
        """Sort waiting requests into lanes again, and refuse those that fit no endpoint any more."""
        for request in [request for request in self._queue if self._pool.lane(request) is None]:
            self._evict(request, Outcome.CONTEXT_LENGTH_EXCEEDED, now)
        self._queue.relane(lambda request: self._pool.lane(request) or request.lane)

    def _scraped(self, event: Observed, now: float) -> None:
        endpoint = self._endpoints.get(event.endpoint)
        if endpoint is not None:
            previous = endpoint.observed
            self._endpoints.observe(endpoint, event, now)
            if self._queue.several and now >= self._accrued_at + TUNING.accrual_interval:
                self._accrue(now)
            if self._behind and previous is not None and previous.idle and event.idle:
                self._let_go(endpoint, previous.sampled_at, event.sampled_at, now)

    def _recall(self, event: Learned, _now: float) -> None:
        self._predictor.recall(event)

    def _warm_up(self, event: Warmth, now: float) -> None:
        self._predictor.recall(event.learned)
        self._waits.drain_rate.recall(event.drained, now)
        for band, flow, debt in event.debts:
            self._queue.recall(band, flow, debt)
        for promised in event.promises:
            self._promises.recall(promised, now - event.age)
        self._promises.expire(now)

    # Time, the operator, and the queue

    def _recount_shares(self) -> None:
        """Count again what each flow with a `kv_share` holds."""
        shares = self._kv_shares = self._pool.kv_shares
        if shares.shares:
            for identifier, flight in self._flights.items():
                flow, endpoint = self._requests[identifier].arrival.flow, flight.endpoint
                shares.sent(flow, endpoint.id, endpoint.capacity.block_size, flight.reservation, flight.tokens)

    def _policy_changed(self, event: PolicyChanged, now: float) -> None:
        self._pool.govern(event.policy, now)
        self._recount_shares()
        for request in self._queue:
            request.queue_budget = self._waits.queue_budget(request)
        self._reschedule()
        self._relane(now)

    def _shutdown_started(self, _event: ShutdownStarted, now: float) -> None:
        self._pool.draining = True
        for request in list(self._queue):
            self._evict(request, Outcome.DRAINING, now)

    def _tick(self, _event: Tick, now: float) -> None:
        self._promises.expire(now)
        for endpoint in list(self._endpoints):
            self._endpoints.advance(endpoint, now)
            endpoint.refresh_forecast(now)

    def _expire(self, now: float) -> None:
        queue = self._queue
        while queue.no_deadline_before <= now and (request := queue.first_deadline()) and request.deadline <= now:
            self._evict(request, self._waits.overdue(request), now)
            self._offer_due = True

    def _dispatch_waiting(self, now: float) -> None:
        if self._pool.policy.mode is _OBSERVE:
            self._all_closed, self._all_closed_until = False, -inf
            if self._endpoints.live:
                self._queue.offer(self._let_all_through(now))
            return
        self._note_closed(now)
        kept: dict[EndpointRecord, tuple[int, LaneKey] | None] = {}
        """Endpoints kept for a declined head. The value is its lane: only smaller requests of it may go there. None: no
        request may."""
        aside: dict[str, dict[EndpointRecord, tuple[int, LaneKey] | None]] = {}
        """By flow set aside: the endpoints that declined its head, each with the head's lane. The flow's other lanes
        may not overtake it there."""
        withheld: dict[EndpointRecord, int] = {}
        """Endpoints with room that is kept for flows of this band and more urgent ones. Less urgent ones may not go."""
        room_kept = self._pool.kept(now)

        def accept(request: RequestRecord) -> OfferResult:
            nonlocal room_kept
            if self._all_closed:
                return _CLOSED
            flow, lane = request.arrival.flow, (request.arrival.band, request.lane)
            self._pool.apply_shares(request, room_kept, now)
            self._pool.note_throttled(request)
            claimed = _claimed_by_others(kept, lane)
            claimed_by_flow = _claimed_by_others(aside[flow], lane) if flow in aside else _NONE
            of_urgent = {e for e, band in withheld.items() if band < lane[0]} if withheld else _NONE
            chosen, declined = self._place(request, claimed | claimed_by_flow | of_urgent, now)
            if chosen is not None:
                self._dispatch(request, chosen, None, now)
                room_kept = self._pool.kept(now)
                self._note_closed(now)
                return _TAKEN
            after = next_in_line(declined)
            if claimed_by_flow and not claimed_by_flow.isdisjoint(self._endpoints.eligible(request)):
                after = _OTHER_FLOWS  # an endpoint that it could use is kept for an earlier request of its flow
            for endpoint, rule in declined:
                if rule.after is _ITS_BAND:
                    withheld[endpoint] = min(withheld.get(endpoint, lane[0]), lane[0])
                if after is _OTHER_FLOWS or after is _ITS_BAND:
                    aside.setdefault(flow, {}).setdefault(endpoint, lane)
                else:
                    kept.setdefault(endpoint, None if rule.after is _NOBODY else lane)
            return _OFFER_RESULTS[after]

        self._queue.offer(accept)

    def _note_closed(self, now: float) -> None:
        live = self._endpoints.live
        alike = not (live and self._pool.throttling)  # endpoints answer all flows alike
        self._all_closed_until = all_closed_until(live, now) if alike else -inf
        self._all_closed = self._all_closed_until >= now

    def _place(self, request: RequestRecord, without: AbstractSet[EndpointRecord], now: float) -> Placement:
        """Place a request, with a new forecast if the decision depends on it."""
        for endpoint in self._endpoints.live:
            if endpoint.outlook.expired(now) and may_fit(endpoint, now):
                endpoint.refresh_forecast(now)
        chosen, declined = place(self._pool, request, now, without)
        if chosen is None and [e for e, rule in declined if rule.foresees and e.refresh_forecast(now)]:
            return place(self._pool, request, now, without)
        return chosen, declined

    def _let_all_through(self, now: float) -> Callable[[RequestRecord], OfferResult]:
        """The answer of observe mode: it dispatches at once, and notes what `enforce` would have done."""

        def accept(request: RequestRecord) -> OfferResult:
            self._pool.apply_shares(request, self._pool.kept(now), now)
            for endpoint in self._endpoints.live:
                endpoint.refresh_forecast(now)
            decision = decide(self._pool, request, now)
            chosen = decision.endpoint if decision.would is None else let_through(self._pool, request, now)
            if chosen is None:
                return _CLOSED
            self._dispatch(request, chosen, decision.would, now)
            return _TAKEN

        return accept

    def _dispatch(self, request: RequestRecord, endpoint: EndpointRecord, would: str | None, now: float) -> None:
        self._queue.remove(request)
        self._send(request, endpoint, would, now)

    def _send(self, request: RequestRecord, endpoint: EndpointRecord, would: str | None, now: float) -> None:
        """Dispatch a request that is not in the queue, or no longer."""
        request.apply(Trigger.DISPATCHED)
        if request.promise is not None:
            self._promises.use(request.promise, now)
            self._promises.end(request.promise)
        self._reserve(request, endpoint, now)
        self._commands.append(Dispatch(request.arrival.request, endpoint.id, would))

    def _reserve(self, request: RequestRecord, endpoint: EndpointRecord, now: float) -> Reservation:
        """Reserve what a request needs on its endpoint, and charge its flow."""
        charge = self._queue.charge(request)
        flow, tokens = request.arrival.flow, endpoint.final_tokens(request)
        reservation = endpoint.reserve(request, now)
        self._tokens.sent(flow, request.arrival.band, tokens, now)
        self._places.sent(flow, request.arrival.band, request.sequences, now)
        if self._kv_shares.shares:
            self._kv_shares.sent(flow, endpoint.id, endpoint.capacity.block_size, reservation, tokens)
        self._flights[request.arrival.request] = InFlight(endpoint, reservation, tokens, charge)
        return reservation

    def _accrue(self, now: float) -> None:
        """Count what requests in flight have had: a band is not owed for ever what it takes meanwhile."""
        most, self._accrued_at = self._longest_debt(now), now
        for identifier, flight in self._flights.items():
            request, generated = self._requests[identifier], flight.generated(now)
            size = 0 if request.arrival.estimated else request.size  # till its end, when it may be told
            had = service(size, generated) if generated else 0.0
            self._queue.accrue(request, flight.charge, max(had, flight.held(now, None)), most)

    def _longest_debt(self, now: float) -> float:
        """Most service of the pool for which a band waits for what its requests took beyond their cost, tokens."""
        rate = self._endpoints.generation_rate(now)
        if rate < 1.0:  # their engines do not say
            rate = self._waits.drain_rate.rate(now) or 0.0
        return rate * TUNING.band_debt if rate >= 1.0 else inf

    def _announce_wake(self, now: float) -> None:
        """Ask for a `Tick` at the next time at which time alone changes something, unless one is due earlier."""
        if now >= self._wake_at:
            self._wake_at = inf
        due = self._endpoints.changes_at()
        queue = self._queue
        if queue.depth:
            if self._endpoints.live:  # a stale sample fades and may open a gate by time alone
                due = min(due, now + self._pool.policy.poll_interval)
            if queue.no_deadline_before < due and (first := queue.first_deadline()) is not None:
                due = min(due, first.deadline)
        if due < self._wake_at:
            self._wake_at = due
            self._commands.append(WakeAt(due))


def _claimed_by_others(
    claims: Mapping[EndpointRecord, tuple[int, LaneKey] | None], lane: tuple[int, LaneKey]
) -> AbstractSet[EndpointRecord]:
    """The endpoints kept for other lanes than this one."""
    return {endpoint for endpoint, claim in claims.items() if claim != lane} if claims else _NONE
