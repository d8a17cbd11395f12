import math

import pytest
from pydantic import ValidationError

from gateway.config.fields import Key, OptionalSeconds, OptionalTokens, Port, Seconds, Section, Share, usable_key


class Kinds(Section):
    seconds: Seconds = 1.0
    optional: OptionalSeconds = 1.0
    tokens: OptionalTokens = 1
    port: Port = 1
    share: Share = 1.0
    key: Key | None = None


@pytest.mark.parametrize(
    "wrong",
    [
        *({"seconds": value} for value in (0, -1, math.inf, math.nan, "none")),
        *({"optional": value} for value in (0, "some")),
        *({"tokens": value} for value in (0, 1.5)),
        *({"port": value} for value in (-1, 65536)),
        *({"share": value} for value in (0, 1.1)),
        *({"key": value} for value in ("", " ", "two\nlines", "schl\u00fcssel")),
        {"unknown": 1},
    ],
)
def test_what_no_setting_of_its_kind_can_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        Kinds(**wrong)


def test_what_may_be_absent_is_written_as_none_where_there_is_no_null():
    kinds = Kinds(optional="none", tokens="none")
    assert (kinds.optional, kinds.tokens) == (None, None)


def test_a_key_is_what_a_header_can_hold_without_the_space_around_it():
    assert usable_key(" k \n") == Kinds(key=" k \n").key.get_secret_value() == "k"


def test_a_section_is_checked_by_default_too_and_never_changes():
    class Wrong(Section):
        port: Port = -1

    with pytest.raises(ValidationError):
        Wrong()
    with pytest.raises(ValidationError, match="frozen"):
        Kinds().port = 2
