import pytest

from gateway.admission.outcomes import Outcome
from gateway.ops.pictures.digest import MOST_SERVED, TTFT_EDGES, Digest, Digests, OfModel, quantiles
from gateway.ops.pictures.picture import MOST_REQUESTS
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def digests(clock):
    return Digests(clock)


def end(digests, clock, **fields):
    known = {
        "number": 1, "request_id": "r", "model": "m", "flow": "alice", "outcome": Outcome.COMPLETED, "endpoint": "a:1",
        "prompt": 7, "generated": 5, "service": 17.0, "began": clock.now - 3, "waited": 1.0, "first": 1.5, "gap": 0.1,
    }  # fmt: skip
    digests.ended(**{**known, "now": clock.now, **fields})


def test_what_ended_is_told_once_with_its_age(digests, clock):
    end(digests, clock)
    end(digests, clock, outcome=Outcome.QUEUE_FULL, first=None, gap=None, service=0.0, number=None)
    clock.now += 2
    digest = digests.take()
    (of_m,) = digest.models.values()
    assert of_m.outcomes == {"completed": 1, "queue_full": 1}
    assert (sum(of_m.ttft.values()), sum(of_m.gap.values()), of_m.served) == (1, 1, {"alice": 17.0})
    assert [(one.number, one.ago, one.took) for one in digest.ended] == [(1, 2, 3), (None, 2, 3)]
    assert digests.take() == Digest()


def test_it_is_bounded(digests, clock):
    for number in range(MOST_REQUESTS + MOST_SERVED):
        end(digests, clock, number=number, flow=f"flow {number}")
    digest = digests.take()
    assert len(digest.ended) == MOST_REQUESTS
    assert len(digest.models["m"].served) == MOST_SERVED
    assert digest.models["m"].outcomes["completed"] == MOST_REQUESTS + MOST_SERVED


def test_figures_add_up_and_are_taken_away_again(digests, clock):
    sums, taken = OfModel(), []
    for flow in ("a", "a", "b"):
        end(digests, clock, flow=flow)
        digests.drifted("m", flow)
        taken.append(digests.take().models["m"])
        sums.add(taken[-1])
    assert sums.copy() == sums
    assert (sums.outcomes, sums.drifted) == ({"completed": 3}, {"a": 2, "b": 1})
    for figures in taken[:2]:
        sums.subtract(figures)
    assert sums == taken[2]


def test_figures_that_are_too_large_to_be_exact_do_no_harm():
    sums, huge, one = OfModel(), OfModel(served={"a": 2.0**60}), OfModel(served={"a": 1.0})
    for figures in (one, huge):
        sums.add(figures)
    for figures in (huge, one):
        sums.subtract(figures)
    assert sums == OfModel()


def test_quantiles_are_those_of_prometheus(digests, clock):
    values = [0.02, 0.04, 0.4, 0.4, 0.45, 1.5, 2.5, 6.0, 50.0, 500.0]
    for value in values:
        end(digests, clock, first=value)
    found = quantiles(digests.take().models["m"].ttft, TTFT_EDGES)
    assert found.count == 10
    assert found.p50 == pytest.approx(0.5), "the fifth of ten is the last of its bucket, which ends at 0.5"
    assert found.p90 == pytest.approx(60), "and so is the ninth"
    assert found.p99 == 120, "beyond the last edge nothing is known"
    assert quantiles({}, TTFT_EDGES).p50 is None


def test_the_edges_are_those_of_the_metric():
    from gateway.ops.metrics import Metrics

    (family,) = (f for f in Metrics("0").registry.collect() if f.name == "kvgate_ttft_seconds")
    edges = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
    assert [float(edge) for edge in edges[:-1]] == list(TTFT_EDGES)
