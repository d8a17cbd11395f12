"""A front's link to the owner: asks, reports, and after a loss declares everything to the next owner.

A loss of Redis is for the candidates: see `election.py`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec
import structlog

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    NOWHERE,
    Arrived,
    Back,
    Behind,
    Cancelled,
    EndpointId,
    Event,
    Finished,
    Progress,
    RequestId,
    ResidencyPhase,
    Returned,
    Verdict,
)
from gateway.admission.explanation import Explanation
from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.pools.admission import Admission, Progressed
from gateway.pools.interface import Follower
from gateway.pools.launcher import EngineEnded, EngineNews, Launcher
from gateway.tier.carried import Carried, Declaration
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT, Allegiance
from gateway.tier.frames import (
    VERSION,
    Answer,
    Awaits,
    Came,
    Down,
    Ended,
    Evacuate,
    Expire,
    Fell,
    FromOwner,
    GivenBack,
    Gone,
    Hello,
    Keep,
    Kept,
    Lags,
    Launch,
    Launches,
    Left,
    More,
    Moved,
    Ping,
    Pong,
    Recalled,
    Refused,
    Reigns,
    Report,
    Reported,
    Seems,
    Sent,
    Starts,
    Surpassed,
    Up,
    Wanted,
    Watched,
    Welcome,
    from_owner,
)
from gateway.tier.line import Line
from gateway.tier.questions import Questions
from gateway.tier.remote_watch import RemoteWatch

RETRY = 0.02
"""Seconds between two tries to reach the owner."""
LOOK = 0.1
"""Seconds between two looks for requests that have waited for an owner for too long."""
PING = 1.0
"""Seconds between two questions whether the owner lives."""
SILENT = 3.0
"""Seconds of silence after which an owner is given up: it may be stopped, with its connections open."""
PARTED_WITHIN = 1.0
"""Seconds for the owner to take a front's last figures."""
_ORDERS = frozenset({Sent, Refused, Evacuate, Expire, Launch, Seems})
"""What ends a request, or sends it somewhere, or an engine. In a tier it is obeyed for a time only; see `fence.py`."""
_NEWS = frozenset({Up, Down, Gone})
"""What an endpoint is like. An owner that is new here says it before a first heartbeat can have come back."""
_GIVE_KEY = "give its key in `api_key_file` of the endpoint, as at the gateway that decides"
_log = structlog.get_logger("kvgate.tier")

Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]
"""Connects to the owner with the protocol that the factory makes; raises OSError."""


class Told(NamedTuple):
    """What the owner said last of an endpoint."""

    up: Up
    down: Down | None
    """None while it takes traffic."""


