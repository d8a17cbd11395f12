import pytest

from gateway.admission.level import FEW, HIGHEST, LOWEST, SETTLING, SPAN, TOP, USUAL, Level

START = Level(0.96).value


def test_it_starts_above_the_middle_and_lower_where_more_of_the_cache_is_left_free():
    assert 0.5 < Level(0.96).value < HIGHEST
    assert LOWEST < Level(0.90).value < Level(0.96).value
    assert Level(0.50).value == LOWEST


def test_its_range_reaches_from_its_value_to_the_top():
    level = Level(0.96)
    assert level.at(0.0, USUAL) == pytest.approx(level.value)
    assert level.value < level.at(0.5, USUAL) < TOP
    assert level.at(1.0, USUAL) == TOP


def test_the_fewer_are_in_flight_the_more_cautious_it_is():
    level = Level(0.96)
    lower = [level.at(0.0, sequences) for sequences in (1, FEW, USUAL, 4 * USUAL, 64 * USUAL)]
    assert lower[0] == lower[1]
    assert sorted(lower[1:], reverse=True) == lower[1:]
    assert lower[-1] < level.value < lower[1] <= TOP


def test_it_stays_as_it_is_until_there_are_half_as_many_or_twice():
    level = Level(0.96)
    assert level.at(0.5, USUAL) == level.at(0.5, 2 * USUAL - 1) > level.at(0.5, 2 * USUAL)


def test_a_preemption_raises_it_once_until_that_has_shown():
    level = Level(0.96)
    level.observe(0.5, 3, 0.0, holding=False)
    assert level.value == START  # those before were not ours to prevent
    level.observe(0.5, 4, 1.0, holding=False)
    raised = level.value
    assert START < raised < HIGHEST
    level.observe(0.5, 9, 2.0, holding=False)
    assert level.value == raised
    level.observe(0.5, 10, 1.0 + SETTLING, holding=False)
    assert raised < level.value < HIGHEST


def test_so_does_a_full_cache():
    level = Level(0.96)
    level.observe(1.0, None, 0.0, holding=True)
    assert level.value > START


def test_work_held_back_from_a_cache_with_room_at_its_fullest_lowers_it_slowly_to_a_bound():
    level = Level(0.96)
    for second in range(int(SPAN) + 1):
        level.observe(0.5, 0, float(second), holding=True)
    assert START - 0.1 < level.value < START
    for second in range(6000):
        level.observe(0.5, 0, 100.0 + second, holding=True)
    assert level.value == LOWEST


def test_one_full_moment_in_a_span_keeps_it():
    level = Level(0.96)
    for second in range(200):
        level.observe(0.96 if second % 10 == 0 else 0.6, 0, float(second), holding=True)
    assert level.value == START


def test_an_endpoint_that_holds_nobody_back_teaches_nothing():
    level = Level(0.96)
    for second in range(100):
        level.observe(0.3, 0, float(second), holding=False)
    assert level.value == START


def test_another_share_moves_the_start_and_keeps_what_was_learned():
    level, other = Level(0.90), Level(0.96)
    level.fill(0.96)
    assert level.value == pytest.approx(other.value)
    level.observe(0.99, None, 10.0, holding=False)
    raised = level.value - other.value
    assert raised > 0
    level.fill(0.90)
    assert level.value == pytest.approx(Level(0.90).value + raised)
    level.fill(0.2)
    assert level.value == 0
