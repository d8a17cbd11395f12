import pytest

from engine.plan.hub import CheckpointError
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve.fetch import local, with_local_models


@pytest.fixture
def hub(monkeypatch):
    seen = []

    def fetched(model, environ, progress):
        seen.append((model, environ.get("HF_TOKEN")))
        if "none" in model:
            raise CheckpointError("there is none", "Name another.")
        return "/cache/m-Q4_K_M.gguf"

    monkeypatch.setattr("gateway.serve.fetch.fetched", fetched)
    return seen


def settings(*models):
    return Settings.model_validate({"models": models})


def test_a_file_of_a_hub_becomes_one_of_this_machine_and_all_else_stays(hub):
    given = settings(
        {"engine": {"model": "owner/m-GGUF:Q4_K_M", "env": {"HF_TOKEN": "t"}}},
        {"name": "b", "engine": {"model": "owner/m"}},
        {"name": "c", "endpoints": [{"url": "http://a:1"}]},
    )
    first, *others = with_local_models(given).models
    assert first.engine.model == "/cache/m-Q4_K_M.gguf"
    assert tuple(others) == given.models[1:]
    assert hub == [("owner/m-GGUF:Q4_K_M", "t")]


def test_what_cannot_be_fetched_is_told(hub):
    with pytest.raises(ConfigurationError, match=r"model owner/m-GGUF:none: there is none\nName another"):
        with_local_models(settings({"engine": {"model": "owner/m-GGUF:none"}}))


def test_other_models_are_not_looked_for(hub):
    assert local("owner/m", {}) == "owner/m"
    assert hub == []
