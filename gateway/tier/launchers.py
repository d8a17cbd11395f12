"""The parents of a tier's gateways, as its owner reaches them: each over one front of its gateway.

A parent talks with one front at a time: it tells that one what its engines do, and obeys it alone. So there is one way
to it, in order, as there is where owner and parent share a machine. A parent numbers each turn
to another front, so that what an earlier front still says about an engine does not count. It is kept: when the front
that counts has gone, another may be of a parent that was started again, or of a gateway that takes the place of the
one that goes, and says nothing twice. Of two gateways that launch one engine, the one that runs it counts: only that
one can end it.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from gateway.admission.events import EndpointId, ResidencyPhase
from gateway.pools.launcher import EngineNews, Launcher
from gateway.tier.frames import Launch, Seems
from gateway.tier.seat import Seat

_log = structlog.get_logger("kvgate.tier")


class _Way(NamedTuple):
    """To the parent of an engine."""

    seat: Seat
    turn: int


class Launchers(Launcher):
    """Those of one owner.

    Args:
        say: says something to a front that it is to act on.
    """

    def __init__(self, say: Callable[[Seat, msgspec.Struct], None]) -> None:
        super().__init__()
        self._say = say
        self._ways: dict[str, _Way] = {}
        """By the address of an engine."""
        self._said: dict[str, dict[Seat, EngineNews]] = {}
        """Likewise: what each front said last."""

    def run(self, address: str) -> None:
        """Have an engine started."""
        self._order(address, runs=True)

    def end(self, address: str) -> None:
        """Have an engine ended."""
        self._order(address, runs=False)

    def seems(self, address: str, state: str, reason: str) -> None:
        """Say what is seen of an engine."""
        if (way := self._ways.get(address)) is not None:
            self._say(way.seat, Seems(EndpointId(address), state, reason))

    def said(self, seat: Seat, news: EngineNews) -> None:
        """A front tells what an engine does."""
        said = self._said.setdefault(news.address, {})
        said[seat] = news
        way, coming = self._ways.get(news.address), _Way(seat, news.turn)
        if way is not None and way.seat.machine != seat.machine:
            gateways = [way.seat.machine or "this one", seat.machine or "this one"]
            _log.error("two gateways launch one engine: the first one does", endpoint=news.address, gateways=gateways)
            if not _runs(news) or _runs(said[way.seat]):
                return
        elif way is not None and coming.turn < way.turn:
            return
        if way != coming:
            self._ways[news.address] = coming
            if way is not None:
                self.on_lost(news.address)
        self.on_news(news)

    def left(self, seat: Seat) -> None:
        """A front has gone: the parent turns to another, or has gone, too."""
        for address, said in self._said.items():
            said.pop(seat, None)
            if (way := self._ways.get(address)) is not None and way.seat is seat:
                del self._ways[address]
                self.on_lost(address)
                if said:
                    self.said(*max(said.items(), key=lambda found: (_runs(found[1]), found[1].turn)))

    def _order(self, address: str, *, runs: bool) -> None:
        if (way := self._ways.get(address)) is not None:
            self._say(way.seat, Launch(EndpointId(address), runs))


def _runs(news: EngineNews) -> bool:
    """Whether an engine has a process."""
    return news.phase is not ResidencyPhase.STOPPED
