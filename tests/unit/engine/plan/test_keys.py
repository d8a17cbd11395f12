import pytest

from engine.plan.keys import UnknownShapeError, first_integer, integer, named


def test_the_first_name_that_is_there_counts() -> None:
    assert integer({"n_embd": 768}, "hidden_size") == 768
    assert integer({"n_embd": 768, "hidden_size": 1024}, "hidden_size") == 1024


def test_a_list_tells_by_its_first() -> None:
    assert first_integer({"intermediate_size": [16384, 8192]}, ("intermediate_size",)) == 16384


@pytest.mark.parametrize("value", [None, True, "many", [], {}])
def test_what_is_no_number_is_missing(value: object) -> None:
    assert first_integer({"a": value}, ("a",), default=7) == 7
    with pytest.raises(UnknownShapeError, match="`a`"):
        first_integer({"a": value}, ("a",))


def test_a_model_is_called_by_what_its_config_says() -> None:
    assert named({"architectures": ["XForCausalLM"]}, "x") == "XForCausalLM, model type x"
    assert named({}, "") == "no architecture named, model type not named"
