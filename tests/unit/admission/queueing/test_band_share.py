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


def test_a_band_that_was_owed_its_service_pays_for_what_it_took_beyond():
    share = BandShare(0.25)
    share.begin(0.0)
    assert share.given(100.0, 400.0) == 1.0
    assert share.took(50.0, 400.0, 600.0) == 200.0
    assert share.due(100.0, 400.0, 100.0) == 1000.0


@pytest.mark.parametrize(("tokens", "due"), [(50.0, 1000.0), (20.0, 880.0), (0.0, 800.0), (-20.0, 720.0)])
def test_what_it_took_less_in_the_end_is_given_back(tokens, due):
    share = BandShare(0.25)
    share.begin(0.0)
    share.given(100.0, 400.0)
    share.refund(tokens, share.took(50.0, 400.0, 600.0))
    assert share.due(100.0, 400.0, 100.0) == due


def test_no_more_is_given_back_than_it_waits_for():
    share = BandShare(0.25)
    share.begin(0.0)
    share.given(100.0, 400.0)
    waits = share.took(900.0, 400.0, 80.0)
    share.refund(0.0, waits)
    assert share.due(100.0, 400.0, 100.0) == 800.0


@pytest.mark.parametrize(("began", "due"), [(100.0, 200.0), (300.0, 400.0), (500.0, 500.0)])
def test_what_another_did_not_have_in_the_end_is_no_service_that_it_waits_for(began, due):
    share = BandShare(0.5)
    share.begin(began)
    share.fell(100.0, 400.0)
    assert share.due(50.0, 400.0, 1000.0) == due


def test_a_band_that_waits_for_what_it_took_goes_on_to_wait():
    share = BandShare(0.5)
    share.begin(500.0)
    share.took(50.0, 500.0, 1e9)
    share.fell(100.0, 400.0)
    assert share.due(50.0, 400.0, 1000.0) == 400.0 + 100.0 + 100.0


def test_of_what_it_got_beyond_its_share_it_was_owed_a_part():
    share = BandShare(0.25)
    share.begin(0.0)
    assert share.given(100.0, 100.0) == 0.25
    assert share.given(100.0, 100.0) == 0.0
    assert share.given(0.0, 100.0) == 0.0


def test_it_waits_for_that_no_longer_than_it_must_and_does_not_forget_it():
    share = BandShare(0.25)
    share.begin(0.0)
    share.given(100.0, 400.0)
    for _ in range(10):
        share.took(900.0, 400.0, 4000.0)
    assert share.due(100.0, 400.0, 100.0) == 400.0 + 4000.0 + 400.0
    share.begin(800.0)
    assert share.given(100.0, 800.0) == 0.0
    assert share.due(100.0, 800.0, 100.0) == 400.0 + 4000.0 + 400.0


def test_what_is_owed_is_bounded():
    share = BandShare(0.5)
    share.begin(0.0)
    served = 1e6
    owed = (served - share.due(0.0, served, 100.0)) * 0.5
    assert owed == TUNING.band_credit * 100.0


@pytest.mark.parametrize("reserved", [0.0, TUNING.starved_share / 2])
def test_a_band_that_reserved_nothing_has_a_small_share(reserved):
    assert BandShare(reserved).share == TUNING.starved_share
