import pytest

from gateway.ops import returns as module
from gateway.ops.returns import FORGOTTEN, Returns


@pytest.fixture
def returns():
    return Returns()


def test_who_was_refused_is_known_again_once(returns):
    returns.refused(7, "first", 0.0)
    assert returns.came(7, 1.0) == "first"
    assert returns.came(7, 2.0) is None


def test_each_of_several_equal_ones_returns(returns):
    returns.refused(7, "first", 0.0)
    returns.refused(7, "second", 0.0)
    assert [returns.came(7, 1.0) for _ in range(3)] == ["first", "second", None]


def test_another_is_new(returns):
    returns.refused(7, "first", 0.0)
    assert returns.came(8, 1.0) is None


def test_one_without_a_key_is_always_new(returns):
    returns.refused(0, "first", 0.0)
    assert returns.came(0, 1.0) is None


def test_after_a_while_an_equal_one_is_new(returns):
    returns.refused(7, "old", 0.0)
    returns.refused(7, "young", 10.0)
    assert returns.came(7, FORGOTTEN + 5.0) == "young"
    assert returns.came(7, FORGOTTEN + 5.0) is None


def test_only_so_many_are_remembered(returns, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    for key in range(1, 6):
        returns.refused(key, key, 0.0)
    assert [returns.came(key, 0.0) for key in range(1, 6)] == [None, None, 3, 4, 5]
    for key in range(1, 10):
        returns.refused(1, key, 1.0)
        assert returns.came(1, 1.0) == key
    assert not returns._refused
    assert len(returns._order) == 3
