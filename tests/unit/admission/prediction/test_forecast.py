"""The peak of what is in flight, against a simulation of every step."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.prediction.forecast import End, Ends, Forecast

ROW = st.tuples(st.integers(0, 40), st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 5]))


def forecast(rows, parts=1):
    ends: Ends = {}
    for remaining, holds, grows in rows:
        end = ends.setdefault(remaining, End(0, 0))
        end.held += holds
        end.sequences += grows
    return Forecast(ends, parts)


def stepped(rows, last=None):
    """What they hold after each step up to the last, all that have not ended with it."""
    steps = range((max((row[0] for row in rows), default=0) if last is None else last) + 1)
    return max(sum(h + step * grows for r, h, grows in rows if r >= step) for step in steps)


def test_an_empty_endpoint_peaks_at_nothing():
    assert forecast(()).peak == 0
    assert forecast(()).with_request((10, 5, 1)) == 15


def test_the_peak_is_before_the_first_end_where_all_end_together():
    assert forecast([(10, 100, 1)] * 3).peak == 330


def test_those_that_end_early_make_room_for_the_growth_of_the_others():
    assert forecast([(100, 10, 1), (10, 100, 1)]).peak == max(10 + 10 + 100 + 10, 110)


@given(st.lists(ROW, max_size=12))
def test_it_is_what_a_step_by_step_count_finds(rows):
    assert forecast(rows).peak == stepped(rows)


@given(st.lists(ROW, max_size=6), st.lists(ROW, max_size=6), ROW)
def test_with_two_ends_for_each_it_is_the_mean(one, other, row):
    """Of any two sets of requests, as if each were there half."""
    both = forecast([*one, *other], parts=2)
    assert both.peak == ceil(stepped([*one, *other]) / 2)
    assert both.with_request(row) == ceil(stepped([*one, *other, row, row]) / 2)


@given(st.lists(ROW, max_size=12), ROW)
def test_with_one_more_it_is_as_if_that_had_been_there(rows, row):
    assert forecast(rows).with_request(row) == stepped([*rows, row])


@given(st.lists(ROW, max_size=12), ROW)
def test_up_to_its_end_it_counts_what_is_there_until_then(rows, row):
    assert forecast(rows).until_end(row) == stepped([*rows, row], last=row[0])
