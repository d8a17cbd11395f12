"""An owner's answers to the questions of its fronts: the state, all figures, what would become of a request."""

import secrets
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import msgspec

from gateway.ops.merged import Figures
from gateway.ops.pictures.digest import Digest
from gateway.ops.state import Deciding, TierState, UnknownEndpointError, UnknownModelError
from gateway.pools.cores import Cores
from gateway.tier.epoch import Epoch
from gateway.tier.frames import Answer, AskTurn, Explain, Look, Question, Scrape, ShowState
from gateway.tier.opening import Opening
from gateway.tier.reports import Reports
from gateway.tier.seat import Seat


class Telling(Deciding, Protocol):
    """The owner of the decisions, as its fronts ask it."""

    def awaited(self, front: int, ages: Mapping[str, float]) -> None:
        """Take for engines of which models requests wait in a front, and how long the oldest has, in seconds."""
        ...

    def left(self, front: int) -> None:
        """A front has gone, and nobody waits there."""
        ...

    async def figures(self, fronts: int) -> Figures:
        """What it counted and measured; `fronts` are connected."""
        ...

    def take(self, digest: Digest) -> None:
        """Take what ended at a front."""
        ...


class Answers:
    """Those of one owner.

    Args:
        seats: of the connected fronts.
        epoch: in a tier of several gateways, the owner's.

    Attributes:
        reports: what fronts count, by gateway: each tells its own figures, and the owner's gateway those of the pools.
    """

    def __init__(self, seats: Mapping[int, Seat], epoch: Epoch | None) -> None:
        self.reports: defaultdict[str | None, Reports] = defaultdict(Reports)
        self._seats = seats
        self._epoch = epoch
        self._name = secrets.token_hex(4)
        self._cores: Cores
        self._state: Telling
        self._opening: Opening

    def begin(self, cores: Cores, state: Telling, opening: Opening) -> None:
        """Answer from these cores, and from this state."""
        self._cores, self._state, self._opening = cores, state, opening

    async def give(self, seat: Seat, question: Question) -> None:
        """Answer a front."""
        match question:
            case Explain():
                await self._explain(seat, question)
            case AskTurn():
                await self._tell_turn(seat, question)
            case ShowState():
                await self._show(seat, question)
            case Scrape():
                await self._expose(seat, question)
            case Look(number, after):
                seat.line.send(Answer(number, msgspec.json.encode(await self._state.picture(after))))

    def saw(self, digest: Digest) -> None:
        """A front tells what ended there."""
        self._state.take(digest)

    async def _explain(self, seat: Seat, question: Explain) -> None:
        driver = self._cores.drivers.get(question.model)
        body = None if driver is None else msgspec.json.encode(await driver.explained(question.arrival))
        seat.line.send(Answer(question.number, body))

    async def _tell_turn(self, seat: Seat, question: AskTurn) -> None:
        driver = seat.drivers.get(question.request)
        turn = None if driver is None else await driver.turn(question.request)
        seat.line.send(Answer(question.number, None if turn is None else msgspec.json.encode(turn)))

    async def _show(self, seat: Seat, question: ShowState) -> None:
        if question.drain is not None or question.undrain is not None:
            await self._opening.begun.wait()  # before that, the word of a front that is yet to come would undo it
        try:
            if question.drain is not None:
                await self._state.drain(question.drain)
            if question.undrain is not None:
                await self._state.undrain(question.undrain)
            if question.give is not None:
                await self._state.give(*question.give)
        except (UnknownEndpointError, UnknownModelError):
            seat.line.send(Answer(question.number, None))
            return
        members = tuple(str(front) for front in sorted(self._seats))
        name = self._name if self._epoch is None else self._epoch.owner
        number = None if self._epoch is None else self._epoch.number
        tier = TierState(role="owner", id=name, owner=name, epoch=number, members=members)
        decided = (await self._state.decided()).model_copy(update={"tier": tier})
        seat.line.send(Answer(question.number, decided.model_dump_json().encode()))

    async def _expose(self, seat: Seat, question: Scrape) -> None:
        await self._opening.begun.wait()  # before that, fronts that are yet to come would be missing from the sums
        reports, machine = self.reports[seat.machine], seat.machine
        fronts = {front: seated.line for front, seated in self._seats.items() if seated.machine == machine}
        await reports.ask(fronts)
        own = await self._state.figures(len(fronts)) if machine is None else ()
        seat.line.send(Answer(question.number, await reports.exposition(own, openmetrics=question.openmetrics)))
