import math

import pytest

from loadtests.figures import medians, percentile, print_table, readable


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3], 0.99, 3),
        ([4, 1, 3, 2], 0.5, 2.5),
        ([1, 2, 3, 4, 5], 1.0, 5),
        ([1, 2, 3, 4, 5], 0.0, 1),
        ([0, 10], 0.99, 9.9),
    ],
)
def test_a_percentile_lies_between_the_values_around_it(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_a_percentile_of_nothing_is_no_number():
    assert math.isnan(percentile([], 0.5))


def test_medians_are_taken_figure_by_figure():
    assert medians([{"a": 1, "b": 9}, {"a": 5, "b": 7}, {"a": 2, "b": 8}]) == {"a": 2, "b": 8}


@pytest.mark.parametrize(
    ("value", "text"), [(1234567, "1,234,567"), (3382.44, "3,382"), (0.99612, "0.996"), (0.0, "0"), (float("nan"), "-")]
)
def test_figures_have_the_digits_they_deserve(value, text):
    assert readable(value) == text


def test_a_table_shows_every_row_and_column(capsys):
    print_table("title", {"direct": {"lost": 1.0}, "kvgate": {"lost": 0.0}})
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("title", "direct", "kvgate", "lost", "1", "0"))
