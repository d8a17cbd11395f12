from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import Exemplar

from gateway.ops.tally import Tallies, Tally

EDGES = (1, 2.5, 10)


def test_an_edge_belongs_to_its_bucket():
    tally = Tally(EDGES)
    for value in (0, 1, 1.5, 10, 11):
        tally.observe(value)
    assert [bucket[:2] for bucket in tally.buckets()] == [("1.0", 2), ("2.5", 3), ("10.0", 4), ("+Inf", 5)]
    assert tally.sum == 23.5


def test_it_is_exposed_as_a_histogram_is():
    own, usual = CollectorRegistry(), CollectorRegistry()
    tallies = Tallies("n", "What.", ("model", "kind"), EDGES)
    own.register(tallies)
    histogram = Histogram("n", "What.", ("model", "kind"), buckets=EDGES, registry=usual)
    for value in (0.5, 3, 3, 99):
        tallies.of("m", "x").observe(value)
        histogram.labels("m", "x").observe(value)
    tallies.of("m", "y").observe(2)
    histogram.labels("m", "y").observe(2)
    expected = generate_latest(usual).decode().partition("# HELP n_created")[0]
    assert generate_latest(own).decode() == expected


def test_a_bucket_shows_the_last_trace_that_fell_into_it():
    tally = Tally(EDGES)
    for number, value in enumerate((0.5, 2, 2.5, 99)):
        tally.observe(value)
        tally.exemplify(value, f"trace-{number}", 1000.0 + number)
    shown = {edge: exemplar for edge, _, exemplar in tally.buckets()}
    assert shown == {
        "1.0": Exemplar({"trace_id": "trace-0"}, 0.5, 1000.0),
        "2.5": Exemplar({"trace_id": "trace-2"}, 2.5, 1002.0),
        "10.0": None,
        "+Inf": Exemplar({"trace_id": "trace-3"}, 99, 1003.0),
    }
