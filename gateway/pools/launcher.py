"""PURE. The launcher of engines, as the process that decides sees it, and the news it gives."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from gateway.admission.events import ResidencyPhase


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
    """Whether it is to end: its parent will end it, or another waits for its place. It is to be left, so that nothing
    is cut off, and not to be started again."""


class EngineEnded(msgspec.Struct, frozen=True):
    """Why any engine ended that was not asked to, as its parent has diagnosed it; once it is ready again, no cause."""

    address: str
    cause: str | None = None
    remedy: str | None = None


class Launcher(ABC):
    """The launcher of engines, as the process that decides sees it.

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

    @abstractmethod
    def seems(self, address: str, state: str, reason: str) -> None:
        """Say what is seen of an engine, so that one that hangs is killed and started again."""
