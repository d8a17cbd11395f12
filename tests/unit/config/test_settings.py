import pytest
from pydantic import BaseModel, ValidationError

from gateway.config.settings import Settings


def sections(model, path=()):
    """Every section of the settings, with the path to it."""
    yield path, model
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind, (*path, name))


def test_every_setting_says_what_it_is_for():
    for path, model in sections(Settings):
        for name, field in model.model_fields.items():
            assert field.description, (*path, name)
            assert field.description.rstrip(")`").endswith((".", "one")) or field.description.endswith("."), (
                path,
                name,
            )


def test_no_section_takes_an_unknown_key_or_changes_after_it_was_read():
    for path, model in sections(Settings):
        assert model.model_config["extra"] == "forbid", path
        assert model.model_config["frozen"], path


def test_nothing_is_read_behind_the_back_of_the_sources(monkeypatch):
    monkeypatch.setenv("KVGATE_SERVER__PORT", "1")
    assert Settings().server.port == 8080


def test_a_model_awaits_endpoints_until_one_is_found():
    sought = {"discover": [{"file": "/f"}]}
    assert Settings.model_validate({"models": [sought]}).awaits_endpoints
    assert not Settings.model_validate({"models": [{**sought, "endpoints": [{"url": "http://a:1"}]}]}).awaits_endpoints
    assert not Settings.model_validate({"models": [{"engine": {"model": "m"}}]}).awaits_endpoints


def test_no_two_endpoints_have_one_address():
    models = [{"endpoints": [{"url": "http://h:1"}]}, {"endpoints": [{"url": "http://h:1/gw"}]}]
    with pytest.raises(ValidationError, match="two endpoints cannot share an address: h:1"):
        Settings.model_validate({"models": models})


def test_no_adapter_has_the_name_of_a_model():
    models = [
        {"name": "a", "endpoints": [{"url": "http://h:1"}], "lora": [{"name": "b", "path": "/b"}]},
        {"name": "b", "endpoints": [{"url": "http://h:2"}]},
    ]
    with pytest.raises(ValidationError, match="an adapter cannot have the name of a model: b"):
        Settings.model_validate({"models": models})


def test_a_model_is_somewhere():
    with pytest.raises(ValidationError, match="a model needs `endpoints`, `discover` or an `engine`"):
        Settings.model_validate({"models": [{"name": "m"}]})
