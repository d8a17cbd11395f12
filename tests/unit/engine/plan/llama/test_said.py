import pytest

from engine.plan.llama.said import Said, UnknownModelError
from tests.unit.engine.plan.llama.models import described


def said(**values):
    return Said(described({"general.architecture": "llama"} | {f"llama.{key}": one for key, one in values.items()}, []))


def test_one_value_stands_for_all_layers():
    assert said(heads=8).each("heads", 3) == (8, 8, 8)
    assert said(heads=[8, 4, 2, 1]).each("heads", 3) == (8, 4, 2)


def test_of_several_values_the_most_is_the_one():
    assert said(heads=[8, 16, 2]).number("heads") == 16


def test_what_it_does_not_say_is_the_default():
    assert not said().has("heads")
    assert said().number("heads", 5) == 5
    assert said(heads=0).has("heads")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "does not say its llama.heads"),
        ([], "does not say its llama.heads"),
        ("eight", "says 'eight' is its llama.heads"),
        (0.5, "says 0.5 is its llama.heads"),
        (-1, "says -1 is its llama.heads"),
        (1 << 40, "that cannot be"),
        ([1, 2], "says 2 values of its llama.heads for 3 layers"),
    ],
)
def test_what_cannot_be_is_told(value, told):
    with pytest.raises(UnknownModelError, match=told):
        (said() if value is None else said(heads=value)).each("heads", 3)
