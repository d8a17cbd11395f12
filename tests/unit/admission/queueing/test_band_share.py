import pytest

from gateway.admission.queueing.band_share import BandShare
from gateway.admission.tuning import TUNING


def test_a_share_is_due_once_it_pays_for_the_head():
    share = BandShare(0.25)
    share.begin(1000.0)
    assert share.due(100.0, 1000.0, 100.0) == 1400.0
    share.given(100.0, 1400.0)
    assert share.due(100.0, 1400.0, 100.0) == 1800.0


def test_nothing_is_owed_for_the_time_without_anybody():
    share = BandShare(0.25)
    share.begin(0.0)
    share.begin(9000.0)
    assert share.since == 9000.0
    assert share.due(100.0, 9000.0, 100.0) == 9400.0


def test_service_beyond_its_share_is_not_held_against_a_band():
    share = BandShare(0.25)
    share.begin(0.0)
    share.given(5000.0, 5000.0)
    assert share.due(100.0, 5000.0, 100.0) == 5400.0


def test_what_is_owed_is_bounded():
    share = BandShare(0.5)
    share.begin(0.0)
    served = 1e6
    owed = (served - share.due(0.0, served, 100.0)) * 0.5
    assert owed == TUNING.band_credit * 100.0


@pytest.mark.parametrize("reserved", [0.0, TUNING.starved_share / 2])
def test_a_band_that_reserved_nothing_has_a_small_share(reserved):
    assert BandShare(reserved).share == TUNING.starved_share
