"""The life of a request, as data.

A request that the controller has never seen, or that has ended, has no record: it is `NEW` to it. A trigger that
the table does not list for a state is ignored: late and doubled events change nothing. The blocks of a request
whose client left outlive it: that is the ledger's affair (`ledger.Phase`).
"""

from collections.abc import Mapping
from enum import IntEnum, auto


class State(IntEnum):
    """Where a request is."""

    __hash__ = int.__hash__  # that of Enum is a Python function, and every step of a request asks for it

    NEW = auto()
    """No record of it."""
    WAITING = auto()
    """In the queue."""
    IN_FLIGHT = auto()
    """On an endpoint, its blocks reserved."""
    ENDED = auto()
    """Its one outcome is known and its record dropped."""


class Trigger(IntEnum):
    """What can happen to a request."""

    __hash__ = int.__hash__

    ARRIVED = auto()
    DISPATCHED = auto()
    REJECTED = auto()
    CANCELLED = auto()
    RETURNED = auto()
    FINISHED = auto()


TRANSITIONS: Mapping[tuple[State, Trigger], State] = {
    (State.NEW, Trigger.ARRIVED): State.WAITING,
    (State.WAITING, Trigger.DISPATCHED): State.IN_FLIGHT,
    (State.WAITING, Trigger.REJECTED): State.ENDED,
    (State.WAITING, Trigger.CANCELLED): State.ENDED,
    (State.IN_FLIGHT, Trigger.RETURNED): State.WAITING,
    (State.IN_FLIGHT, Trigger.FINISHED): State.ENDED,
}