class Link:
    """The owner, as one front reaches it. Call `run` to connect, and to connect again after each loss.

    While there is no owner, streams go on and arrivals wait, for at most `patience` seconds. Where there is one that
    cannot be reached, arrivals are refused at once: another gateway may reach it.

    Args:
        front: this front's number; the upper bits of its requests' ids.
        connect: connects to the owner.
        follower: is told of the endpoints.
        clock: monotonic seconds.
        progressed: called with each batch of progress.
        patience: the settings' `no_endpoint_ttl`, now.
        figures: what this front counted, packed.
        unreachable: whether an owner lives that cannot be reached from here.
        keyed: whether this front has a key of its own for an endpoint.
        allegiance: in a tier of several gateways, which owner it follows.
        fronts: how many this gateway has.
        parent: in a tier, launches engines for the owner.

    Attributes:
        connected: set while an owner knows all that this front carries.
        questions: to the owner.
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
        figures: Callable[[], Awaitable[bytes]],
        unreachable: Callable[[], bool] = lambda: False,
        keyed: Callable[[EndpointId], bool] = lambda _endpoint: True,
        allegiance: Allegiance | None = None,
        fronts: int = 1,
        parent: Launcher,
    ) -> None:
        self.connected = asyncio.Event()
        self.questions = Questions(self.send)
        self._front = front
        self._connect = connect
        self._follower = follower
        self._clock = clock
        self._progressed = progressed
        self._patience = patience
        self._unreachable = unreachable
        self._keyed = keyed
        self._figures = figures
        self._figures_in_turn = asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()
        self._allegiance = allegiance
        self._fronts = fronts
        self._parent = parent
        self._parent.on_news, self._parent.on_ended = self._tell_of_engine, self._tell_end
        self._launches: dict[str, EngineNews] = {}
        self._fell: dict[str, EngineEnded] = {}
        """What the parent said last of each engine, to tell it to the next owner."""
        self._reigns: Epoch | None = None
        """That of the owner on the present connection."""
        self._deaf = False
        """Whether that owner is left: nothing more that it says counts."""
        self._line: Line[FromOwner] | None = None
        self._lost_at = self._heard_at = clock()
        self._carried: dict[RequestId, Carried] = {}
        self._admissions: dict[str, Admission] = {}
        self._told: dict[EndpointId, Told] = {}
        """What the owner said last of each endpoint that takes traffic, or did before it went down."""
        self._keyless: set[EndpointId] = set()
        """Those of them that need a key which is missing here: the client's own must not go there in its place."""
        self._kept: dict[str, tuple[float, bytes]] = {}
        """By model: when the owner last had this front keep something, and what."""
        self._watches: dict[EndpointId, RemoteWatch] = {}
        self._outlived: dict[EndpointId, RemoteWatch] = {}
        """Those of endpoints that are gone and may come back, while requests are on them."""
        self._awaited: tuple[float, Mapping[str, float]] = (clock(), {})
        """When it was said for which engines requests wait here, and what."""
        self._word_at = -inf
        """When an owner that knows all this front carries said something last."""
        self._declaration = self._declared({}, [])
        self._handlers: dict[type, Callable[[Any], None]] = {
            More: self._declare_more,
            Welcome: self._welcomed,
            Sent: self._sent,
            Refused: self._refused,
            Wanted: self._wanted,
            Up: self._up,
            Down: self._down,
            Gone: self._gone,
            Starts: self._starts,
            Evacuate: self._evacuate,
            Expire: self._end_silent,
            Answer: self.questions.answered,
            Pong: self._ponged,
            Reigns: self._adopt,
            Keep: self._keep,
            Launch: self._launch,
            Seems: lambda message: self._parent.seems(message.endpoint, message.state, message.reason),
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
        self._reigns, self._deaf = None, False
        if self._allegiance is not None:
            self._allegiance.connected()
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
        if self._allegiance is not None:
            await self._keep_beating(line, self._allegiance)
        while True:
            await asyncio.sleep(PING)
            if not self.connected.is_set():
                continue
            if self._clock() - self._heard_at > SILENT:
                _log.error("the owner says nothing any more: it is given up", front=self._front)
                line.cut()
                return
            line.send(Ping())

    async def _keep_beating(self, line: Line[FromOwner], allegiance: Allegiance) -> None:
        """Send heartbeats; an owner that has not returned one for long is given up."""
        while self._clock() - self._heard_at <= SILENT:
            if allegiance.term is not None:
                line.send(Ping(allegiance.term.beat(self._clock())))
            await asyncio.sleep(BEAT)
        _log.error("the owner says nothing any more: it is given up", front=self._front)
        line.cut()

    @property
    def in_touch(self) -> bool:
        """Whether the owner knows all that this front carries and, in a tier, has just been heard of."""
        return self.connected.is_set() and self._obeys()

    @property
    def _charged_until(self) -> float:
        """Until when arrivals came to an owner that lived: it is asked so often whether it does."""
        lived = self._word_at + (PING if self._allegiance is None else BEAT)
        return lived if self.connected.is_set() else min(lived, self._lost_at)

    def _declared(
        self, carried: Mapping[RequestId, Carried], watched: Sequence[Mapping[RequestId, Watched]]
    ) -> Declaration:
        return Declaration(carried, watched, self._latest, self._clock, self._charged_until)

    def turn(self) -> None:
        """Leave the owner: there is another one to follow."""
        if self._line is not None:
            self._line.cut()

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
            watch = self._outlived.pop(endpoint, None) or RemoteWatch(endpoint, self.send)
            self._watches[endpoint] = watch
            if endpoint in self._told:  # it is configured here only now
                asyncio.get_running_loop().call_soon(self._introduce, endpoint)
        return watch

    def forget(self, endpoint: EndpointId) -> bool:
        """Forget an endpoint that is not configured here any more; False if the owner knows it, which says when."""
        return endpoint not in self._told and self._part_from(endpoint)

    def _introduce(self, endpoint: EndpointId) -> None:
        """Tell the follower what the owner said of an endpoint, once it is configured here too."""
        watch = self._watches.get(endpoint)
        if watch is None or endpoint not in self._told:
            return
        up, down = self._told[endpoint]
        self._note_key(up)
        if down is None and endpoint not in self._keyless:
            self._follower.up(endpoint, up.model, up.identity)
        else:
            self._follower.down(endpoint)
        if down is None:
            watch.on_trial, watch.keeps = up.on_trial, True
            self.admission(up.model).renew()
        else:
            watch.keeps = down.keeps

    def _note_key(self, up: Up) -> None:
        if not up.keyed or self._keyed(up.endpoint):
            self._keyless.discard(up.endpoint)
        elif up.endpoint not in self._keyless:
            self._keyless.add(up.endpoint)
            what = "an endpoint needs a key that this gateway does not have: it sends nothing there"
            _log.error(what, endpoint=up.endpoint, help=_GIVE_KEY)

    def keys_changed(self) -> None:
        """Go by the keys that this front has now."""
        for endpoint in self._told:
            self._introduce(endpoint)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, if there is an owner now."""
        if self._line is not None:
            self._line.send(message)

    def tell(self, model: str, event: Event) -> None:
        """Tell the owner what happened to a request, and remember it for the next owner."""
        carried = self._carried
        match event:
            case Arrived():
                self._tell_arrival(model, event)
            case Progress(generated):
                for request, tokens in generated:
                    if (known := carried.get(request)) is not None:
                        known.generated = tokens
                self.send(Moved(model, generated))
            case Behind(request):
                carried[request].behind = True
                self.send(Lags(request))
            case Finished(request, verdict, completion_tokens, prompt_tokens):
                carried.pop(request, None)
                self.send(Ended(request, verdict, completion_tokens, prompt_tokens))
            case Cancelled(request):
                carried.pop(request, None)
                self.send(Left(request))
            case Returned(request, why):
                carried[request].come_back(why, self._clock())
                if request not in self._declaration:
                    self.send(GivenBack(model, carried[request].as_of(self._clock(), self._charged_until), why))

    def _tell_arrival(self, model: str, arrival: Arrived) -> None:
        self._carried[arrival.request] = Carried(model, arrival, self._clock())
        self.send(Came(model, arrival))
        if not self.connected.is_set() and self._unreachable():
            self._give_up(arrival.request)

    def tell_awaited(self, ages: Mapping[str, float]) -> None:
        """Say for engines of which models requests wait here."""
        self._awaited = (self._clock(), ages)
        self.send(Awaits(ages))

    def _tell_of_engine(self, news: EngineNews) -> None:
        self._launches[news.address] = news
        if self.connected.is_set():
            self.send(Launches(news))

    def _tell_end(self, ended: EngineEnded) -> None:
        self._fell[ended.address] = ended
        if self.connected.is_set():
            self.send(Fell(ended))

    def leave(self) -> None:
        """Refuse all that waits here: this front shuts down."""
        for request, known in list(self._carried.items()):
            if known.endpoint is None:
                self.send(Left(request))
                self._reject(Reject(request, Outcome.DRAINING, 1.0))

    async def leave_figures(self) -> None:
        """Leave the owner this front's last figures."""
        line = self._line
        if line is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PARTED_WITHIN):
                    await self._tell_figures(None)
                    await line.taken()

    def close(self) -> None:
        """Stop the timers."""
        for admission in self._admissions.values():
            admission.close()

    def _greet(self, line: Line[FromOwner]) -> None:
        """Say who this is. All else is declared as the owner asks for it."""
        watches = (*self._watches.values(), *self._outlived.values())
        self._declaration = self._declared(self._carried, [watch.watched for watch in watches])
        recalled = [
            Recalled(up.endpoint, up.model, up.identity, up.capacity, down is not None and down.drained)
            for up, down in self._told.values()
        ]
        now = self._clock()
        kept = [Kept(model, now - since, warmth) for model, (since, warmth) in self._kept.items()]
        followed = None if self._allegiance is None else self._allegiance.epoch
        epoch = None if followed is None else (followed.number, followed.owner)
        line.send(Hello(VERSION, self._front, recalled, kept, epoch, self._fronts))
        since, ages = self._awaited
        if ages:
            line.send(Awaits({model: age + now - since for model, age in ages.items()}))
        for question in self.questions:
            line.send(question)

    def _latest(self, request: RequestId) -> int:
        """A request's last count of tokens."""
        known = self._carried[request]
        return max(known.generated, self._admissions[known.model].counts.latest(request))

    def _declare_on(self, endpoint: EndpointId) -> None:
        """Declare what was there before this owner knew the endpoint."""
        watch = self._watches.get(endpoint)
        declared = ((request, known) for request, known in self._carried.items() if request not in self._declaration)
        on_it = {request: known for request, known in declared if known.endpoint == endpoint}
        if on_it or (watch is not None and watch.watched):
            watched = [] if watch is None else [watch.watched]
            there = self._declared(on_it, watched)
            while not (part := there.part()).last:
                self.send(part)
            self.send(part)

    def _refuse_overdue(self) -> None:
        """Refuse what has waited for an owner for too long."""
        now, patience = self._clock(), self._patience()
        for request, known in list(self._carried.items()):
            if known.endpoint is None and now - max(known.came_at, self._lost_at) > patience:
                self._give_up(request)

    def _give_up(self, request: RequestId) -> None:
        self.send(Left(request))  # an owner that has yet to read our `Hello` would keep it
        self._reject(Reject(request, Outcome.NO_ENDPOINT, 1.0))

    def _reject(self, reject: Reject) -> None:
        known = self._carried.pop(reject.request, None)
        if known is not None:
            self._admissions[known.model].decided(reject)

    def _take(self, _line: Line[FromOwner], messages: list[FromOwner]) -> None:
        self._heard_at = self._clock()
        if self.connected.is_set():
            self._word_at = self._heard_at
        for message in messages:
            if self._deaf:
                return
            kind = type(message)
            if (kind in _ORDERS or (kind in _NEWS and self.connected.is_set())) and not self._obeys():
                _log.warning("an owner's word came too late to be obeyed: it is asked anew", front=self._front)
                self._deaf = True
                self.turn()
                return
            self._handlers[kind](message)

    def _obeys(self) -> bool:
        """Whether the owner on this connection is surely still the one to follow."""
        if self._allegiance is None:
            return True
        term, epoch = self._allegiance.term, self._reigns
        return term is not None and epoch is not None and term.obeys(epoch, self._clock())

    def _declare_more(self, _message: More) -> None:
        self.send(self._declaration.part())

    def _welcomed(self, _message: Welcome) -> None:
        self.connected.set()
        self._word_at = self._clock()
        # Not before: what it orders then is obeyed, as it has returned a heartbeat.
        for news in self._launches.values():
            self.send(Launches(news))
        for ended in self._fell.values():
            self.send(Fell(ended))

    def _sent(self, message: Sent) -> None:
        self._dispatched(message.dispatch)

    def _ponged(self, message: Pong) -> None:
        if self._allegiance is not None and self._allegiance.term is not None:
            self._allegiance.term.returned(message.number)

    def _adopt(self, message: Reigns) -> None:
        allegiance, self._reigns = self._allegiance, Epoch(*message.epoch)
        if allegiance is None:
            return
        followed = allegiance.epoch
        if allegiance.adopt(self._reigns):
            if allegiance.epoch != followed and allegiance.term is not None:
                # Only a heartbeat from now on counts, and its first requests come before the next one is due.
                self.send(Ping(allegiance.term.beat(self._clock())))
        elif allegiance.epoch is not None:
            self._deaf = True
            self.send(Surpassed((allegiance.epoch.number, allegiance.epoch.owner)))
            if self._line is not None:  # that is to arrive
                asyncio.get_running_loop().call_later(BEAT, self._line.cut)

    def _refused(self, message: Refused) -> None:
        self._reject(message.reject)

    def _wanted(self, message: Wanted) -> None:
        self.admission(message.model).want(message.next_reports, everything=message.everything)

    def _up(self, message: Up) -> None:
        new = message.endpoint not in self._told
        self._told[message.endpoint] = Told(message, None)
        if new:
            self._declare_on(message.endpoint)
        self._introduce(message.endpoint)

    def _down(self, message: Down) -> None:
        told = self._told.get(message.endpoint)
        if told is not None:
            self._told[message.endpoint] = Told(told.up, message)
            self._introduce(message.endpoint)

    def _gone(self, message: Gone) -> None:
        self._told.pop(message.endpoint, None)
        self._keyless.discard(message.endpoint)
        if self._part_from(message.endpoint):
            self._follower.gone(message.endpoint)

    def _part_from(self, endpoint: EndpointId) -> bool:
        """Drop the watch over an endpoint, if there is one."""
        self._outlived = {endpoint: watch for endpoint, watch in self._outlived.items() if watch.watched}
        watch = self._watches.pop(endpoint, None)
        if watch is not None and watch.watched:
            self._outlived[endpoint] = watch
        return watch is not None

    def _starts(self, message: Starts) -> None:
        if message.endpoint in self._watches:
            self._follower.starts(message.endpoint, message.ready_in, failed=message.failed)

    def _evacuate(self, message: Evacuate) -> None:
        self._follower.evacuate(message.endpoint)

    def _end_silent(self, message: Expire) -> None:
        self._follower.expire(message.requests)

    def _keep(self, message: Keep) -> None:
        self._kept[message.model] = self._clock(), message.warmth

    def _launch(self, message: Launch) -> None:
        order = self._parent.run if message.runs else self._parent.end
        order(message.endpoint)
        if (known := self._launches.get(message.endpoint)) is not None:
            # What the next owner hears, should the parent not have answered until then.
            phase = ResidencyPhase.STARTING if message.runs else ResidencyPhase.LEAVING
            self._launches[message.endpoint] = msgspec.structs.replace(known, phase=phase)

    def _report(self, message: Report) -> None:
        telling = asyncio.create_task(self._tell_figures(message.number))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell_figures(self, number: int | None) -> None:
        async with self._figures_in_turn:  # earlier ones must not come later: the owner keeps the last
            self.send(Reported(number, await self._figures()))

    def _dispatched(self, dispatch: Dispatch) -> None:
        request = dispatch.request
        known = self._carried.get(request)
        if known is None:  # its client has left meanwhile: no engine sees it
            self.send(Ended(request, Verdict.UNSERVED, 0))
        elif not self._may_send(dispatch.endpoint):
            self.tell(known.model, Returned(request, Back.UNREACHED))
        else:
            known.endpoint = dispatch.endpoint
            if not self._admissions[known.model].decided(dispatch):
                self.tell(known.model, Finished(request, Verdict.UNSERVED, 0))

    def _may_send(self, endpoint: EndpointId) -> bool:
        """Whether requests can go there: it is configured here, and its key is not missing."""
        return endpoint == NOWHERE or (endpoint in self._watches and endpoint not in self._keyless)


class _Remote:
    """The core of one model, behind the link; see `Decider`."""

    def __init__(self, link: Link, model: str) -> None:
        self._link = link
        self._model = model

    def handle(self, event: Event) -> None:
        self._link.tell(self._model, event)

    async def explained(self, arrival: Arrived) -> Explanation:
        return await self._link.questions.explained(self._model, arrival)

    async def turn(self, request: RequestId) -> Turn | None:
        return await self._link.questions.turn(request)
