import time

import pytest

from gateway.tokens.encoding_time import encoding_seconds
from gateway.tokens.interruption import TooMuchHereError, limited
from gateway.tokens.render import Renderer

WORDS = "It was the best of times, it was the worst of times in 1859. "


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("", 0.0, 0.0),
        (WORDS * 64, 0.003, 0.005),
        ("Es war die beste Zeit, für alle. " * 64, 0.003, 0.005),
        ("\ufdfa" * 5000, 0.02, 0.03),
        ("1234567890" * 100 + "x", 0.016, 0.018),
        ("1234567890" * 6000, 55.0, 60.0),
        (WORDS + "1234567890" * 6000 + WORDS, 55.0, 60.0),
        ("1234567890 " * 6000, 0.05, 0.1),
        (("1" * 999 + "x") * 60, 0.9, 1.1),
        ("\ud800" * 100, 0.0, 0.001),
    ],
)
def test_it_grows_with_the_text_and_with_the_square_of_its_runs_of_digits(text, least, most):
    assert least <= encoding_seconds(text) <= most


@pytest.mark.parametrize("before", range(64))
def test_no_long_run_is_missed(before):
    of_pairs = encoding_seconds("a" * before + "1" * 64 + "a" * 100) - encoding_seconds("a" * (before + 164))
    assert of_pairs == pytest.approx(64**2 * 16e-9)


@pytest.mark.parametrize("run", [1, 31, 63, 64, 999, 60_000])
def test_it_is_found_in_a_small_part_of_that_time(run):
    text = (("1" * run + "x") * 60_000)[:60_000]
    began = time.thread_time()
    encoding_seconds(text)
    assert time.thread_time() - began < 0.03


class NeverAsked:
    """A tokenizer that must not encode."""

    longest = 128
    compiled = True
    backend = None
    special_tokens: tuple[str, ...] = ()

    def template(self, _given, *, tools):
        assert tools in {True, False}

    def encode(self, _text, *, special):
        raise AssertionError(special)


def test_what_would_take_too_long_is_not_begun():
    with limited(0.25), pytest.raises(TooMuchHereError):
        Renderer(NeverAsked()).count_text("1234567890" * 6000)
