"""The one writer: every decision about who may use an endpoint's KV cache is made here, by `handle`.

A request arrives and waits; whenever something changed, the heads of the queue are offered to the endpoints that can
take them (`Endpoint.refusal`), in the order of bands and of fairness between flows. An endpoint that a head competes
for and does not get is kept for it: only a few smaller ones behind it, or other flows where it yields, may pass. Who
would surely wait in vain is refused on arrival, others at their deadline (`Waits`).
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from gateway.admission import picker
from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.endpoint import UNBOUNDED, Endpoint
from gateway.admission.events import (
    Arrived,
    Cancelled,
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
)
from gateway.admission.explain import Explanation, explain
from gateway.admission.gate import Closed
from gateway.admission.headroom import Headroom
from gateway.admission.lane import LaneKey
from gateway.admission.ledger import Reservation
from gateway.admission.lifecycle import State, Trigger
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.policy import Mode, Policy
from gateway.admission.predictor import Predictor
from gateway.admission.queue import Answer, Queue
from gateway.admission.request import Request, service
from gateway.admission.roster import Roster
from gateway.admission.state import Load, PoolState
from gateway.admission.view import endpoint_state, queue_state
from gateway.admission.waits import Waits

MAX_FAILURES = 2
"""Endpoints that may fail on a request before it ends: a poisonous one must not walk through all of them."""
WITH_RETRY_AFTER = frozenset({*FOR_WANT_OF_ROOM, Outcome.NO_ENDPOINT, Outcome.DRAINING})
PASSABLE = frozenset({Closed.KV, Closed.FORECAST, Closed.PREFILL, Closed.SHARE})
"""Refusals that a smaller request, or one of another flow, may not meet."""


class Flight:
    """Where a request in flight is, and what it holds there."""

    __slots__ = ("endpoint", "reservation", "tokens")

    def __init__(self, endpoint: Endpoint, reservation: Reservation, tokens: float) -> None:
        self.endpoint = endpoint
        self.reservation = reservation
        self.tokens = tokens
        """That it is expected to hold there at its end."""


class AdmissionController:
    """Admission to the endpoints of one model.

    Deadlines: a request waits at most `ttl` while an endpoint is live, and `no_endpoint_ttl` while none is, each
    counted from its arrival or, if that was later, from the moment the pool came into that state; in all never more
    than both together. Which of the two passed says the outcome.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: dict[RequestId, Request] = {}
        self._flights: dict[RequestId, Flight] = {}
        """One for each request in flight. Whoever takes it out releases its reservation."""
        self._queue = Queue(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self._predictor = Predictor()
        self._roster = Roster(policy, self._predictor)
        self._waits = Waits(policy, self._roster, self._queue)
        self._headroom = Headroom(policy.weights)
        self._promises = self._waits.promises
        self._draining = False
        self._changed = True
        """Whether the event at hand may let somebody go who could not before."""
        self._wake_at = inf
        self._commands: list[Command] = []
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Arrived: self._arrived,
            Cancelled: self._cancelled,
            Progress: self._progress,
            Finished: self._finished,
            Returned: self._returned,
            EndpointUp: self._endpoint_up,
            EndpointDown: self._endpoint_down,
            EndpointGone: self._endpoint_gone,
            Observed: self._observed,
            Learned: self._recall,
            PolicyChanged: self._policy_changed,
            ShutdownStarted: self._shutdown_started,
            Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event that happened at `now` (seconds, never before the last), and say what to do.

        Events about requests or endpoints that are unknown, over, or not in a state for them change nothing.
        """
        commands = self._commands = []
        self._handlers[type(event)](event, now)
        if self._queue.depth:
            self._expire(now)
            if self._changed:
                self._dispatch_waiting(now)
        if type(event) is Arrived:
            self._shed(event, now)
        self._changed = True
        if self._queue.depth:
            self._waits.drained.pressed(now)
        self._announce_wake(now)
        return commands

    def snapshot(self, now: float) -> PoolState:
        """The state of the pool, for people and metrics. Changes nothing."""
        return PoolState(
            endpoints=tuple(endpoint_state(e, now) for e in sorted(self._roster, key=lambda e: e.id)),
            queue=queue_state(self._queue, now),
            drain_rate=self._waits.rate(now),
            draining=self._draining,
        )

    def load(self, now: float) -> Load:
        """How full the pool is. Changes nothing."""
        usages = ((endpoint.id, endpoint.usage(now)) for endpoint in self._roster if endpoint.up)
        return Load(
            waiting=self._queue.depth,
            sequences=sum(endpoint.ledger.sequences for endpoint in self._roster),
            usage=tuple((name, usage) for name, usage in usages if usage is not None),
        )

    def explain(self, arrival: Arrived, now: float) -> Explanation:
        """What `handle` would do with a request that arrived now, and why. Changes nothing."""
        request = Request(arrival, now, self._predictor.kind(arrival, peek=True))
        lane = self._lane(request)
        if arrival.key:
            request.promise = self._promises.find(arrival.key, now)
        if lane is not None:
            request.lane = lane
            self._weigh(request)
            self._set_spare(request, now)
        return explain(request, now, self._roster, self._queue, self._waits, draining=self._draining)

    def learned(self) -> Learned:
        """What it has learned of outputs, for a later core of this model. Changes nothing."""
        return self._predictor.learned()

    def news(self, requests: Iterable[RequestId]) -> dict[RequestId, float]:
        """Of those in flight, from how many tokens on a report of progress changes the account; 0: the first does.

        As the endpoints' blocks are now: ask again when one has come up.
        """
        find = self._flights.get
        return {request: flight.reservation.news for request in requests if (flight := find(request)) is not None}

    @property
    def aborting(self) -> bool:
        """Whether blocks of aborted requests are held until a token of any other shows that the engine made a step."""
        return any(endpoint.ledger.aborting for endpoint in self._roster)

    # Requests

    def _arrived(self, event: Arrived, now: float) -> None:
        if event.request in self._requests:
            return
        request = self._requests[event.request] = Request(event, now, self._predictor.kind(event))
        if event.key:
            self._recognise(request, now)
        request.take(Trigger.ARRIVED)
        self._wait(request, now)
        # Behind somebody who is refused, a newcomer changes nothing: whoever goes first was asked before.
        self._changed = request.state is State.WAITING and self._queue.may_go(request) and self._in_turn(request, now)

    def _recognise(self, request: Request, now: float) -> None:
        """See whether it was refused before. Who comes back when it was told to has the turn it had."""
        promise = request.promise = self._promises.find(request.arrival.key, now)
        if promise is not None and promise.due <= now:
            self._promises.use(promise, now)
            request.order = promise.order

    def _in_turn(self, request: Request, now: float) -> bool:
        """Whether one that comes back too early takes nothing from who comes back for an earlier turn."""
        promise = request.promise
        return promise is None or promise.used or self._promises.next_in_turn(promise, now)

    def _wait(self, request: Request, now: float) -> None:
        """Enter a request in state `WAITING` into the queue, unless it can be refused at once."""
        if self._draining:
            self._reject(request, Outcome.DRAINING, now)
        elif (lane := self._lane(request)) is None:
            self._reject(request, Outcome.CONTEXT_LENGTH_EXCEEDED, now)
        else:
            self._weigh(request)
            self._queue.push(request, lane)

    def _weigh(self, request: Request) -> None:
        """Predict what it takes, and how long it may wait."""
        request.weigh(self._predictor)
        request.patience = self._waits.patience(request)
        request.deadline = self._waits.deadline(request)

    def _lane(self, request: Request) -> LaneKey | None:
        """Where it stands in the queue; None when it fits no endpoint that is known."""
        lane = self._roster.lane(request)
        return (UNBOUNDED, request.avoid) if lane is None and self._policy.mode is Mode.OBSERVE else lane

    def _cancelled(self, event: Cancelled, _now: float) -> None:
        request = self._requests.get(event.request)
        if request is not None and request.take(Trigger.CANCELLED):
            self._leave(request)
            del self._requests[event.request]

    def _progress(self, event: Progress, now: float) -> None:
        touched: dict[Endpoint, None] = {}  # a set that keeps its order
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
            if generated < reservation.news:  # nearly always: then there is nothing else to do
                reservation.seen = generated
            else:
                endpoint.ledger.progress(reservation, generated, now)
        for endpoint in touched:
            endpoint.ledger.stepped(now)
            self._roster.settle(endpoint, now)

    def _finished(self, event: Finished, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.take(Trigger.FINISHED):
            return
        del self._requests[event.request]
        flight = self._flights.pop(event.request)
        endpoint, reservation = flight.endpoint, flight.reservation
        self._headroom.left(request.arrival.flow, flight.tokens, now)
        tokens = event.completion_tokens
        aborted = event.verdict is Verdict.ABORTED
        if tokens is not None:
            generated = tokens
        else:
            generated = endpoint.ledger.progressed(reservation, now) if aborted else reservation.seen
        if event.verdict is Verdict.DONE and generated:
            self._predictor.learn(request.kind, -(-generated // reservation.sequences), reservation.limit)
        if generated or aborted:
            used = service(request.size, generated)
        else:  # refused by the endpoint or failed at once, unless nobody says how long the answer was
            used = request.cost if tokens is None and event.verdict is Verdict.DONE else 0.0
        self._queue.settle(request.arrival.flow, request.arrival.band, used - request.cost)
        self._waits.drained.completed(used, now)
        endpoint.release(reservation, tokens, now, aborted=aborted)
        self._roster.settle(endpoint, now)

    def _returned(self, event: Returned, now: float) -> None:
        request = self._requests.get(event.request)
        if request is None or not request.take(Trigger.RETURNED):
            return
        flight = self._flights.pop(event.request)
        endpoint = flight.endpoint
        self._headroom.left(request.arrival.flow, flight.tokens, now)
        endpoint.release(flight.reservation, None, now, aborted=False)
        self._queue.settle(request.arrival.flow, request.arrival.band, -request.cost)
        if event.busy:
            endpoint.hold(now)
        else:
            request.failures += 1
            request.avoid = endpoint.id
        self._roster.settle(endpoint, now)
        if request.failures >= MAX_FAILURES:
            self._reject(request, Outcome.UPSTREAM_ERROR, now)
        else:
            self._wait(request, now)

    def _reject(self, request: Request, outcome: Outcome, now: float) -> None:
        """Refuse a request in state `WAITING` that is not in the queue."""
        request.take(Trigger.REJECTED)
        key = request.arrival.request
        del self._requests[key]
        retry_after = self._waits.told(request, outcome, now) if outcome in WITH_RETRY_AFTER else None
        self._commands.append(Reject(key, outcome, retry_after))

    def _leave(self, request: Request) -> None:
        """Take a request out of the queue, and with it what it was promised."""
        self._queue.remove(request)
        if request.promise is not None and request.promise.used:
            self._promises.end(request.promise)

    def _evict(self, request: Request, outcome: Outcome, now: float) -> None:
        """Refuse a request that is in the queue."""
        self._leave(request)
        self._reject(request, outcome, now)

    def _shed(self, event: Arrived, now: float) -> None:
        """Refuse a newcomer that found no place at an endpoint nor in the queue, or would wait there in vain.

        Who comes back too early is told the same again; who comes back in time takes the place of somebody later.
        """
        request = self._requests.get(event.request)
        if request is None or request.arrival is not event or request.state is not State.WAITING:
            return
        self._waits.drained.pressed(now)
        promise = request.promise
        if promise is not None and not promise.used:
            self._evict(request, promise.outcome, now)
            return
        while promise is not None and self._waits.full() and (last := self._queue.last(request)) is not None:
            self._evict(last, Outcome.QUEUE_FULL, now)
        if self._waits.full():
            self._evict(request, Outcome.QUEUE_FULL, now)
        elif promise is None and self._waits.in_vain(request, now):
            self._evict(request, Outcome.WAIT_TOO_LONG, now)

    # Endpoints

    def _endpoint_up(self, event: EndpointUp, now: float) -> None:
        before = self._roster.reaches, bool(self._roster.live)
        self._roster.came_up(event.endpoint, event.capacity, now)
        self._follow_roster(before, now)

    def _endpoint_down(self, event: EndpointDown, now: float) -> None:
        before = self._roster.reaches, bool(self._roster.live)
        self._roster.went_down(event.endpoint, event.reason, now)
        self._follow_roster(before, now)

    def _endpoint_gone(self, event: EndpointGone, now: float) -> None:
        before = self._roster.reaches, bool(self._roster.live)
        self._roster.went_down(event.endpoint, "removed", now, gone=True)
        self._follow_roster(before, now)

    def _follow_roster(self, before: tuple[tuple[int, ...], bool], now: float) -> None:
        """Let those who wait go by the endpoints that are there now."""
        reaches, live = before
        if live != bool(self._roster.live):
            self._reschedule()
        if reaches != self._roster.reaches:
            self._relane(now)

    def _reschedule(self) -> None:
        """Let those who wait have the deadlines of now."""
        for request in self._queue:
            request.deadline = self._waits.deadline(request)
        self._queue.reschedule()

    def _relane(self, now: float) -> None:
        """Let those who wait stand where they can go now; who can go nowhere is refused."""
        for request in [request for request in self._queue if self._lane(request) is None]:
            self._evict(request, Outcome.CONTEXT_LENGTH_EXCEEDED, now)
        self._queue.relane(lambda request: self._lane(request) or request.lane)

    def _observed(self, event: Observed, now: float) -> None:
        endpoint = self._roster.get(event.endpoint)
        if endpoint is not None:
            endpoint.observe(event, now)

    def _recall(self, event: Learned, _now: float) -> None:
        self._predictor.recall(event)

    # Time, the operator, and the queue

    def _policy_changed(self, event: PolicyChanged, now: float) -> None:
        policy = self._policy = event.policy
        self._queue.govern(bands=policy.bands, weights=policy.weights, max_passes=policy.max_passes)
        self._headroom.govern(policy.weights)
        self._waits.govern(policy)
        self._roster.govern(policy, now)
        for request in self._queue:
            request.patience = self._waits.patience(request)
        self._reschedule()
        self._relane(now)

    def _shutdown_started(self, _event: ShutdownStarted, now: float) -> None:
        self._draining = True
        for request in list(self._queue):
            self._evict(request, Outcome.DRAINING, now)

    def _tick(self, _event: Tick, now: float) -> None:
        self._promises.expire(now)
        for endpoint in list(self._roster):
            self._roster.settle(endpoint, now)

    def _expire(self, now: float) -> None:
        while (request := self._queue.first_deadline()) is not None and request.deadline <= now:
            self._evict(request, self._waits.overdue(request), now)
            self._changed = True

    def _dispatch_waiting(self, now: float) -> None:
        for endpoint in self._roster.live:
            endpoint.settle_by(now)
        if self._policy.mode is Mode.OBSERVE:
            if self._roster.live:
                self._queue.offer(self._observe_only(now))
            return
        kept: dict[Endpoint, tuple[int, LaneKey] | None] = {}
        """Endpoints that somebody ahead waits for: only smaller ones behind it may pass, or nobody (None)."""

        def accept(request: Request) -> Answer:
            lane = (request.arrival.band, request.lane)
            self._set_spare(request, now)
            takers: list[Endpoint] = []
            refusals: list[tuple[Endpoint, Closed]] = []
            for endpoint in self._roster.eligible(request):
                if kept.get(endpoint, lane) != lane:
                    continue
                refusal = endpoint.refusal(request, now)
                if refusal is None:
                    takers.append(endpoint)
                else:
                    refusals.append((endpoint, refusal))
            chosen = picker.pick(takers, request, now)
            if chosen is not None:
                self._dispatch(request, chosen, None, now)
                return Answer.TAKEN
            for endpoint, refusal in refusals:
                kept.setdefault(endpoint, lane if refusal in PASSABLE else None)
            return _answer(refusals)

        self._queue.offer(accept)

    def _set_spare(self, request: Request, now: float) -> None:
        spare = self._headroom.spare(request.arrival.flow, self._queue.waiting, now)
        live = self._roster.live
        request.spare = spare / len(live) if spare and live else 0.0

    def _observe_only(self, now: float) -> Callable[[Request], Answer]:
        """How a mode that lets everything through takes a request: at once, noting what `enforce` would have done.

        Only an endpoint that has just said it is busy is left alone in this mode too.
        """

        def accept(request: Request) -> Answer:
            fitting = self._roster.eligible(request)
            chosen = picker.pick([e for e in fitting if e.refusal(request, now) is None], request, now)
            would = None
            if chosen is None:
                would = self._would(request)
                free = [e for e in self._roster.live if not e.held(now)]
                chosen = picker.pick([e for e in fitting if e in free] or free, request, now)
            if chosen is None:
                return Answer.CLOSED
            self._dispatch(request, chosen, would, now)
            return Answer.TAKEN

        return accept

    def _would(self, request: Request) -> str:
        if request.longest_prompt > self._roster.reach:
            return Outcome.CONTEXT_LENGTH_EXCEEDED
        if not self._policy.max_requests or request.arrival.body_bytes > self._policy.max_bytes:
            return Outcome.QUEUE_FULL
        return "queued"

    def _dispatch(self, request: Request, endpoint: Endpoint, would: str | None, now: float) -> None:
        request.take(Trigger.DISPATCHED)
        if request.promise is not None:
            self._promises.use(request.promise, now)
        self._leave(request)
        self._queue.served(request)
        tokens = request.size + endpoint.expected(request) * request.sequences
        reservation = endpoint.reserve(request, now)
        self._headroom.sent(request.arrival.flow, tokens, now)
        self._flights[request.arrival.request] = Flight(endpoint, reservation, tokens)
        self._commands.append(Dispatch(request.arrival.request, endpoint.id, would))

    def _announce_wake(self, now: float) -> None:
        """Ask for a `Tick` when time alone will change something, unless one comes by then anyway."""
        if now >= self._wake_at:
            self._wake_at = inf
        due = inf
        for endpoint in self._roster:
            if endpoint.restless:
                due = min(due, endpoint.next_change)
        first = self._queue.first_deadline()
        if first is not None:
            due = min(due, first.deadline)
            if self._roster.live:  # a stale sample fades and opens a gate: nothing but time tells
                due = min(due, now + self._policy.poll_interval)
        if due < self._wake_at:
            self._wake_at = due
            self._commands.append(WakeAt(due))


def _answer(refusals: list[tuple[Endpoint, Closed]]) -> Answer:
    """What the queue is told of a request that nobody takes."""
    answer = Answer.CLOSED
    for _, refusal in refusals:
        if refusal is Closed.SHARE:
            return Answer.OVER_SHARE
        if refusal in PASSABLE:
            answer = Answer.NO_ROOM
    return answer
