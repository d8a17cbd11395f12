"""The text of metrics is the Prometheus client's, letter for letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gateway.ops.exposition import exposition

REFERENCE = {False: generate_latest, True: generate_openmetrics}
VALUES = st.floats() | st.integers(0, 2**60)


@pytest.mark.parametrize("openmetrics", [False, True])
@given(labels=st.lists(st.tuples(st.text(max_size=9), st.sampled_from("ab")), max_size=4), values=st.lists(VALUES))
def test_it_is_that_of_the_prometheus_client(openmetrics, labels, values):
    registry = CollectorRegistry()
    counter = Counter("c", 'With "quotes", a \\ and\na line.', ("z", "model"), registry=registry)
    gauge = Gauge("g", "Without labels.", registry=registry)
    histogram = Histogram("h", "", ("model",), buckets=(0.1, 1e7, 2.5e9), registry=registry)
    for label in labels:
        counter.labels(*label).inc(2, {"trace_id": "0af7"})
        for value in values:
            histogram.labels(label[0]).observe(value, {"trace_id": 'a"b'})
            gauge.set(value)
    metrics = list(registry.collect())
    assert exposition(metrics, openmetrics=openmetrics) == REFERENCE[openmetrics](Fixed(metrics))


class Fixed:
    def __init__(self, metrics):
        self._metrics = metrics

    def collect(self):
        return self._metrics
