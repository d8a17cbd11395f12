"""The admission controller of one model. Only it changes the core's state, and only in `handle`.

A request arrives and enters the queue. After each change, the heads of the queue are offered to the endpoints that can
take them (`placing/rules.py`), in the order of bands and of fairness between flows. If a rule holds back the flow of a
head, that flow's requests in its lane are set aside, and the next flow has its turn. Any other head that is refused has
its endpoints kept for it: requests of other lanes and bands are not sent there, and only a few smaller ones of its
lane may be backfilled. A request that would surely wait in vain is refused on arrival; one that waits is refused when
its deadline passes (`Waits`).
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from math import inf
from typing import Any, Final

from gateway.admission.account.ledger import Reservation
from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.decide import Placement, barred, decide, let_through, place, turned_away
from gateway.admission.events import (
    Arrived,
    Back,
    Cancelled,
    Declared,
    EndpointDown,
    EndpointGone,
    EndpointUp,
    Event,
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
from gateway.admission.limits.standing import Exceeded
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.lifecycle import State, Trigger
from gateway.admission.placing.presence import EndpointEvent
from gateway.admission.placing.request import LaneKey, RequestRecord, service
from gateway.admission.placing.rules import Next, may_fit, next_in_line, shut_until
from gateway.admission.policy import Mode, Policy
from gateway.admission.pool import Pool
from gateway.admission.queueing.queue import Answer
from gateway.admission.snapshot import Load, PoolState
from gateway.admission.tuning import TUNING
from gateway.admission.view import endpoint_state, queue_state

WITH_RETRY_AFTER = frozenset({*FOR_WANT_OF_ROOM, Outcome.NO_ENDPOINT, Outcome.DRAINING})
_NONE: AbstractSet[EndpointRecord] = frozenset()
MOST_WARM = 500
"""Most flows, and most promises, in a `Warmth`: each second the fronts get one to keep for the next owner."""
_ANSWERS = {Next.NOBODY: Answer.CLOSED, Next.SMALLER: Answer.NO_ROOM, Next.OTHER_FLOWS: Answer.NOT_ITS_FLOW}


_OBSERVE: Final = Mode.OBSERVE  # Python 3.11 looks a member up by a call, and each event asks for several
_WAITING: Final = State.WAITING
_CLOSED: Final = Answer.CLOSED
_TAKEN: Final = Answer.TAKEN
_OTHER_FLOWS: Final = Next.OTHER_FLOWS
_NOBODY: Final = Next.NOBODY


class InFlight:
    """The endpoint and the reservation of one request in flight."""

    __slots__ = ("endpoint", "reservation", "tokens")

    def __init__(self, endpoint: EndpointRecord, reservation: Reservation, tokens: float) -> None:
        self.endpoint = endpoint
        self.reservation = reservation
        self.tokens = tokens
        """Expected tokens at its end."""


class AdmissionController:
    """Admission to the endpoints of one model.

    Deadlines: a request waits at most its queue budget, which is never over `ttl`, while an endpoint is live, and at
    most `no_endpoint_ttl` while none is. Each counts from its arrival or from the last change between these two states,
    whichever is later. Its whole wait never exceeds `ttl` and `no_endpoint_ttl` together. The outcome tells whether
    its budget, `ttl` or `no_endpoint_ttl` ended it (`Waits.overdue`).
    """

    def __init__(self, policy: Policy) -> None:
        self._pool = pool = Pool(policy)
        self._requests: dict[RequestId, RequestRecord] = {}
        self._flights: dict[RequestId, InFlight] = {}
        """One per request in flight. Code that takes one out releases its reservation."""
        self._queue = pool.queue
        self._predictor = pool.predictor
        self._endpoints = pool.endpoints
        self._waits = pool.waits
        self._headroom = pool.headroom
        self._shares = pool.shares
        self._promises = pool.waits.promises
        self._changed = True
        """Whether the queue is offered after this event: True unless its handler knows that no room was made."""
        self._shut = False
        """Whether every endpoint was shut when the queue was last offered, and somebody has waited since."""
        self._shut_until = -inf
        """Until then they stay so, whatever progress and time do."""
        self._wake_at = inf
        self._commands: list[Command] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Arrived: self._arrived,
            Declared: self._declared,
            Cancelled: self._cancelled,
            Progress: self._progress,
            Finished: self._finished,
            Returned: self._returned,
            EndpointUp: self._endpoint_changed,
            EndpointDown: self._endpoint_changed,
            EndpointGone: self._endpoint_changed,
            Observed: self._observed,
            Learned: self._recall,
            Warmth: self._warm_up,
            PolicyChanged: self._policy_changed,
            ShutdownStarted: self._shutdown_started,
            Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle one event of time `now` (seconds, never before the last one), and return the commands.

        An event only lets time pass if its request or endpoint is unknown, has ended, or cannot take it in its state.
        """
        commands = self._commands = []
        self._handlers[type(event)](event, now)
        if self._endpoints.reach.changes_at <= now:
            self._endpoints.reach.pass_time(now)
            self._changed = True
            self._relane(now)
        if self._queue.depth:
            self._expire(now)
            for endpoint in self._endpoints.live:
                endpoint.settle_by(now)
            if self._changed:
                self._dispatch_waiting(now)
        else:
            self._shut, self._shut_until = False, -inf
        if type(event) is Arrived:
            self._shed(event, now)
        self._changed = True  # for the next event
        held = self._pool.held  # requests that wait only for their own flow's sake are no pressure
        if self._queue.depth and not (held and self._pool.held_back() == self._queue.depth):
            self._waits.drain_rate.pressed(now)
        self._announce_wake(now)
        return commands

    def snapshot(self, now: float) -> PoolState:
        """State of the pool, for people and metrics. Changes nothing."""
        return PoolState(
            endpoints=tuple(endpoint_state(e, now) for e in sorted(self._endpoints, key=lambda e: e.id)),
            queue=queue_state(self._queue, now),
            drain_rate=self._waits.rate(now),
            draining=self._pool.draining,
        )

    def load(self, now: float) -> Load:
        """Load of the pool. Changes nothing."""
        usages = ((endpoint.id, endpoint.usage(now)) for endpoint in self._endpoints if endpoint.live)
        return Load(
            waiting=self._queue.depth,
            sequences=sum(endpoint.ledger.sequences for endpoint in self._endpoints),
            usage=tuple((name, usage) for name, usage in usages if usage is not None),
        )

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """Decision that `handle` would make about a request that arrived now, and its reasons. Changes nothing."""
        request = RequestRecord(arrival, now, self._predictor.like(arrival))
        if arrival.key:
            request.promise = self._promises.find(arrival.key, now)
        lane = self._pool.lane(request)
        if lane is not None:
            request.lane = lane
            self._pool.weigh(request)
            self._pool.restrain(request, now)
        return explain(self._pool, request, now)

    def learned(self) -> Learned:
        """Output lengths learned, for a later core of this model. Changes nothing."""
        return self._predictor.learned()

    def warmth(self, now: float) -> Warmth:
        """What was measured, served and promised, for a core that takes over. Changes nothing."""
        return Warmth(
            drained=self._waits.drain_rate.measured(now),
            debts=tuple(islice(self._queue.debts(), MOST_WARM)),
            promises=tuple(islice(self._promises.open(self._queue.tickets, now), MOST_WARM)),
        )

    def news(self, requests: Iterable[RequestId]) -> dict[RequestId, float]:
        """For each request in flight, the token count below which a report changes nothing; 0: report all.

        It depends on the endpoints' block sizes: ask again after an endpoint came up.
        """
        find = self._flights.get
        return {request: flight.reservation.news for request in requests if (flight := find(request)) is not None}

    @property
    def aborting(self) -> bool:
        """Whether aborted requests still hold blocks: until the engine's next step is seen, at most `abort_bound`."""
        for endpoint in self._endpoints:  # noqa: SIM110 - a generator would cost more than the rest
            if endpoint.ledger.aborting:
                return True
        return False

    @property
    def tries_again(self) -> bool:
        """Whether time alone may let a waiting request go before the next wake-up, as predictions change with time."""
        return self._queue.depth > 0 and not self._shut

    # Requests

    def _arrived(self, event: Arrived, now: float) -> None:
        if event.request in self._requests:
            return
        request = self._requests[event.request] = RequestRecord(event, now, self._predictor.kind(event))
        if event.key:
            self._recognise(request, now)
        request.take(Trigger.ARRIVED)
        if not self._queue.depth and self._passes_by(request, now):
            return
        self._wait(request, now)
        # Its arrival frees nothing for a refused head, so the queue is offered only if it may go itself.
        self._changed = request.state is _WAITING and self._queue.may_go(request) and self._in_turn(request, now)

    def _passes_by(self, request: RequestRecord, now: float) -> bool:
        """Dispatch a request at once, past the empty queue; False if it may have to wait, or to be refused.

        The same follows as if it had been entered, offered and taken out.
        """
        pool = self._pool
        if request.arrival.waited or pool.policy.mode is _OBSERVE or pool.policy.holds_back_flows:
            return False
        if self._endpoints.reach.changes_at <= now:
            return False
        if barred(pool, request, pool.lane(request)) is not None or not self._in_turn(request, now):
            return False
        request.weigh(self._predictor)
        pool.restrain(request, now)
        for endpoint in self._endpoints.live:
            endpoint.settle_by(now)
        chosen, _ = self._place(request, _NONE, now)
        if chosen is not None:
            self._queue.pass_by(request)
            self._send(request, chosen, None, now)
        return chosen is not None

    def _recognise(self, request: RequestRecord, now: float) -> None:
        """Look up an earlier refusal. A request that comes back when it was told to has its earlier turn."""
        promise = request.promise = self._promises.find(request.arrival.key, now)
        if promise is not None and promise.due <= now:
            self._promises.use(promise, now)
            request.order = promise.order

    def _in_turn(self, request: RequestRecord, now: float) -> bool:
        """False only for a request that came back early while another has an earlier promise, unless all may go."""
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
            self._reject(request, Outcome.UPSTREAM_ERROR, now)
            return
        lane = self._pool.lane(request)
        bar = barred(self._pool, request, lane)
        if bar is not None:
            self._reject(request, bar.outcome, now, bar.exceeded)
        elif lane is not None:
            self._pool.weigh(request)
            self._queue.push(request, lane)

    def _declared(self, event: Declared, now: float) -> None:
        arrival, endpoint = event.arrival, self._endpoints.get(event.endpoint)
        if arrival.request in self._requests or endpoint is None:
            return
        request = self._requests[arrival.request] = RequestRecord(arrival, now, self._predictor.kind(arrival))
        request.take(Trigger.ARRIVED)
        request.take(Trigger.DISPATCHED)
        self._pool.weigh(request)
        endpoint.ledger.resumed(arrival.request)
        reservation = self._fly(request, endpoint, now)
        if event.generated:
            endpoint.ledger.progress(reservation, event.generated, now)
        self._endpoints.settle(endpoint, now)

    def _cancelled(self, event: Cancelled, _now: float) -> None:
        request = self._requests.get(event.request)
        if request is not None and request.take(Trigger.CANCELLED):
            self._leave(request)
            del self._requests[event.request]

    def _progress(self, event: Progress, now: float) -> None:
        touched: dict[EndpointRecord, None] = {}  # an ordered set
        find, endpoint = self._flights.get, None
        for key, generated in event.generated:
            flight = find(key)
            if flight is None:
                continue
            reservation = flight.reservation
            if generated <= reservation.seen:
                continue
            if flight.endpoint is not endpoint:
                endpoint = flight.endpoint
                touched[endpoint] = None
            if generated < reservation.news:  # the usual case: nothing else to do
                reservation.seen = generated
            else:
                endpoint.ledger.progress(reservation, generated, now)
        for endpoint in touched:
            endpoint.ledger.stepped(now)
            self._endpoints.settle(endpoint, now)
        self._changed = now >= self._shut_until

    def _finished(self, event: Finished, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.take(Trigger.FINISHED):
            return
        del self._requests[event.request]
        flight = self._flights.pop(event.request)
        endpoint, reservation = flight.endpoint, flight.reservation
        self._left(request, flight, now)
        tokens = event.completion_tokens
        aborted = event.verdict is Verdict.ABORTED
        seen = reservation.seen if tokens is None else tokens
        if event.verdict is Verdict.DONE and seen:
            self._predictor.learn(request.kind, -(-seen // reservation.sequences), reservation.limit)
        generated = endpoint.ledger.progressed(reservation, now) if tokens is None else tokens
        if generated or aborted:
            used = service(request.size, generated)
        else:  # nothing was generated: free, unless the answer is whole and its length unknown
            used = request.cost if tokens is None and event.verdict is Verdict.DONE else 0.0
        self._queue.settle(request.arrival.flow, request.arrival.band, used - request.cost)
        self._waits.drain_rate.completed(used, now)
        endpoint.release(reservation, tokens, now, aborted=aborted)
        self._endpoints.settle(endpoint, now)

    def _returned(self, event: Returned, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.take(Trigger.RETURNED):
            return
        flight = self._flights.pop(event.request)
        endpoint = flight.endpoint
        self._left(request, flight, now)
        endpoint.release(flight.reservation, None, now, aborted=False)
        self._queue.settle(request.arrival.flow, request.arrival.band, -request.cost)
        match event.why:
            case Back.BUSY:
                endpoint.hold(now)
            case Back.UNREACHED:
                self._endpoints.reach.lost(event.request, endpoint.id, now)
                self._relane(now)
            case Back.FAILED:
                request.failures += 1
                request.avoid = endpoint.id
        self._endpoints.settle(endpoint, now)
        self._wait(request, now)

    def _left(self, request: RequestRecord, flight: InFlight, now: float) -> None:
        """Take a request that leaves its endpoint out of what its flow holds."""
        flow = request.arrival.flow
        self._headroom.left(flow, flight.tokens, now)
        if self._shares.shares:
            self._shares.left(flow, request.arrival.request)

    def _reject(self, request: RequestRecord, outcome: Outcome, now: float, exceeded: Exceeded | None = None) -> None:
        """Refuse a request in state `WAITING` that is not in the queue yet, or no longer."""
        request.take(Trigger.REJECTED)
        key = request.arrival.request
        del self._requests[key]
        retry_after = self._waits.told(request, outcome, now) if outcome in WITH_RETRY_AFTER else None
        flow = request.arrival.flow
        if outcome in FOR_WANT_OF_ROOM and flow in self._pool.held and self._pool.over_share(request):
            exceeded = self._pool.over_limit(flow, request.size + request.sequences)
        self._commands.append(Reject(key, outcome, retry_after, exceeded))

    def _leave(self, request: RequestRecord) -> None:
        """Take a request out of the queue, and settle its promise."""
        self._queue.remove(request)
        if request.promise is not None and request.promise.used:
            self._promises.end(request.promise)

    def _evict(self, request: RequestRecord, outcome: Outcome, now: float) -> None:
        """Refuse a request that is in the queue."""
        self._leave(request)
        self._reject(request, outcome, now)

    def _shed(self, event: Arrived, now: float) -> None:
        """Refuse a new request that fits neither an endpoint nor the queue, or would wait in vain.

        One that comes back too early is told the same time again. If the queue is full, another request may have to
        give up its place (`Waits.gives_way`).
        """
        request = self._requests.get(event.request)
        if request is None or request.arrival is not event or request.state is not _WAITING or event.waited:
            return
        if not request.held_back:
            self._waits.drain_rate.pressed(now)
        away = turned_away(self._pool, request, now)
        while away is None and self._waits.full_with(request) and (last := self._waits.gives_way(request)) is not None:
            self._evict(last, Outcome.QUEUE_FULL, now)
            away = turned_away(self._pool, request, now)
        if away is not None:
            self._evict(request, away.outcome, now)

    # Endpoints

    def _endpoint_changed(self, event: EndpointEvent, now: float) -> None:
        """Adapt deadlines and lanes to the endpoints of now."""
        endpoints = self._endpoints
        reaches, live = endpoints.reaches, bool(endpoints.live)
        endpoints.take(event, now)
        if type(event) is EndpointUp and event.observed is not None:
            self._observed(event.observed, now)
        if live != bool(endpoints.live):
            self._reschedule()
        if reaches != endpoints.reaches:
            self._relane(now)

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

    def _observed(self, event: Observed, now: float) -> None:
        endpoint = self._endpoints.get(event.endpoint)
        if endpoint is not None:
            self._endpoints.observe(endpoint, event, now)

    def _recall(self, event: Learned, _now: float) -> None:
        self._predictor.recall(event)

    def _warm_up(self, event: Warmth, now: float) -> None:
        self._waits.drain_rate.recall(event.drained, now)
        for band, flow, debt in event.debts:
            self._queue.recall(band, flow, debt)
        for promised in event.promises:
            self._promises.recall(promised, now - event.age)
        self._promises.expire(now)

    # Time, the operator, and the queue

    def _share_out(self) -> None:
        """Count what is in flight by the shares in force."""
        shares = self._shares = self._pool.shares
        if shares.shares:
            for key, flight in self._flights.items():
                flow, endpoint = self._requests[key].arrival.flow, flight.endpoint
                shares.sent(flow, endpoint.id, endpoint.capacity.block_size, flight.reservation, flight.tokens)

    def _policy_changed(self, event: PolicyChanged, now: float) -> None:
        self._pool.govern(event.policy, now)
        self._share_out()
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
            self._endpoints.settle(endpoint, now)
            endpoint.refresh_forecast(now)

    def _expire(self, now: float) -> None:
        queue = self._queue
        while queue.no_deadline_before <= now and (request := queue.first_deadline()) and request.deadline <= now:
            self._evict(request, self._waits.overdue(request), now)
            self._changed = True

    def _dispatch_waiting(self, now: float) -> None:
        if self._pool.policy.mode is _OBSERVE:
            self._shut, self._shut_until = False, -inf
            if self._endpoints.live:
                self._queue.offer(self._observe_only(now))
            return
        self._look_whether_shut(now)
        kept: dict[EndpointRecord, tuple[int, LaneKey] | None] = {}
        """Endpoints kept for a refused head. The value is its lane: only smaller requests of it may go there. None: no
        request may."""
        aside: dict[str, dict[EndpointRecord, tuple[int, LaneKey] | None]] = {}
        """For each flow set aside: the endpoints that refused its head, and that head's lane. Requests of the flow in
        other lanes may not go there first."""

        def accept(request: RequestRecord) -> Answer:
            if self._shut:
                return _CLOSED
            flow, lane = request.arrival.flow, (request.arrival.band, request.lane)
            self._pool.restrain(request, now)
            if self._pool.policy.holds_back_flows:
                (self._pool.held.add if request.held_back else self._pool.held.discard)(flow)
            claimed = _for_others(kept, lane)
            behind = _for_others(aside[flow], lane) if flow in aside else _NONE
            chosen, refusals = self._place(request, claimed | behind, now)
            if chosen is not None:
                self._dispatch(request, chosen, None, now)
                self._look_whether_shut(now)
                return _TAKEN
            after = next_in_line(refusals)
            if behind and not behind.isdisjoint(self._endpoints.eligible(request)):
                after = _OTHER_FLOWS  # an earlier request of its flow claims an endpoint that it could use
            for endpoint, rule in refusals:
                if after is _OTHER_FLOWS:
                    aside.setdefault(flow, {}).setdefault(endpoint, lane)
                else:
                    kept.setdefault(endpoint, None if rule.after is _NOBODY else lane)
            return _ANSWERS[after]

        self._queue.offer(accept)

    def _look_whether_shut(self, now: float) -> None:
        self._shut_until = shut_until(self._endpoints.live, now)
        self._shut = self._shut_until >= now

    def _place(self, request: RequestRecord, without: AbstractSet[EndpointRecord], now: float) -> Placement:
        """Place a request, with a new forecast where the decision hangs on it."""
        for endpoint in self._endpoints.live:
            if endpoint.outlook.expired(now) and may_fit(endpoint, now):
                endpoint.refresh_forecast(now)
        chosen, refusals = place(self._pool, request, now, without)
        if chosen is None and [e for e, rule in refusals if rule.foresees and e.refresh_forecast(now)]:
            return place(self._pool, request, now, without)
        return chosen, refusals

    def _observe_only(self, now: float) -> Callable[[RequestRecord], Answer]:
        """The answer of observe mode: it dispatches at once, and notes what `enforce` would have done."""

        def accept(request: RequestRecord) -> Answer:
            self._pool.restrain(request, now)
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
        request.take(Trigger.DISPATCHED)
        if request.promise is not None:
            self._promises.use(request.promise, now)
            self._promises.end(request.promise)
        self._fly(request, endpoint, now)
        self._commands.append(Dispatch(request.arrival.request, endpoint.id, would))

    def _fly(self, request: RequestRecord, endpoint: EndpointRecord, now: float) -> Reservation:
        """Reserve what a request needs on its endpoint, and charge its flow."""
        self._queue.served(request)
        flow, tokens = request.arrival.flow, endpoint.final_tokens(request)
        reservation = endpoint.reserve(request, now)
        self._headroom.sent(flow, tokens, now)
        if self._shares.shares:
            self._shares.sent(flow, endpoint.id, endpoint.capacity.block_size, reservation, tokens)
        self._flights[request.arrival.request] = InFlight(endpoint, reservation, tokens)
        return reservation

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


def _for_others(
    claims: Mapping[EndpointRecord, tuple[int, LaneKey] | None], lane: tuple[int, LaneKey]
) -> AbstractSet[EndpointRecord]:
    """The endpoints that other lanes than this one claim."""
    return {endpoint for endpoint, claim in claims.items() if claim != lane} if claims else _NONE
