"""The place of one front with its owner."""

from gateway.admission.events import EndpointId, RequestId
from gateway.pools.driver import Driver
from gateway.tier.fence import Patience
from gateway.tier.frames import FromFront
from gateway.tier.line import Line


class Seat:
    """One front."""

    __slots__ = ("declared", "drivers", "front", "fronts", "line", "lost", "machine", "patience", "sent", "watched")

    def __init__(self, machine: str | None, now: float) -> None:
        self.line: Line[FromFront]
        self.machine = machine
        """HOST:PORT of the gateway that it is of; None: of this one."""
        self.patience = Patience(now)
        self.front: int | None = None
        """Its number; None before its first message."""
        self.fronts = 1
        """How many its gateway has."""
        self.declared = False
        """Whether it has declared all it had."""
        self.lost = False
        """Whether its connection has ended."""
        self.drivers: dict[RequestId, Driver] = {}
        """The driver of each of its requests."""
        self.sent: set[RequestId] = set()
        """Those of them that were dispatched, which one that is relayed never is."""
        self.watched: dict[RequestId, EndpointId] = {}
