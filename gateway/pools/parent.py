"""The talk of the process that decides with the parent that launches engines: which to run and to end, and how it went.

It goes over the descriptor on which a supervised program talks with its supervisor, a line each. In a tier a front has
it, and carries what both say to and from the owner (`gateway.tier.launchers`).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from gateway.admission.residency import ResidencyPhase

RUN = "run"
"""A line of this process: start the engine at the address that follows."""
END = "end"
"""Likewise: no request is on it, end it."""
NEWS = b"engine "
"""A line of the parent: an `EngineNews` follows."""
ENDED = b"ended "
"""Likewise: an `EngineEnded`."""


class EngineNews(msgspec.Struct, frozen=True):
    """What an engine that comes and goes does, as its parent knows it."""

    address: str
    phase: ResidencyPhase
    """Of its process. One that sleeps is stopped: its cards are free."""
    takes: float | None = None
    """Seconds its last start took."""
    wrong: str | None = None
    """Why it does not run though it was to."""
    turn: int = 0
    """Of the processes that the parent talks with, the how manieth: it obeys the latest, and no other any more."""
    leaves: bool = False
    """Whether the parent will end it: it is to be left, so that nothing is cut off, and not to be started again."""


class EngineEnded(msgspec.Struct, frozen=True):
    """Why any engine ended that was not asked to, as its parent has diagnosed it; once it is ready again, no cause."""

    address: str
    cause: str | None = None
    remedy: str | None = None


class Launcher(ABC):
    """Who launches engines, as the process that decides sees it.

    Attributes:
        on_news: takes what an engine does.
        on_ended: takes why one ended.
        on_lost: takes the address of one of which nothing can be known until there is news of it again.
    """

    def __init__(self) -> None:
        self.on_news: Callable[[EngineNews], None] = lambda _news: None
        self.on_ended: Callable[[EngineEnded], None] = lambda _ended: None
        self.on_lost: Callable[[str], None] = lambda _address: None

    @abstractmethod
    def run(self, address: str) -> None:
        """Have an engine started."""

    @abstractmethod
    def end(self, address: str) -> None:
        """Have an engine ended."""


class Parent(Launcher):
    """The parent of this process. Without one nothing is heard, and nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: asyncio.Queue[str] = asyncio.Queue()

    def run(self, address: str) -> None:
        """Have it start an engine."""
        self._asked.put_nowait(f"{RUN} {address}")

    def end(self, address: str) -> None:
        """Have it end an engine."""
        self._asked.put_nowait(f"{END} {address}")

    async def next_line(self) -> str:
        """What it is to be told next."""
        return await self._asked.get()

    def heard(self, line: bytes) -> bool:
        """Take a line of its; False if it is about something else."""
        if line.startswith(NEWS):
            self.on_news(_news.decode(line.removeprefix(NEWS)))
        elif line.startswith(ENDED):
            self.on_ended(_ended.decode(line.removeprefix(ENDED)))
        else:
            return False
        return True


def as_line(news: EngineNews | EngineEnded) -> bytes:
    """A parent's line."""
    return (NEWS if isinstance(news, EngineNews) else ENDED) + msgspec.json.encode(news)


_news = msgspec.json.Decoder(EngineNews)
_ended = msgspec.json.Decoder(EngineEnded)
