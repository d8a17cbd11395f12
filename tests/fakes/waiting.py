"""Requests as the queue sees them."""

from gateway.admission.events import Arrived, Demand, RequestId
from gateway.admission.placing.request import RequestRecord
from gateway.admission.prediction.predictor import Kind, Lengths


def waiting(
    name: int,
    *,
    flow: str = "",
    band: int = 0,
    cost: float = 1.0,
    size: int = 1,
    deadline: float = 0.0,
    body_bytes: int = 0,
) -> RequestRecord:
    """One that can wait, with whatever cost, size and deadline a test wants."""
    arrival = Arrived(RequestId(name), Demand((1,), 1), band, flow, body_bytes)
    request = RequestRecord(arrival, 0.0, Kind(Lengths(), Lengths()))
    request.cost = float(cost)
    request.size = size
    request.deadline = float(deadline)
    return request
