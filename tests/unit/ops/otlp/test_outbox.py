import threading
from itertools import chain

import pytest
from prometheus_client import Counter
from structlog.testing import capture_logs

from gateway.ops.otlp.environment import Batching
from gateway.ops.otlp.outbox import Outbox


class Collector:
    """Takes what it is sent when it may; says what is wrong."""

    def __init__(self):
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()
        self.wrong = None
        self.got = []

    def __call__(self, batch):
        self.busy.set()
        self.free.wait()
        if isinstance(self.wrong, Exception):
            raise self.wrong
        if self.wrong is None:
            self.got += [list(batch)]
        return self.wrong


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.free.set()


def outbox(collector, *, delay=60.0, queue=4, batch=2):
    dropped = Counter("dropped", "Records.", registry=None)
    return Outbox("traces", Batching(delay, queue, batch), collector, dropped), dropped._value.get


def test_what_is_put_in_leaves_in_batches_and_the_rest_at_the_end(collector):
    box, dropped = outbox(collector)
    for number in range(3):
        box.put(number)
    box.close(10)
    assert all(len(batch) <= 2 for batch in collector.got)
    assert [*chain(*collector.got)] == [0, 1, 2]
    assert dropped() == 0


def test_a_collector_that_is_slow_keeps_nobody_waiting_and_what_is_lost_is_counted_and_said_once(collector):
    with capture_logs() as lines:
        box, dropped = outbox(collector)
        collector.free.clear()
        box.put(1, 2)
        assert collector.busy.wait(10)
        for number in range(10):
            box.put(number)
        assert dropped() == 6  # four wait
        collector.free.set()
        box.close(10)
    assert sum(map(len, collector.got)) == 6
    assert [(line["event"], line["signal"]) for line in lines] == [
        ("telemetry is lost", "traces"),
        ("telemetry is exported again", "traces"),
    ]


@pytest.mark.parametrize("wrong", ["status 401", ValueError("x")])
def test_what_a_collector_does_not_take_is_counted_and_said_once(collector, wrong):
    collector.wrong = wrong
    with capture_logs() as lines:
        box, dropped = outbox(collector, queue=100, batch=1)
        box.put(*range(5))
        box.close(10)
    assert dropped() == 5
    (line,) = lines
    assert line["reason"] == ("defect: ValueError" if isinstance(wrong, ValueError) else wrong)


def test_the_end_waits_no_longer_than_it_may(collector):
    collector.free.clear()
    box, _ = outbox(collector)
    box.put(1)
    box.close(0.01)  # returns
