import pytest

from gateway.wire.shown import LONGEST, shown


@pytest.mark.parametrize("name", ["gpt-4o", "org/Modell-7B", "模型", "a" * LONGEST, ""])
def test_an_ordinary_name_is_shown_as_it_is(name: str) -> None:
    assert shown(name) == name


def test_what_a_terminal_would_obey_and_line_ends_are_replaced() -> None:
    assert shown("a\x1b[31mb\r\nc\x00\udc80\u202e") == "a\ufffd[31mb\ufffd\ufffdc\ufffd\ufffd\ufffd"


def test_a_long_text_is_cut() -> None:
    assert shown("a" * 129) == "a" * 128
    assert len(shown("\n" * 1_000_000)) == LONGEST


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-5, "-5"),
        (10**18 - 1, "9" * 18),
        (10**18, "a number out of all range"),
        (-(10**18), "a number out of all range"),
    ],
)
def test_a_number_is_shown_if_it_can_be_one(number: int, text: str) -> None:
    assert shown(number) == text


def test_a_number_that_python_refuses_to_write_is_shown_too() -> None:
    assert shown(10**5000) == "a number out of all range"
