import pytest

from gateway.admission.events import Arrived, Demand
from gateway.admission.lifecycle import Trigger
from gateway.admission.queue import Queue
from gateway.admission.request import Request


class Line:
    """A queue, and what was put into it."""

    def __init__(self):
        self.queue = Queue()
        self.requests = {}

    def join(self, name, lane=0, band=0, size=0, at=0.0):
        request = self.requests[name] = Request(Arrived(name, Demand((1,), 1), band, "", size), at)
        request.take(Trigger.ARRIVED)
        self.queue.push(request, (lane, None))

    def leave(self, name, trigger=Trigger.CANCELLED):
        request = self.requests[name]
        request.take(trigger)
        self.queue.remove(request)

    def come_back(self, name, lane=0):
        request = self.requests[name]
        request.take(Trigger.RETURNED)
        self.queue.push(request, (lane, None))

    def asked(self, accepts=lambda name: False):
        """Who is asked, band by band; whom `accepts` names goes."""
        names = []

        def accept(request):
            names.append(request.arrival.request)
            if not accepts(request.arrival.request):
                return False
            self.leave(request.arrival.request, Trigger.DISPATCHED)
            return True

        for band in self.queue.bands:
            self.queue.offer(band, accept)
        return names

    def drain(self):
        return self.asked(lambda name: True)


@pytest.fixture
def line():
    return Line()


def test_first_in_first_out(line):
    for name in (3, 1, 2):
        line.join(name)
    assert line.drain() == [3, 1, 2]
    assert line.queue.depth == 0
    assert line.queue.bands == ()


def test_lower_bands_first(line):
    line.join(1, band=5)
    line.join(2, band=-1)
    line.join(3, band=5)
    assert line.queue.bands == (-1, 5)
    assert line.drain() == [2, 1, 3]


def test_a_refused_head_ends_its_lane_and_no_other(line):
    line.join(1, lane=0)
    line.join(2, lane=0)
    line.join(3, lane=7)
    assert line.asked(lambda name: name == 3) == [1, 3]


def test_lanes_are_merged_in_order_of_arrival(line):
    for name, lane in [(1, 0), (2, 7), (3, 0), (4, 9), (5, 7)]:
        line.join(name, lane=lane)
    assert line.drain() == [1, 2, 3, 4, 5]


def test_who_leaves_is_not_asked(line):
    for name in range(6):
        line.join(name, size=10)
    for name in (0, 2, 5):
        line.leave(name)
    assert (line.queue.depth, line.queue.bytes) == (3, 30)
    assert line.drain() == [1, 3, 4]


def test_who_comes_back_has_the_turn_it_had(line):
    for name in range(4):
        line.join(name)
    line.asked(lambda name: name < 2)
    line.come_back(1)
    line.come_back(0)
    assert line.drain() == [0, 1, 2, 3]


def test_who_comes_back_at_once_is_there_once(line):
    line.join(1)
    line.join(2)
    for _ in range(5):
        assert line.asked(lambda name: name == 1) == [1, 2]
        line.come_back(1)
    assert [r.arrival.request for r in line.queue] == [1, 2]
    assert line.queue.depth == 2


def test_the_oldest_is_told_whatever_its_band_and_lane(line):
    line.join(1, at=5.0, band=0)
    line.join(2, at=3.0, band=9, lane=4)
    assert line.queue.oldest().arrival.request == 2
    line.leave(2)
    assert line.queue.oldest().arrival.request == 1
    line.leave(1)
    assert line.queue.oldest() is None


def test_how_many_are_ahead_of_a_newcomer(line):
    for name, band in enumerate([0, 0, 1, 3]):
        line.join(name, band=band)
    assert [line.queue.ahead(band) for band in (-1, 0, 1, 2, 3)] == [0, 2, 3, 3, 4]
    assert [line.queue.depth_of(band) for band in (0, 1, 2)] == [2, 1, 0]


def test_new_lanes_keep_order_bytes_and_depth(line):
    for name in range(6):
        line.join(name, lane=name % 2, band=name // 3, size=name)
    line.queue.relane(lambda request: (request.arrival.request % 3, None))
    assert (line.queue.depth, line.queue.bytes) == (6, 15)
    assert line.drain() == [0, 1, 2, 3, 4, 5]


def test_departures_leave_no_memory_behind(line):
    line.join(-1)
    for name in range(20_000):
        line.join(name)
        line.leave(name)
        del line.requests[name]
    (lane,) = line.queue._bands[0].values()
    assert len(lane._heap) < 200
    assert len(line.queue._ages) < 200


def test_who_comes_and_goes_leaves_no_memory_behind(line):
    line.join(1)
    for _ in range(5000):
        line.asked(lambda name: True)
        line.come_back(1)
    (lane,) = line.queue._bands[0].values()
    assert len(lane._heap) == 1
    assert len(line.queue._ages) < 200
