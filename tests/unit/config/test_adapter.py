import pytest
from pydantic import ValidationError

from gateway.config.settings import ModelSettings


def model(*names, **fields):
    lora = [{"name": name, "path": f"/{name}"} for name in names]
    return ModelSettings.model_validate({"endpoints": [{"url": "http://a"}], "lora": lora, **fields})


def test_adapters_have_names_and_paths():
    assert [(one.name, one.path) for one in model("a", "org/b-1.2").lora] == [("a", "/a"), ("org/b-1.2", "/org/b-1.2")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "a"), "each adapter needs a name of its own: a"),
        (("m",), "each adapter needs a name of its own: m"),
        (("a=b",), "String should match"),
        (("",), "String should match"),
        (("{}",), "String should match"),
    ],
)
def test_a_name_that_tells_nothing_apart_or_breaks_a_command_line_is_refused(names, said):
    with pytest.raises(ValidationError, match=said):
        model(*names, name="m")
