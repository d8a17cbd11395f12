"""The asyncio driver of an admission core: passes events in with their time, and its decisions out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    NOWHERE,
    Arrived,
    Cancelled,
    Declared,
    EndpointUp,
    Event,
    Finished,
    Progress,
    RequestId,
    Tick,
    Verdict,
    Warmth,
)
from gateway.admission.explanation import Explanation
from gateway.admission.limits.tenants import Tenants
from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.pools.interface import Asker


class Driver:
    """Runs one controller and is its only caller, always on the event loop's thread.

    Three things never reach the controller: what `Tenants` refuses, what is relayed without a place, and a batch of
    progress without counts while no waiting request could go by time alone.

    Args:
        controller: the core of one model.
        clock: monotonic seconds.
        asker: gets its decisions.
        record: called with each event, its time and the core's commands.
        tenants: the limits of tenants, shared by all models.
        before: called before each event: it may take from the core what it must not decide about any more.
    """

    def __init__(
        self,
        controller: AdmissionController,
        clock: Callable[[], float],
        asker: Asker,
        record: Callable[[Event, float, Sequence[Command]], None] | None = None,
        *,
        tenants: Tenants | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._controller = controller
        self._clock = clock
        self._asker = asker
        self._tenants = Tenants({}) if tenants is None else tenants
        self._record = record
        self._before = before
        self._wake_timer: asyncio.TimerHandle | None = None
        self._relayed: set[RequestId] = set()
        """Requests that are relayed without a place, until they have ended."""

    @property
    def controller(self) -> AdmissionController:
        """The controller, for readers only: snapshots, loads."""
        return self._controller

    def handle(self, event: Event) -> None:
        """Pass an event to the core and carry out its commands."""
        if type(event) is Progress and not event.generated and not self._controller.time_may_dispatch:
            return
        if self._before is not None:
            self._before()
        if type(event) is EndpointUp:
            self._asker.renew()
        events = [event]
        for event in events:  # noqa: PLR1704 - it grows: when a proxy ends, its clients leave by the thousand
            now = self._clock()
            if (apart := self._apart(event, now)) is not None:
                events += apart
                continue
            commands = self._controller.handle(event, now)
            if self._record is not None:
                self._record(event, now, commands)
            if commands:
                events += [following for command in commands if (following := self._carry_out(command)) is not None]
            if type(event) is Progress and event.generated:
                next_reports = self._controller.next_reports([request for request, _ in event.generated])
                self._asker.want(next_reports, everything=self._controller.aborting)
            elif type(event) is Finished and event.verdict is Verdict.ABORTED:
                self._asker.want({}, everything=self._controller.aborting)

    def _apart(self, event: Event, now: float) -> list[Event] | None:
        """What follows from an event that the core is not told; None if it is to be told."""
        if self._tenants.limited and (refused := self._refused(event, now)) is not None:
            self._asker.decided(refused)
            return []
        if not self._relays(event):
            return None
        ended = self._carry_out(Dispatch(event.request, NOWHERE)) if type(event) is Arrived else None
        return [] if ended is None else [ended]

    def _relays(self, event: Event) -> bool:
        """Whether an event is about a request that is relayed without a place."""
        if type(event) is Arrived or type(event) is Declared:
            arrival = event.arrival if isinstance(event, Declared) else event
            if arrival.relayed:
                self._relayed.add(arrival.request)
                return True
        elif (type(event) is Cancelled or type(event) is Finished) and event.request in self._relayed:
            self._relayed.discard(event.request)
            return True
        return False

    def _refused(self, event: Event, now: float) -> Reject | None:
        """Charge what happened to the request's tenant; the refusal of a request that is over a limit."""
        match event:
            case Arrived(request, demand, charged=charged, estimated=estimated):
                if charged:
                    self._tenants.declare(event.flow, request, demand.prompt_tokens, estimated=estimated)
                elif exceeded := self._tenants.charge(
                    event.flow, request, demand.prompt_tokens, now, estimated=estimated
                ):
                    standing = self._tenants.standing(event.flow, now)
                    return Reject(
                        request, Outcome.RATE_LIMIT_EXCEEDED, exceeded.retry_after, exceeded, standing, "limit"
                    )
            case Declared(arrival, _, generated):
                prompt, estimated = arrival.demand.prompt_tokens, arrival.estimated
                self._tenants.declare(arrival.flow, arrival.request, prompt, generated, estimated=estimated)
            case Progress(generated):
                self._tenants.generated(generated)
            case Cancelled(request) | Finished(request, Verdict.UNSERVED):
                self._tenants.refund(request, now)
            case Finished(request, verdict, completion_tokens, prompt_tokens):
                if verdict is Verdict.FAILED and prompt_tokens is None:
                    prompt_tokens = 0  # nothing that was estimated is charged
                self._tenants.settle(request, completion_tokens, now, prompt_tokens)
            case Warmth():
                self._tenants.restore(event.owed, now - event.age)
        return None

    def warmth(self) -> Warmth:
        """What the core knows of its demand, and what tenants owe, for the next owner of the decisions."""
        now = self._clock()
        return replace(self._controller.warmth(now), owed=self._tenants.owed(now))

    async def explained(self, arrival: Arrived) -> Explanation:
        """See `Decider.explained`."""
        self.handle(Tick())  # an arriving request would find the accounts up to date, too
        now, size = self._clock(), arrival.demand.prompt_tokens
        exceeded = self._tenants.exceeded(arrival.flow, size, now, estimated=arrival.estimated)
        return self._controller.explain(arrival, now).over(exceeded)

    async def turn(self, request: RequestId) -> Turn | None:
        """See `Decider.turn`."""
        return self._controller.turn(request, self._clock())

    def close(self) -> None:
        """Stop the timer."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()

    def _carry_out(self, command: Command) -> Event | None:
        """Carry out a command; return the event that follows from it, if any."""
        match command:
            case Dispatch():
                if self._tenants.limited:
                    command = replace(command, standing=self._tenants.standing_of(command.request, self._clock()))
                if not self._asker.decided(command):  # the client left in this turn of the loop: no engine sees it
                    return Finished(command.request, Verdict.UNSERVED, 0)
            case Reject():
                self._tenants.refund(command.request, self._clock())
                self._asker.decided(command)
            case WakeAt():
                self._set_timer(command.at)
        return None

    def _set_timer(self, at: float) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        delay = max(0.0, at - self._clock())
        self._wake_timer = asyncio.get_running_loop().call_later(delay, self._wake, at)

    def _wake(self, at: float) -> None:
        self._wake_timer = None
        if self._clock() < at:  # asyncio may be early by its clock's resolution, and the core asks only once
            self._set_timer(at)
        else:
            self.handle(Tick())
