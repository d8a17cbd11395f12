"""The state machine of a request.

A request without a record is `NEW`: the controller has never seen it, or it has ended. A trigger that the table does
not list for a state is ignored, so late and repeated events change nothing. The blocks of an aborted request outlive
it: the ledger keeps them (`ledger.ReservationPhase`).
"""

from collections.abc import Mapping
from enum import IntEnum, auto


class State(IntEnum):
    """State of a request."""

    __hash__ = int.__hash__  # Enum's is a Python function, and every step of a request calls it

    NEW = auto()
    """No record of it."""
    WAITING = auto()
    """In the queue."""
    IN_FLIGHT = auto()
    """On an endpoint, its blocks reserved."""
    ENDED = auto()
    """Its one outcome is known, and its record is dropped."""


class Trigger(IntEnum):
    """An event in the life of a request."""

    __hash__ = int.__hash__

    ARRIVED = auto()
    DISPATCHED = auto()
    REFUSED = auto()
    CANCELLED = auto()
    RETURNED = auto()
    FINISHED = auto()


TRANSITIONS: Mapping[tuple[State, Trigger], State] = {
    (State.NEW, Trigger.ARRIVED): State.WAITING,
    (State.WAITING, Trigger.DISPATCHED): State.IN_FLIGHT,
    (State.WAITING, Trigger.REFUSED): State.ENDED,
    (State.WAITING, Trigger.CANCELLED): State.ENDED,
    (State.IN_FLIGHT, Trigger.RETURNED): State.WAITING,
    (State.IN_FLIGHT, Trigger.FINISHED): State.ENDED,
}
