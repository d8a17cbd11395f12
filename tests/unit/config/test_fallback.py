import pytest
from pydantic import ValidationError

from gateway.config.errors import ConfigurationError
from gateway.config.fallback import FallbackSettings
from gateway.config.settings import Settings
from gateway.config.sources import load


def model(name, *fallbacks, **fields):
    return {"name": name, "endpoints": [{"url": f"http://{name}"}], "fallbacks": list(fallbacks), **fields}


def settings(*models):
    return Settings.model_validate({"models": models})


def test_a_name_or_a_url_alone_is_enough():
    (first, second, third) = (
        settings(
            model(
                "a", "b", "http://127.0.0.1:9/v1", {"url": "https://x.example/v1", "api_key_file": "/k", "model": "z"}
            ),
            model("b"),
        )
        .models[0]
        .fallbacks
    )
    assert (first.model, first.elsewhere) == ("b", None)
    assert (second.model, second.elsewhere.address) == (None, "127.0.0.1:9")
    assert (third.model, str(third.elsewhere.url), str(third.elsewhere.api_key_file)) == (
        "z",
        "https://x.example/",
        "/k",
    )


def test_a_model_of_an_engine_is_known_by_what_it_launches():
    engine = {"engine": {"model": "owner/name"}}
    assert settings(model("a", "owner/name"), engine).models[0].fallbacks[0].model == "owner/name"


@pytest.mark.parametrize("url", ["http://localhost:1", "http://[::1]:1", "http://127.3.2.1"])
def test_a_server_on_this_machine_needs_neither_tls_nor_a_key(url):
    assert FallbackSettings.model_validate(url).elsewhere is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("http://x.example", "prompts and a key would go to x.example in the clear: expected https"),
        ("http://localhost.x.example", "in the clear"),
        ("https://x.example", "x.example needs a key of its own, as clients' keys are not sent there"),
        ("https://u:p@x.example", "expected no user or password"),
        ({}, "needs a `model`, a `url`, or both"),
        ({"model": "b", "api_key_file": "/k"}, "`api_key_file` is for a `url`"),
        ({"api_key": "sk-secret", "url": "https://x.example"}, "Extra inputs"),
    ],
)
def test_what_cannot_be_a_fallback_is_refused(given, said):
    with pytest.raises(ValidationError, match=said) as raised:
        FallbackSettings.model_validate(given)
    assert "sk-secret" not in str(raised.value.errors()[0]["msg"])


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ([model("a", "c"), model("b")], "the fallback 'c' of 'a' is no model here; by `name` there are: 'a', 'b'"),
        ([{"endpoints": [{"url": "http://a"}], "fallbacks": ["a"]}], "of a model without a `name` is no model here"),
        ([model("a", "a")], "'a' > 'a': a model cannot be its own fallback"),
        ([model("a", "b"), model("b", "c"), model("c", "b")], "'b' > 'c' > 'b'"),
    ],
)
def test_fallbacks_that_lead_nowhere_or_back_are_refused(models, said):
    with pytest.raises(ValidationError, match=said):
        settings(*models)


def test_two_ways_to_one_model_are_no_circle():
    assert settings(model("a", "b", "c"), model("b", "c"), model("c"))


def test_the_author_is_told_which_fallback_it_is(tmp_path):
    file = tmp_path / "kvgate.yaml"
    file.write_text("models: [{endpoints: [{url: http://a}], fallbacks: [b, http://x.example]}]")
    with pytest.raises(ConfigurationError, match=r"models\[0\]\.fallbacks\[1\].*kvgate\.yaml\): prompts and a key"):
        load({}, file)
