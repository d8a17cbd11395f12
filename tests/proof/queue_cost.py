"""What the queue costs: CPU time of one request's stay, with many waiting in few flows or in many.

    python tests/proof/queue_cost.py

A round pushes one request, asks what is ahead of it, and offers; the head goes, is removed and charged, and later
settled. The offer is asked again until it is told that nothing more can go, as the controller does.
"""

import gc
import platform
import sys
from time import process_time

from gateway.admission.placing.request import RequestRecord
from gateway.admission.queueing.queue import OfferResult, Queue
from tests.fakes.waiting import waiting

LANE = (4096, None, None)


def measure(queued: int, flows: int, rounds: int = 20_000, *, blocked: bool = False) -> tuple[float, float, float]:
    """Microseconds of a stay, of its settlement, and of asking what is ahead."""
    queue = Queue(bands={}, weights={}, max_passes=10**9 if blocked else 8)
    requests = [
        waiting(number, flow=f"f{number * 7919 % flows}", cost=100.0 + number % 97, size=5, deadline=float(number))
        for number in range(queued + rounds)
    ]
    requests[0].size = 9
    for request in requests[:queued]:
        queue.push(request, LANE)
    went: list[RequestRecord] = []
    room = 0

    def accept(request: RequestRecord) -> OfferResult:
        nonlocal room
        if blocked and request.size == 9:
            return OfferResult.NO_ROOM
        if not room:
            return OfferResult.CLOSED
        room -= 1
        queue.remove(request)
        queue.charge(request)
        went.append(request)
        return OfferResult.TAKEN

    gc.collect()
    gc.disable()
    start = process_time()
    for request in requests[queued:]:
        queue.push(request, LANE)
        room = 1
        queue.offer(accept)
        queue.first_deadline()
    stay = process_time() - start
    start = process_time()
    for request in went:
        queue.settle(request.arrival.flow, 0, -10.0)
    settled = process_time() - start
    start = process_time()
    for request in requests[queued:]:
        queue.ahead(0, request.arrival.flow, LANE)
    asked = process_time() - start
    gc.enable()
    assert len(went) == rounds
    assert queue.depth == queued
    return stay / rounds * 1e6, settled / rounds * 1e6, asked / rounds * 1e6


def main() -> None:
    """Print the table."""
    print(f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}")
    print(f"{'queued':>7} {'flows':>6} {'head':>8} {'stay us':>9} {'settle us':>10} {'ahead us':>9}")
    for queued, flows in ((10, 1), (10, 10), (1000, 64), (10_000, 1), (10_000, 64), (10_000, 5000), (10_000, 10_000)):
        for blocked in (False, True):
            stay, settled, asked = measure(queued, flows, blocked=blocked)
            head = "blocked" if blocked else "goes"
            print(f"{queued:7} {flows:6} {head:>8} {stay:9.1f} {settled:10.1f} {asked:9.1f}")


if __name__ == "__main__":
    main()
