"""The owner's side: every connected front has a seat here."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

import msgspec
import structlog

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    NOWHERE,
    Arrived,
    Behind,
    Cancelled,
    EndpointId,
    Event,
    Finished,
    Progress,
    RequestId,
    Returned,
    Verdict,
    Warmth,
    front_of,
)
from gateway.admission.outcomes import Outcome
from gateway.endpoints.identity import Identity
from gateway.endpoints.monitor import EndpointMonitor
from gateway.pools.cores import Cores, Known
from gateway.pools.driver import Driver
from gateway.runtime.background import kept_up
from gateway.tier.answers import Answers, Telling
from gateway.tier.epoch import Epoch
from gateway.tier.fence import BEAT, GIVEN_UP_AFTER
from gateway.tier.frames import (
    OLDEST,
    VERSION,
    AskTurn,
    Awaits,
    Came,
    Declares,
    Down,
    Ended,
    Evacuate,
    Expire,
    Explain,
    Failed,
    Fell,
    FromFront,
    GivenBack,
    Gone,
    Hello,
    Keep,
    Kept,
    Lags,
    Launches,
    Left,
    Look,
    More,
    Moved,
    Ping,
    Pong,
    Question,
    Refused,
    Reigns,
    Reported,
    Saw,
    Scrape,
    Sent,
    ShowState,
    Starts,
    Stepped,
    Surpassed,
    Unwatched,
    Up,
    Wanted,
    Watched,
    Welcome,
    from_front,
    packed_warmth,
    warmth_of,
)
from gateway.tier.launchers import Launchers
from gateway.tier.line import Line
from gateway.tier.opening import Opening
from gateway.tier.seat import Seat

DECLARED_WITHIN = 1.0
"""Seconds a new owner waits for the fronts to declare what they have, before it dispatches anything."""
WARM = 1.0
"""Seconds between two times at which fronts are told what to keep for the next owner."""
MOST_KEPT = 256 * 2**10
"""Bytes of what is kept of one model. More is not told."""
_log = structlog.get_logger("kvgate.tier")


class Reign(Protocol):
    """The election, as its owner's hall sees it."""

    @property
    def epoch(self) -> Epoch:
        """Under which this hall's owner decides."""
        ...

    def heard(self, epoch: Epoch) -> None:
        """A front has followed this epoch."""
        ...

    def connected(self, machines: Collection[str], whole: Collection[str]) -> None:
        """The other gateways of which a front has declared all it has; those of which each front has."""
        ...

    @property
    def complete(self) -> bool:
        """Whether these are all that there are."""
        ...


