import pytest

from engine.plan.samples import Samples

TEXT = """# TYPE n counter
n_total{model="a",kind="x"} 2
n_total{model="a",kind="y"} 3
n_total{model="b",kind="x"} 5
# TYPE broken gauge
broken NaN
# TYPE share histogram
share_bucket{model="a",le="0.05"} 1
share_bucket{model="a",le="0.1"} 1
share_bucket{model="a",le="+Inf"} 2
share_sum{model="a"} 0.29
share_bucket{model="b",le="0.05"} 0
share_bucket{model="b",le="0.1"} 4
share_bucket{model="b",le="+Inf"} 4
share_sum{model="b"} 0.3
"""


def test_what_has_the_labels_counts_together():
    samples = Samples(TEXT)
    assert samples.total("n_total") == 10
    assert samples.total("n_total", {"kind": "x"}) == 7
    assert samples.by("model", "n_total", {"kind": "x"}) == {"a": 2, "b": 5}
    assert samples.values("n_total", {"model": "a"}) == [2, 3]


def test_absent_is_not_zero():
    samples = Samples(TEXT)
    assert samples.total("n_total", {"model": "c"}) is None
    assert samples.total("broken") is None
    assert not samples.has("other")


def test_histograms_add_up_and_shares_become_whole_numbers():
    both = Samples(TEXT).histogram("share", scale=100)
    assert [(bucket.low, bucket.high, bucket.count) for bucket in both.buckets] == [
        (0, 5, 1),
        (6, 10, 4),
        (11, None, 1),
    ]
    assert both.sum == 59


def test_what_is_no_exposition_is_refused():
    with pytest.raises(ValueError, match=r"\w"):
        Samples("<html>not found</html>")
