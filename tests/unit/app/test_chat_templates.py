from pathlib import Path

import pytest

from gateway.app.chat_templates import chat_template, template_of
from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def model(given: str | Path | None) -> ModelSettings:
    return ModelSettings.model_validate(
        {"endpoints": [{"url": "http://a:1"}], "chat_template": None if given is None else str(given)}
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    return file


def test_a_file_is_read_and_a_template_is_taken_as_it_is(file: Path) -> None:
    assert chat_template(model(file)) == chat_template(model(TEMPLATE)) == TEMPLATE
    assert chat_template(model("{{ messages }}" * 1000)) == "{{ messages }}" * 1000
    assert chat_template(model(None)) is None


def test_a_file_that_is_missing_or_no_template_is_a_matter_of_configuration(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.jinja", tmp_path / "binary.jinja"
    broken.write_text("one\n{% for message in %}")
    binary.write_bytes(b"\xff\xfe\x00")
    for given, said in (
        (tmp_path / "gone.jinja", "gone.jinja': cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
        (broken, "broken.jinja': not a Jinja template: line 2: "),
        (binary, "binary.jinja': expected a template, this is not text"),
        ("{% if %}", "a template.: not a Jinja template: line 1"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            chat_template(model(given))


def test_an_engines_template_is_the_models_where_that_has_none(file: Path, tmp_path: Path) -> None:
    assert template_of(model(None), None) is None
    assert template_of(model(None), str(file)) == str(file)
    assert template_of(model(None), TEMPLATE) == TEMPLATE
    assert template_of(model("mine.jinja"), str(file)) == "mine.jinja"
    gone = str(tmp_path / "gone.jinja")
    assert template_of(model(None), gone) == gone


def test_a_template_of_vllms_own_is_known_to_the_engine_only() -> None:
    assert template_of(model(None), "template_chatml.jinja") is None
