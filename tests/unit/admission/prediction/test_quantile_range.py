import pytest

from gateway.admission.prediction.quantile_range import QuantileRange
from gateway.admission.tuning import TUNING

START = QuantileRange(0.96).value


def test_it_starts_above_the_middle_and_lower_where_more_of_the_cache_is_left_free():
    assert 0.5 < QuantileRange(0.96).value < TUNING.caution_most
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


def test_a_preemption_raises_it_once_until_that_has_shown():
    quantiles = QuantileRange(0.96)
    quantiles.observe(0.5, 3, 0.0, holding=False)
    assert quantiles.value == START  # those before were not ours to prevent
    quantiles.observe(0.5, 4, 1.0, holding=False)
    raised = quantiles.value
    assert START < raised < TUNING.caution_most
    quantiles.observe(0.5, 9, 2.0, holding=False)
    assert quantiles.value == raised
    quantiles.observe(0.5, 10, 1.0 + TUNING.caution_settling, holding=False)
    assert raised < quantiles.value < TUNING.caution_most


def test_a_full_cache_raises_it():
    quantiles = QuantileRange(0.96)
    quantiles.observe(1.0, None, 0.0, holding=True)
    assert quantiles.value > START


def test_work_held_back_from_a_cache_with_room_at_its_fullest_lowers_it_slowly_to_a_bound():
    quantiles = QuantileRange(0.96)
    for second in range(int(TUNING.caution_span) + 1):
        quantiles.observe(0.5, 0, float(second), holding=True)
    assert START - 0.1 < quantiles.value < START
    for second in range(6000):
        quantiles.observe(0.5, 0, 100.0 + second, holding=True)
    assert quantiles.value == 0.0


def test_one_full_moment_in_a_span_keeps_it():
    quantiles = QuantileRange(0.96)
    for second in range(200):
        quantiles.observe(0.96 if second % 10 == 0 else 0.6, 0, float(second), holding=True)
    assert quantiles.value == START


def test_an_endpoint_that_holds_nobody_back_teaches_nothing():
    quantiles = QuantileRange(0.96)
    for second in range(100):
        quantiles.observe(0.3, 0, float(second), holding=False)
    assert quantiles.value == START


def test_another_share_moves_the_start_and_keeps_what_was_learned():
    quantiles, other = QuantileRange(0.90), QuantileRange(0.96)
    quantiles.fill(0.96)
    assert quantiles.value == pytest.approx(other.value)
    quantiles.observe(0.99, None, 10.0, holding=False)
    raised = quantiles.value - other.value
    assert raised > 0
    quantiles.fill(0.90)
    assert quantiles.value == pytest.approx(QuantileRange(0.90).value + raised)
    quantiles.fill(0.2)
    assert quantiles.value == 0
