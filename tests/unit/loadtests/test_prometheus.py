import pytest

from loadtests.prometheus import Page

PAGE = Page(
    """# TYPE kv gauge
kv{engine="0",model="a"} 0.5
kv{engine="1",model="a,b} \\"c"} 0.25
plain 7
wait_bucket{le="0.01"} 3
wait_bucket{le="0.1"} 8
wait_bucket{le="+Inf"} 10
wait_count 10
wait_sum 4.5e-1
"""
)


def test_values_add_up_over_labels():
    assert PAGE.total("kv") == 0.75
    assert PAGE.highest("kv") == 0.5
    assert PAGE.total("plain") == 7


def test_what_is_missing_is_not_zero():
    with pytest.raises(KeyError):
        PAGE.total("missing")