class Hall:
    """Carries what fronts say to cores and monitors, and what those say to the fronts.

    It is the `Follower` of the cores, and makes the `Asker` of each.

    Args:
        fronts: number that a new owner waits for; None: those of this gateway and of all that the election knows.
        reign: in a tier of several gateways, what the election knows of its fronts, and they of it.

    Attributes:
        launchers: in a tier, the parents that launch its engines.
    """

    def __init__(self, fronts: int | None, reign: "Reign | None" = None) -> None:
        self.launchers = Launchers(self.say)
        self._waits_for = fronts
        self._reign = reign
        self._seats: dict[int, Seat] = {}
        self._silent: set[Seat] = set()
        """Connections over which no front has declared all it has."""
        self._opening = Opening(self._warm_up)
        self._answers = Answers(self._seats, None if reign is None else reign.epoch)
        self._withheld: list[tuple[Seat, msgspec.Struct]] | None = None
        """What is to be said once this owner may decide again; None while it may."""
        self._kept: dict[str, Kept] = {}
        """By model: the latest that fronts kept from an earlier owner."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type, Callable[[Seat, Any], None]] = {
            Hello: lambda seat, _message: seat.line.cut(),
            Declares: self._declares,
            Came: self._came,
            Moved: self._moved,
            Ended: self._ended,
            Left: self._left,
            GivenBack: self._given_back,
            Lags: self._lags,
            Explain: self._questioned,
            ShowState: self._questioned,
            Scrape: self._questioned,
            Look: self._questioned,
            Saw: lambda _seat, message: self._answers.saw(message.digest),
            AskTurn: self._questioned,
            Reported: self._reported,
            Ping: self._pinged,
            Awaits: self._awaits,
            Launches: lambda seat, message: self.launchers.said(seat, message.news),
            Fell: lambda _seat, message: self.launchers.on_ended(message.ended),
            Surpassed: lambda _seat, message: self._heard(message.epoch),
            **dict.fromkeys((Watched, Stepped, Unwatched, Failed), self._watch),
        }
        self._cores: Cores
        self._monitors: Mapping[EndpointId, EndpointMonitor]
        self._state: Telling

    def begin(self, cores: Cores, monitors: Mapping[EndpointId, EndpointMonitor], state: Telling) -> None:
        """Serve these cores and monitors: dispatch when all awaited fronts have declared, or time is over."""
        self._cores, self._monitors, self._state = cores, monitors, state
        self._answers.begin(cores, state, self._opening)
        asyncio.get_running_loop().call_later(DECLARED_WITHIN, self._opening.open)
        self._spawn(kept_up("what the next owner is to know", self._have_kept))
        if self._reign is not None:
            self._spawn(kept_up("fronts that say nothing", self._watch_fronts))

    @property
    def fronts(self) -> int:
        """How many are connected."""
        return len(self._seats)

    @property
    def own_fronts(self) -> int:
        """How many of this gateway are connected."""
        return sum(seat.machine is None for seat in self._seats.values())

    def withhold(self, *, withholds: bool) -> None:
        """From now on say nothing that fronts act on, or say it, with all that was withheld."""
        if withholds:
            self._withheld = self._withheld or []
        elif self._withheld is not None:
            withheld, self._withheld = self._withheld, None
            for seat, message in withheld:
                seat.line.send(message)

    def say(self, seat: Seat, message: msgspec.Struct) -> None:
        """Say what a front acts on, when this owner may decide."""
        if self._withheld is None:
            seat.line.send(message)
        else:
            self._withheld.append((seat, message))

    def line(self, machine: str | None = None) -> Line[FromFront]:
        """The protocol of a new connection of a front, of this gateway or of another."""
        seat = Seat(machine, asyncio.get_running_loop().time())
        seat.line = Line(from_front, lambda _line, messages: self._take(seat, messages), lambda _line: self._lost(seat))
        self._silent.add(seat)
        return seat.line

    def close(self) -> None:
        """Cut every connection: the fronts turn to the next owner."""
        for seat in {*self._seats.values(), *self._silent}:
            seat.line.cut()
        for task in self._tasks:
            task.cancel()
        self._reign = None  # seats that are left later say nothing of the fronts that the next owner has

    def asker(self, model: str) -> "_Fronts":
        """Who asks the core of a model."""
        return _Fronts(self, model)

    @property
    def seats(self) -> Collection[Seat]:
        """Those of the connected fronts."""
        return self._seats.values()

    def seat_of(self, request: RequestId) -> Seat | None:
        """The seat of the front whose request it is."""
        return self._seats.get(front_of(request))

    def carries(self, endpoint: EndpointId) -> bool:
        """Whether fronts have a request on an endpoint, which need not be a configured one."""
        return any(endpoint in seat.watched.values() for seat in self._seats.values())

    # The `Follower` of the cores.

    def up(self, endpoint: EndpointId, model: str, identity: Identity) -> None:
        """Tell every front that an endpoint takes traffic."""
        del model, identity
        self._broadcast(self._up(endpoint))

    def down(self, endpoint: EndpointId) -> None:
        """Tell every front that an endpoint takes no new requests."""
        self._broadcast(_down(endpoint, self._monitors[endpoint]))

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        """Tell every front when an engine is expected to be up."""
        self._broadcast(Starts(endpoint, ready_in, failed))

    def gone(self, endpoint: EndpointId) -> None:
        """Tell every front that an endpoint is no longer configured."""
        self._broadcast(Gone(endpoint))

    def evacuate(self, endpoint: EndpointId) -> None:
        """Have every front move its unanswered requests elsewhere."""
        self._broadcast(Evacuate(endpoint))

    def expire(self, requests: Collection[RequestId]) -> None:
        """Have the fronts end requests that were silent for too long."""
        for seat, mine in self._by_seat(requests).items():
            self.say(seat, Expire(mine))

    def _broadcast(self, message: msgspec.Struct) -> None:
        for seat in self._seats.values():
            self.say(seat, message)

    def _by_seat(self, requests: Collection[RequestId]) -> dict[Seat, list[RequestId]]:
        found: dict[Seat, list[RequestId]] = {}
        for request in requests:
            if (seat := self.seat_of(request)) is not None:
                found.setdefault(seat, []).append(request)
        return found

    def _up(self, endpoint: EndpointId) -> Up:
        known, monitor = self._cores.known[endpoint], self._monitors[endpoint]
        return Up(endpoint, known.model, known.identity, known.capacity, monitor.on_trial, monitor.keyed)

    # What fronts say.

    def _take(self, seat: Seat, messages: list[FromFront]) -> None:
        for message in messages:
            if seat.front is not None:
                self._handlers[type(message)](seat, message)
            elif not self._seated(seat, message):
                return

    def _came(self, seat: Seat, message: Came) -> None:
        self._arrived(seat, message.model, message.arrival)

    def _ended(self, seat: Seat, message: Ended) -> None:
        request, tokens = message.request, (message.completion_tokens, message.prompt_tokens)
        self._end(seat, request, Finished(request, message.verdict, *tokens))

    def _left(self, seat: Seat, message: Left) -> None:
        """Take out a request that waits. One dispatched meanwhile ends when its front hears of that."""
        known = seat.drivers.get(message.request)
        if known is None or message.request in seat.sent:
            return
        self._opening.drop(message.request)
        self._end(seat, message.request, Cancelled(message.request))

    def _given_back(self, seat: Seat, message: GivenBack) -> None:
        request = message.arrival.request
        known = seat.drivers.get(request)
        if known is not None and self._opening.begun.is_set():
            seat.sent.discard(request)
            known.handle(Returned(request, message.why))
            return
        if known is not None:  # it goes nowhere before all have declared
            self._end(seat, request, Finished(request, Verdict.FAILED, 0))
        self._arrived(seat, message.model, message.arrival)

    def _lags(self, seat: Seat, message: Lags) -> None:
        if (driver := seat.drivers.get(message.request)) is not None:
            driver.handle(Behind(message.request))

    def _questioned(self, seat: Seat, message: Question) -> None:
        self._spawn(self._answers.give(seat, message))

    def _pinged(self, seat: Seat, message: Ping) -> None:
        if seat.patience.heard(asyncio.get_running_loop().time()):
            seat.line.send(Pong(message.number))

    def _awaits(self, seat: Seat, message: Awaits) -> None:
        assert seat.front is not None  # noqa: S101  # it has said who it is
        self._state.awaited(seat.front, message.ages)

    def _heard(self, epoch: tuple[int, str]) -> None:
        if self._reign is not None:
            self._reign.heard(Epoch(*epoch))

    async def _watch_fronts(self) -> None:
        """Give up fronts whose heartbeats stay out: they obey no longer what was said to them."""
        while True:
            await asyncio.sleep(BEAT)
            now = asyncio.get_running_loop().time()
            for seat in [seat for seat in self._seats.values() if seat.patience.lapsed(now)]:
                _log.warning("a front is given up: it says nothing any more", front=seat.front, machine=seat.machine)
                seat.line.cut()
                self._leave(seat)

    def _told(self) -> None:
        """Tell the election of which gateways fronts are connected that have declared all they have."""
        if self._reign is not None:
            there = {seat.machine for seat in self._seats.values() if seat.declared and not seat.lost}
            self._reign.connected(_others(there), _others(self._whole()))

    def _reported(self, seat: Seat, message: Reported) -> None:
        assert seat.front is not None  # noqa: S101  # it has said who it is
        self._answers.reports[seat.machine].take(seat.front, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _seated(self, seat: Seat, message: FromFront) -> bool:
        """Take a front's first message; False if it is none, and the connection is given up."""
        if not isinstance(message, Hello) or message.oldest > VERSION or message.version < OLDEST:
            self._silent.discard(seat)
            _log.error("a front speaks another version of the messages, and is not served")
            seat.line.cut()
            return False
        if (before := self._seats.pop(message.front, None)) is not None:  # its old connection is about to end
            self._silent.discard(before)
            self.launchers.left(before)
            before.line.cut()
            self._vacate(before)
            self._state.left(message.front)  # it says anew who waits for an engine, if anybody does
        seat.front, seat.fronts = message.front, message.fronts
        self._seats[message.front] = seat
        self._answers.reports[seat.machine].came(message.front)
        if self._reign is not None:
            epoch = self._reign.epoch
            seat.line.send(Reigns((epoch.number, epoch.owner)))
            if message.epoch is not None:
                self._heard(message.epoch)
        self._recall(seat, message)
        self._show(seat)
        seat.line.send(More())
        return True

    def _recall(self, seat: Seat, hello: Hello) -> None:
        """Take over what a front knows of the endpoints, and tell it of those that are not configured any more."""
        for kept in hello.kept:
            if kept.model not in self._kept or kept.age < self._kept[kept.model].age:
                self._kept[kept.model] = kept
        for there in hello.endpoints:
            monitor = self._monitors.get(there.endpoint)
            known = Known(there.model, there.identity, there.capacity)
            if monitor is None or self._cores.renames(there.endpoint, known):
                seat.line.send(Gone(there.endpoint))
                continue
            if there.endpoint not in self._cores.known:
                self._cores.recall(there.endpoint, known)
                self._spawn(self._confirm(there.endpoint, monitor))
            elif self._opening.begun.is_set():
                continue  # what this owner said of it is newer
            if there.drained:
                monitor.drain()

    def _show(self, seat: Seat) -> None:
        """Tell a new front of every endpoint that was probed."""
        for endpoint, monitor in self._monitors.items():
            if endpoint in self._cores.known and monitor.probed.is_set():
                seat.line.send(self._up(endpoint))
                if not monitor.serving:
                    seat.line.send(_down(endpoint, monitor))

    def _declares(self, seat: Seat, part: Declares) -> None:
        """Take a part of what a front had with an earlier owner."""
        for model, flight in part.flights:
            request = flight.arrival.request
            relayed = flight.arrival.relayed and model in self._cores.drivers
            if request not in seat.drivers and (relayed or self._cores.serves(flight.endpoint) == model):
                driver = self._cores.drivers[model]
                seat.drivers[request] = driver
                if not relayed:
                    seat.sent.add(request)
                driver.handle(flight)
        for watched in part.watched:
            self._watch(seat, watched)
        for model, arrival in part.waiting:
            self._arrived(seat, model, arrival)
        if seat.declared:
            return
        if not part.last:
            seat.line.send(More())
            return
        seat.declared = True
        self._silent.discard(seat)
        self._told()
        seat.line.send(Welcome())
        in_flight = len(seat.sent)
        _log.info("front connected", front=seat.front, in_flight=in_flight, waiting=len(seat.drivers) - in_flight)
        self.look()

    def look(self) -> None:
        """Begin to decide if nobody is to be waited for any more."""
        if not self._silent and self._complete():
            self._opening.open()

    def _complete(self) -> bool:
        """Whether all fronts that are known of are here."""
        if self._waits_for is not None:
            return len(self._seats) >= self._waits_for
        whole = self._whole()
        others = self._reign is not None and self._reign.complete
        return others and None in whole and all(seat.machine in whole for seat in self._seats.values())

    def _whole(self) -> set[str | None]:
        """The gateways of which each front has declared all it has; None is this one."""
        seats = self._seats.values()
        here = Counter(seat.machine for seat in seats if seat.declared)
        return {seat.machine for seat in seats} - {seat.machine for seat in seats if here[seat.machine] < seat.fronts}

    def _warm_up(self) -> None:
        """Let the cores know again what those of an earlier owner knew."""
        for model, kept in self._kept.items():
            if (driver := self._cores.drivers.get(model)) is None:
                continue
            try:
                warmth = warmth_of(kept.warmth)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:  # it must not keep an owner from beginning
                _log.error("what fronts kept cannot be read: begun without it", model=model, reason=str(error)[:200])
            else:
                driver.handle(replace(warmth, age=kept.age))
        self._kept.clear()

    async def _have_kept(self) -> None:
        """Have the fronts keep what the next owner is to know."""
        told: dict[str, bytes] = {}
        nothing = packed_warmth(Warmth())
        while True:
            await asyncio.sleep(WARM)
            for model, driver in list(self._cores.drivers.items()):
                warmth = packed_warmth(driver.warmth())
                if warmth != told.get(model, nothing) and len(warmth) <= MOST_KEPT:
                    told[model] = warmth
                    self._broadcast(Keep(model, warmth))
                await asyncio.sleep(0)  # a turn of the loop for each model
            told = {model: warmth for model, warmth in told.items() if model in self._cores.drivers}

    async def _confirm(self, endpoint: EndpointId, monitor: EndpointMonitor) -> None:
        """Tell the fronts if an endpoint that an earlier owner knew does not answer this one."""
        await monitor.probed.wait()
        if not monitor.serving:
            self._broadcast(_down(endpoint, monitor))

    def _arrived(self, seat: Seat, model: str, arrival: Arrived) -> None:
        driver = self._cores.drivers.get(model)
        if driver is None:
            self.say(seat, Refused(Reject(arrival.request, Outcome.NO_ENDPOINT, 1.0)))
            return
        seat.drivers[arrival.request] = driver
        if self._opening.begun.is_set():
            driver.handle(arrival)
        else:
            self._opening.hold(driver, arrival)

    def _moved(self, seat: Seat, message: Moved) -> None:
        """Pass on a batch of progress. One without counts is passed on, too: waiting requests are tried again."""
        generated, driver = message.generated, self._cores.drivers.get(message.model)
        if driver is not None and all(seat.drivers.get(request) is driver for request, _ in generated):
            driver.handle(Progress(generated))
            return
        # Some have ended, were not declared yet, or came before their model went and came back.
        parts: dict[Driver, list[tuple[RequestId, int]]] = {} if driver is None else {driver: []}
        for request, tokens in generated:
            if (its := seat.drivers.get(request)) is not None:
                parts.setdefault(its, []).append((request, tokens))
        for its, part in parts.items():
            its.handle(Progress(tuple(part)))

    def _end(self, seat: Seat, request: RequestId, event: Event) -> None:
        driver = seat.drivers.pop(request, None)
        if driver is not None:
            seat.sent.discard(request)
            driver.handle(event)

    def _watch(self, seat: Seat, message: Watched | Stepped | Unwatched | Failed) -> None:
        if isinstance(message, Watched):
            seat.watched[message.request] = message.endpoint
        elif isinstance(message, Unwatched):
            seat.watched.pop(message.request, None)
        monitor = self._monitors.get(message.endpoint)
        if monitor is None:
            return
        match message:
            case Watched(_, request, prompt_tokens, streams, evacuated, started, passing):
                tokens = None if passing else prompt_tokens
                monitor.dispatched(request, tokens, streams=streams, evacuated=evacuated, started=started)
            case Stepped(_, requests):
                monitor.progressed(requests)
            case Unwatched(_, request, delivering):
                monitor.finished(request, delivering=delivering)
            case Failed(_, reason, aborted, dead):
                monitor.failed(reason, aborted=aborted, dead=dead)

    # A front that is gone.

    def _lost(self, seat: Seat) -> None:
        self._silent.discard(seat)
        self.launchers.left(seat)
        seat.lost = True
        if seat.machine is None:
            self._leave(seat)
        else:  # what it has in flight may run on: it has time to come back
            self._dismiss(seat)
            self._told()
            asyncio.get_running_loop().call_later(GIVEN_UP_AFTER, self._leave, seat)

    def _leave(self, seat: Seat) -> None:
        if seat.front is not None and self._seats.get(seat.front) is seat:
            del self._seats[seat.front]
            self.launchers.left(seat)
            self._vacate(seat)
            self._state.left(seat.front)
            self._answers.reports[seat.machine].left(seat.front)
            self._told()

    def _dismiss(self, seat: Seat) -> int:
        """Take out what waits at a lost front, as no dispatch would reach it; how much that was."""
        requests = [request for request in seat.drivers if request not in seat.sent]
        waiting = [(request, seat.drivers.pop(request)) for request in requests]
        for request, driver in waiting:
            self._opening.drop(request)
            driver.handle(Cancelled(request))
        return len(waiting)

    def _vacate(self, seat: Seat) -> None:
        """Abort what a lost front had in flight, and take out what waited."""
        waiting = self._dismiss(seat)
        requests, seat.drivers, seat.sent = seat.drivers, {}, set()
        for request, driver in requests.items():
            driver.handle(Finished(request, Verdict.ABORTED))
        watched, seat.watched = seat.watched, {}
        for request, endpoint in watched.items():
            if (monitor := self._monitors.get(endpoint)) is not None:
                monitor.finished(request)
        _log.info("front gone", front=seat.front, in_flight=len(requests), waiting=waiting)


