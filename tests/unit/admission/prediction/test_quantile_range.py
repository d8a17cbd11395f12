from math import e

import pytest

from gateway.admission.prediction.quantile_range import QuantileRange
from gateway.admission.tuning import TUNING

START = QuantileRange(0.96).value


def test_it_starts_above_the_middle_and_lower_where_more_of_the_cache_is_left_free():
    assert 0.5 < QuantileRange(0.96).value < TUNING.quantile_top
    assert 0.0 < QuantileRange(0.90).value < QuantileRange(0.96).value
    assert QuantileRange(0.50).value == 0.0


def test_its_range_reaches_from_its_value_to_the_top():
    quantiles = QuantileRange(0.96)
    assert quantiles.at(0.0, TUNING.caution_sequences) == pytest.approx(quantiles.value)
    assert quantiles.value < quantiles.at(0.5, TUNING.caution_sequences) < TUNING.quantile_top
    assert quantiles.at(1.0, TUNING.caution_sequences) == TUNING.quantile_top


def test_the_fewer_are_in_flight_the_more_cautious_it_is():
    quantiles = QuantileRange(0.96)
    usual = TUNING.caution_sequences
    in_flight = (1, TUNING.caution_fewest, usual, 4 * usual, 64 * usual)
    lower = [quantiles.at(0.0, sequences) for sequences in in_flight]
    assert lower[0] == lower[1]
    assert sorted(lower[1:], reverse=True) == lower[1:]
    assert lower[-1] < quantiles.value < lower[1] <= TUNING.quantile_top


def test_it_stays_as_it_is_until_there_are_half_as_many_or_twice():
    quantiles = QuantileRange(0.96)
    usual = TUNING.caution_sequences
    assert quantiles.at(0.5, usual) == quantiles.at(0.5, 2 * usual - 1) > quantiles.at(0.5, 2 * usual)


def test_each_scrape_with_preemptions_raises_it_and_those_before_the_first_were_not_ours():
    quantiles = QuantileRange(0.96)
    quantiles.observe(0.5, 3, 0.0)
    assert quantiles.value == START
    quantiles.observe(0.5, 4, 1.0)
    raised = quantiles.value
    assert START < raised < TUNING.quantile_top
    quantiles.observe(0.5, 9, 2.0)
    assert raised < quantiles.value < TUNING.quantile_top


def test_a_full_cache_raises_it_never_over_the_top():
    quantiles = QuantileRange(0.96)
    quantiles.observe(1.0, None, 0.0)
    assert quantiles.value > START
    for second in range(1000):
        quantiles.observe(1.0, None, 1.0 + second)
    assert 0.9 < quantiles.value <= TUNING.quantile_top


def test_it_comes_back_slowly():
    quantiles = QuantileRange(0.96)
    quantiles.observe(1.0, None, 0.0)
    raised = quantiles.value - START
    quantiles.observe(0.5, None, TUNING.caution_fade)
    assert quantiles.value - START == pytest.approx(raised / e)
    quantiles.observe(0.5, None, 20 * TUNING.caution_fade)
    assert quantiles.value == pytest.approx(START)


def test_another_share_moves_the_lower_end_and_keeps_what_was_raised():
    quantiles = QuantileRange(0.90)
    quantiles.fill(0.96)
    assert quantiles.value == START
    quantiles.observe(0.99, None, 10.0)
    raised = quantiles.value - START
    quantiles.fill(0.90)
    assert quantiles.value == pytest.approx(QuantileRange(0.90).value + raised)
    quantiles.fill(0.2)
    assert quantiles.value == 0
