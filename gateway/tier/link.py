"""A front's link to the owner: asks, reports, and after a loss declares everything to the next owner."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    Arrived,
    Back,
    Cancelled,
    Declared,
    EndpointId,
    Event,
    Finished,
    Progress,
    RequestId,
    Returned,
    Verdict,
)
from gateway.admission.explanation import Explanation
from gateway.admission.outcomes import Outcome
from gateway.ops.state import Decided, UnknownEndpointError
from gateway.pools.admission import Admission, Progressed, RejectedError
from gateway.pools.interface import Follower
from gateway.tier.frames import (
    VERSION,
    Answer,
    Ask,
    Came,
    Down,
    Ended,
    Evacuate,
    Expire,
    Explain,
    FromOwner,
    GivenBack,
    Gone,
    Hello,
    Known,
    Left,
    Moved,
    Ping,
    Pong,
    Question,
    Refused,
    Report,
    Reported,
    Scrape,
    Sent,
    Up,
    Wanted,
    Welcome,
    from_owner,
)
from gateway.tier.line import Line
from gateway.tier.remote_watch import RemoteWatch

RETRY = 0.02
"""Seconds between two tries to reach the owner."""
LOOK = 0.1
"""Seconds between two looks for requests that have waited for an owner for too long."""
PING = 1.0
"""Seconds between two questions whether the owner lives."""
SILENT = 3.0
"""Seconds of silence after which an owner is given up: it may be stopped, with its connections open."""
ANSWERED_WITHIN = 5.0
"""Seconds for the answer to a question about the state, or about figures."""
PARTED_WITHIN = 1.0
"""Seconds for the owner to take a front's last figures."""
_log = structlog.get_logger("kvgate.tier")

Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects to the owner with the protocol that the factory makes; raises OSError."""


class _Asked:
    """A request that the owner was asked about."""

    __slots__ = ("arrival", "avoid", "came_at", "endpoint", "failures", "generated", "model")

    def __init__(self, model: str, arrival: Arrived, now: float) -> None:
        self.model = model
        self.arrival = arrival
        self.came_at = now
        self.endpoint: EndpointId | None = None
        """The one it is on; None while it waits."""
        self.generated = 0
        self.failures = 0
        self.avoid: EndpointId | None = None

    def waiting(self, now: float) -> Arrived:
        """Its arrival, as the next owner is to see it."""
        return replace(self.arrival, waited=now - self.came_at, failures=self.failures, avoid=self.avoid)


class Link:
    """The owner, as one front reaches it. Call `run` to connect, and to connect again after each loss.

    While there is no owner, streams go on and arrivals wait, for at most `patience` seconds.

    Args:
        front: this front's number; the upper bits of its requests' ids.
        connect: connects to the owner.
        follower: is told of the endpoints.
        clock: monotonic seconds.
        progressed: called with each batch of progress.
        patience: the settings' `no_endpoint_ttl`, now.
        figures: what this front counted, packed.
    """

    def __init__(
        self,
        front: int,
        connect: Connect,
        follower: Follower,
        *,
        clock: Callable[[], float],
        progressed: Progressed,
        patience: Callable[[], float],
        figures: Callable[[], bytes],
    ) -> None:
        self.connected = asyncio.Event()
        self._front = front
        self._connect = connect
        self._follower = follower
        self._clock = clock
        self._progressed = progressed
        self._patience = patience
        self._figures = figures
        self._line: Line[FromOwner] | None = None
        self._lost_at = self._heard_at = clock()
        self._asked: dict[RequestId, _Asked] = {}
        self._admissions: dict[str, Admission] = {}
        self._known: dict[EndpointId, tuple[Up, Down | None]] = {}
        """What the owner said last of each endpoint that takes traffic, or did before it went down."""
        self._watches: dict[EndpointId, RemoteWatch] = {}
        self._questions: dict[int, tuple[Question, asyncio.Future[bytes | None]]] = {}
        self._number = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Welcome: self._welcomed,
            Sent: self._sent,
            Refused: self._refused,
            Wanted: self._wanted,
            Up: self._up,
            Down: self._down,
            Gone: self._gone,
            Evacuate: self._evacuate,
            Expire: self._end_silent,
            Answer: self._answered,
            Pong: lambda _pong: None,
            Report: self._report,
        }

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        overdue = asyncio.create_task(self._watch_for_overdue())
        try:
            while True:
                await self._serve()
                await asyncio.sleep(RETRY)
        finally:
            overdue.cancel()

    async def _serve(self) -> None:
        """Connect, declare everything, and return when the connection has ended."""
        ended = asyncio.Event()
        line = Line(from_owner, self._take, lambda _line: ended.set())
        try:
            await self._connect(lambda: line)
        except OSError:
            return
        self._line = line
        self._heard_at = self._clock()
        self._greet(line)
        beating = asyncio.create_task(self._beat(line))
        try:
            await ended.wait()
        finally:
            beating.cancel()
            line.cut()
            self._line = None
            if self.connected.is_set():
                self.connected.clear()
                self._lost_at = self._clock()
                _log.warning("lost the owner: streams go on, arrivals wait for the next", front=self._front)

    async def _beat(self, line: Line[FromOwner]) -> None:
        """Ask whether the owner lives, and give up one that was welcome and says nothing any more."""
        while True:
            await asyncio.sleep(PING)
            if not self.connected.is_set():
                continue
            if self._clock() - self._heard_at > SILENT:
                _log.error("the owner says nothing any more: it is given up", front=self._front)
                line.cut()
                return
            line.send(Ping())

    async def _watch_for_overdue(self) -> None:
        """Refuse what has waited for an owner for too long."""
        while True:
            await asyncio.sleep(LOOK)
            if not self.connected.is_set():
                self._refuse_overdue()

    def admission(self, model: str) -> Admission:
        """Admission to the endpoints of a model."""
        admission = self._admissions.get(model)
        if admission is None:
            admission = self._admissions[model] = Admission(self._progressed)
            admission.decider = _Remote(self, model)
        return admission

    def watch(self, endpoint: EndpointId) -> "RemoteWatch":
        """The watch over a configured endpoint."""
        watch = self._watches.get(endpoint)
        if watch is None:
            watch = self._watches[endpoint] = RemoteWatch(endpoint, self.send)
            if endpoint in self._known:  # it is configured here only now
                asyncio.get_running_loop().call_soon(self._introduce, endpoint)
        return watch

    def _introduce(self, endpoint: EndpointId) -> None:
        """Tell the follower what the owner said of an endpoint, once it is configured here too."""
        watch = self._watches.get(endpoint)
        if watch is None or endpoint not in self._known:
            return
        up, down = self._known[endpoint]
        if down is None:
            watch.on_trial, watch.keeps = up.on_trial, True
            self._follower.up(endpoint, up.model, up.identity)
            self.admission(up.model).renew()
        else:
            watch.keeps = down.keeps
            self._follower.down(endpoint)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, if there is an owner now."""
        if self._line is not None:
            self._line.send(message)

    def tell(self, model: str, event: Event) -> None:
        """Tell the owner what happened to a request, and remember it for the next owner."""
        asked = self._asked
        match event:
            case Arrived():
                asked[event.request] = _Asked(model, event, self._clock())
                self.send(Came(model, event))
            case Progress(generated):
                for request, tokens in generated:
                    if (known := asked.get(request)) is not None:
                        known.generated = tokens
                self.send(Moved(generated))
            case Finished(request, verdict, completion_tokens):
                asked.pop(request, None)
                self.send(Ended(request, verdict, completion_tokens))
            case Cancelled(request):
                asked.pop(request, None)
                self.send(Left(request))
            case Returned(request, why):
                known = asked[request]
                if why is Back.FAILED:
                    known.failures += 1
                    known.avoid = known.endpoint
                known.endpoint, known.generated = None, 0
                self.send(GivenBack(model, known.waiting(self._clock()), why))

    def leave(self) -> None:
        """Refuse all that waits here: this front shuts down."""
        for request, known in list(self._asked.items()):
            if known.endpoint is None:
                self.send(Left(request))
                self._reject(Reject(request, Outcome.DRAINING, 1.0))

    async def explained(self, model: str, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now.

        Raises:
            RejectedError: the owner does not know the model.
        """
        self._number += 1
        body = await self._answer(Explain(self._number, model, arrival))
        if body is None:
            raise RejectedError(Reject(arrival.request, Outcome.NO_ENDPOINT, 1.0))
        return msgspec.json.decode(body, type=Explanation)

    async def decided(self) -> Decided:
        """See `gateway.ops.state.Deciding`."""
        return await self._ask()

    async def drain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._ask(drain=endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._ask(undrain=endpoint_id)

    async def exposition(self) -> bytes:
        """The metrics of all processes, as text."""
        self._number += 1
        return await self._answer(Scrape(self._number)) or b""

    async def part(self) -> None:
        """Leave the owner this front's last figures."""
        if self._line is not None:
            self.send(Reported(None, self._figures()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTED_WITHIN):
                    await self._line.taken()

    def close(self) -> None:
        """Stop the timers."""
        for admission in self._admissions.values():
            admission.close()

    async def _ask(self, drain: str | None = None, undrain: str | None = None) -> Decided:
        self._number += 1
        body = await self._answer(Ask(self._number, drain, undrain))
        if body is None:
            raise UnknownEndpointError(drain or undrain)
        return Decided.model_validate_json(body)

    async def _answer(self, question: Question) -> bytes | None:
        """The answer to a question. It is asked again of the next owner."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._questions[question.number] = question, answer
        self.send(question)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await answer
        finally:
            del self._questions[question.number]

    def _greet(self, line: Line[FromOwner]) -> None:
        """Say who this is, and declare all that is in flight and all that waits."""
        now = self._clock()
        declared, waiting = [], []
        for request, known in self._asked.items():
            if known.endpoint is None:
                waiting.append((known.model, known.waiting(now)))
            else:
                generated = max(known.generated, self._admissions[known.model].counts.latest(request))
                arrival = replace(known.arrival, failures=known.failures, avoid=known.avoid)
                declared.append((known.model, Declared(arrival, known.endpoint, generated)))
        roster = [
            Known(up.endpoint, up.model, up.identity, up.capacity, down is not None and down.drained)
            for up, down in self._known.values()
        ]
        watched = [watched for watch in self._watches.values() for watched in watch.watched]
        line.send(Hello(VERSION, self._front, roster, declared, watched, waiting))
        for question, _ in self._questions.values():
            line.send(question)

    def _refuse_overdue(self) -> None:
        """Refuse what has waited for an owner for too long."""
        now, patience = self._clock(), self._patience()
        for request, known in list(self._asked.items()):
            if known.endpoint is None and now - max(known.came_at, self._lost_at) > patience:
                self.send(Left(request))  # an owner that has yet to read our `Hello` would keep it
                self._reject(Reject(request, Outcome.NO_ENDPOINT, 1.0))

    def _reject(self, reject: Reject) -> None:
        known = self._asked.pop(reject.request, None)
        if known is not None:
            self._admissions[known.model].decided(reject)

    def _take(self, _line: Line[FromOwner], messages: list[FromOwner]) -> None:
        self._heard_at = self._clock()
        for message in messages:
            self._handlers[type(message)](message)

    def _welcomed(self, _message: Welcome) -> None:
        self.connected.set()

    def _sent(self, message: Sent) -> None:
        self._dispatched(message.dispatch)

    def _refused(self, message: Refused) -> None:
        self._reject(message.reject)

    def _wanted(self, message: Wanted) -> None:
        self.admission(message.model).want(message.news, everything=message.everything)

    def _up(self, message: Up) -> None:
        self._known[message.endpoint] = message, None
        self._introduce(message.endpoint)

    def _down(self, message: Down) -> None:
        known = self._known.get(message.endpoint)
        if known is not None:
            self._known[message.endpoint] = known[0], message
            self._introduce(message.endpoint)

    def _gone(self, message: Gone) -> None:
        self._known.pop(message.endpoint, None)
        if self._watches.pop(message.endpoint, None) is not None:
            self._follower.gone(message.endpoint)

    def _evacuate(self, message: Evacuate) -> None:
        self._follower.evacuate(message.endpoint)

    def _end_silent(self, message: Expire) -> None:
        self._follower.expire(message.requests)

    def _answered(self, message: Answer) -> None:
        _question, answer = self._questions.get(message.number, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message.body)

    def _report(self, message: Report) -> None:
        self.send(Reported(message.number, self._figures()))

    def _dispatched(self, dispatch: Dispatch) -> None:
        request = dispatch.request
        known = self._asked.get(request)
        if known is None:  # its client has left meanwhile: no engine sees it
            self.send(Ended(request, Verdict.DONE, 0))
        elif dispatch.endpoint not in self._watches:  # not configured here yet
            self.tell(known.model, Returned(request, Back.UNREACHED))
        else:
            known.endpoint = dispatch.endpoint
            if not self._admissions[known.model].decided(dispatch):
                self.tell(known.model, Finished(request, Verdict.DONE, 0))


class _Remote:
    """The core of one model, behind the link; see `Decider`."""

    def __init__(self, link: Link, model: str) -> None:
        self._link = link
        self._model = model

    def handle(self, event: Event) -> None:
        self._link.tell(self._model, event)

    async def explained(self, arrival: Arrived) -> Explanation:
        return await self._link.explained(self._model, arrival)
