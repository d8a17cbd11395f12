"""Requests as the queue sees them."""

from gateway.admission.events import Arrived, Demand, EndpointId, RequestId


class Waiting:
    """One that can wait, with whatever cost, size and deadline a test wants."""

    __slots__ = ("arrival", "backfilled", "cost", "deadline", "lane", "order", "size", "ticket")

    def __init__(
        self,
        name: int,
        *,
        flow: str = "",
        band: int = 0,
        cost: float = 1.0,
        size: int = 1,
        deadline: float = 0.0,
        body_bytes: int = 0,
    ) -> None:
        self.arrival = Arrived(RequestId(name), Demand((1,), 1), band, flow, body_bytes)
        self.cost = cost
        self.size = size
        self.deadline = deadline
        self.backfilled = 0
        self.order = 0
        self.ticket = 0
        self.lane: tuple[int, EndpointId | None] = (0, None)

    @property
    def name(self) -> int:
        return self.arrival.request

    def __repr__(self) -> str:
        return f"<{self.name}>"
