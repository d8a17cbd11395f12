from itertools import chain

import pytest

from loadtests.palette import BACKGROUNDS, KNOWN, OTHERS, colours

GRAPHIC = 3.0
"""The least contrast of a line to what it is drawn on: WCAG 2.2, 1.4.11."""


def luminance(colour: str) -> float:
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("colour", [*chain(KNOWN.values(), OTHERS)])
def test_every_colour_is_seen_by_day_and_by_night(colour, background):
    dark, light = sorted((luminance(colour), luminance(background)))
    assert (light + 0.05) / (dark + 0.05) >= GRAPHIC


def test_a_known_name_has_its_colour_on_every_page():
    assert colours(["kvgate"])["kvgate"] == colours(["mine", "limited", "kvgate", "direct"])["kvgate"]


def test_no_two_share_a_colour_however_many_there_are():
    names = [f"target {number}" for number in range(20)]
    for subjects in (names, [*names, "kvgate"], ["direct", *names[:5]]):
        found = colours(subjects)
        assert set(found) == set(subjects)
        assert len(set(found.values())) == len(subjects)
