"""The order in which the requests of a queue will go, if nobody else comes."""

from typing import NamedTuple

from gateway.admission.events import RequestId
from gateway.admission.queueing.queue import Ahead, Queue


class Position(NamedTuple):
    """The position of one request."""

    number: int
    """1 is the next to go."""
    beside: Ahead
    """Service ahead of its band by the others."""
    same: float
    """Service ahead of it in its band, tokens."""

    def service(self, cost: float) -> float:
        """Total service until its turn, if it has this cost, tokens."""
        beside = self.beside
        return Ahead(beside.urgent, self.same, beside.reserved, beside.yielded).service(cost)


def positions(queue: Queue) -> dict[RequestId, Position]:
    """Each waiting request's position.

    Bands come one after the other, the most urgent first; what a reserved share moves forward shows in the service, not
    in the position. Flows of a band take turns by fairness. What is set aside goes last in its band.
    """
    found: dict[RequestId, Position] = {}
    number = 0
    for band, beside in queue.beside():
        same = 0.0
        for request in band.in_order():
            number += 1
            found[request.arrival.request] = Position(number, beside, same)
            same += request.cost
    return found