def _others(machines: set[str | None]) -> set[str]:
    """Without this gateway."""
    return {machine for machine in machines if machine is not None}


def _down(endpoint: EndpointId, monitor: EndpointMonitor) -> Down:
    return Down(endpoint, monitor.keeps, monitor.drained)


class _Fronts:
    """The fronts, as the core of one model answers them; see `Asker`."""

    def __init__(self, hall: Hall, model: str) -> None:
        self._hall = hall
        self._model = model

    def decided(self, command: Dispatch | Reject) -> bool:
        request = command.request
        seat = self._hall.seat_of(request)
        if seat is None or request not in seat.drivers:
            return False
        if isinstance(command, Dispatch):
            if command.endpoint != NOWHERE:
                seat.sent.add(request)
            self._hall.say(seat, Sent(command))
        else:
            del seat.drivers[request]
            self._hall.say(seat, Refused(command))
        return True

    def want(self, next_reports: Mapping[RequestId, float], *, everything: bool) -> None:
        # The answer to a batch is about requests of one front.
        if next_reports and not everything and front_of(min(next_reports)) == front_of(max(next_reports)):
            if (seat := self._hall.seat_of(next(iter(next_reports)))) is not None:
                seat.line.send(Wanted(self._model, next_reports, everything))
            return
        parts: dict[Seat, dict[RequestId, float]] = {seat: {} for seat in self._hall.seats} if everything else {}
        for request, count in next_reports.items():
            if (seat := self._hall.seat_of(request)) is not None:
                parts.setdefault(seat, {})[request] = count
        for seat, part in parts.items():
            seat.line.send(Wanted(self._model, part, everything))

    def renew(self) -> None:
        """Nothing: the fronts tell every count when they hear that the endpoint is up."""
