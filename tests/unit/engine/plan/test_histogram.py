import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.histogram import Distribution, Histogram, Range, rank_of, summed

EDGES = (1, 2, 5, 10, 20, 50, 100)


def histogram(values, edges=EDGES):
    cumulative = [(edge, sum(value <= edge for value in values)) for edge in (*edges, math.inf)]
    return Histogram.from_cumulative(cumulative, sum(values))


def exactly(values, share):
    return sorted(values)[rank_of(share, len(values)) - 1]


@pytest.mark.parametrize(
    ("share", "count", "rank"), [(0.5, 1, 1), (0.5, 2, 1), (0.5, 3, 2), (0.99, 100, 99), (0.99, 101, 100), (1, 7, 7)]
)
def test_a_quantile_is_that_of_the_nearest_rank(share, count, rank):
    assert rank_of(share, count) == rank


def test_a_quantile_lies_in_its_bucket():
    lengths = histogram([1, 3, 4, 15, 16, 18])
    assert lengths.quantile(0.5) == Range(3, 5)
    assert lengths.quantile(1) == Range(11, 20)
    assert str(lengths.quantile(1)) == "11 to 20"


def test_an_empty_histogram_has_no_quantiles():
    assert histogram([]).distribution() is None
    with pytest.raises(ValueError, match="empty"):
        histogram([]).quantile(0.5)


def test_what_is_above_the_last_edge_is_bounded_by_the_sum():
    assert histogram([1, 1, 8000]).quantile(1) == Range(101, 8002)
    one, other = histogram([1, 3000, 5000]).quantile(0.5), histogram([1, 3000, 5000]).quantile(1)
    assert (one, other) == (Range(101, 4000), Range(101, 7900))


LENGTHS = st.lists(st.integers(0, 500), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from([0.5, 0.9, 0.99, 1]))
def test_the_range_always_holds_the_value(values, share):
    found = histogram(values).quantile(share)
    assert found.low <= exactly(values, share) <= found.high


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=60))
def test_the_range_of_sums_always_holds_them_whatever_goes_with_what(pairs):
    found = summed(histogram([one for one, _ in pairs]), histogram([other for _, other in pairs]))
    assert isinstance(found, Distribution)
    sums = [one + other for one, other in pairs]
    for share, held in ((0.5, found.p50), (0.99, found.p99), (1, found.most)):
        assert held.low <= exactly(sums, share) <= held.high


def test_sums_of_nothing_are_not_known():
    assert summed(histogram([]), histogram([1])) is None
