import sys
from hashlib import sha256

import pytest

from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve.checks import check, preflight
from tests.unit.engine.hub import hub


def settings(*models):
    return Settings.model_validate({"models": [*models]})


def test_a_model_that_cannot_be_had_is_a_matter_of_configuration_with_the_way_out(tmp_path, monkeypatch):
    with hub(tmp_path) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        refused = settings({"name": "chat", "engine": {"model": "org/gated"}})
        with pytest.raises(ConfigurationError, match=r"(?s)model chat: org/gated is gated.*HF_TOKEN"):
            preflight(refused)


def test_a_gguf_file_is_looked_at_as_a_llama_server_would(tmp_path):
    file = tmp_path / "chat.gguf"
    with pytest.raises(ConfigurationError, match=r"(?s)model .*chat.gguf: there is no file .*Correct the path"):
        preflight(settings({"engine": {"model": str(file)}}))
    file.write_bytes(b"GGUF\x03")
    preflight(settings({"engine": {"model": str(file)}}))


def test_an_engines_own_environment_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    offline = settings({"engine": {"model": "org/m", "env": {"HF_HUB_OFFLINE": "1"}}})
    with pytest.raises(ConfigurationError, match="is not in the hub cache"):
        preflight(offline)


def test_models_that_run_elsewhere_are_not_looked_at(tmp_path, monkeypatch):
    with hub(tmp_path) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigurationError, match="has no model org/gone"):
            preflight(settings({"name": "org/gone", "engine": {"model": "org/gone"}}))
        preflight(settings({"name": "org/gone", "endpoints": [{"url": "http://a:1"}]}))


def test_a_chat_template_that_cannot_be_read_is_found_before_anything_starts(tmp_path):
    gone = str(tmp_path / "gone.jinja")
    for model in (
        {"endpoints": [{"url": "http://a:1"}], "chat_template": gone},
        {"engine": {"model": str(tmp_path)}, "chat_template": gone},
        {"engine": {"model": str(tmp_path), "args": ["--chat-template", gone]}},
    ):
        with pytest.raises(ConfigurationError, match=r"gone.jinja': cannot be read"):
            preflight(settings(model))


def test_an_event_log_that_cannot_be_written_is_found_before_anything_starts(tmp_path):
    def with_log(file):
        served = {"models": [{"endpoints": [{"url": "http://a:1"}]}], "admission": {"event_log": str(file)}}
        check(Settings.model_validate(served))

    with_log(tmp_path / "new.jsonl")
    assert list(tmp_path.iterdir()) == [], "it is only looked at"
    with pytest.raises(ConfigurationError, match=r"admission\.event_log = .*no/such': no such folder to write in"):
        with_log(tmp_path / "no" / "such")
    with pytest.raises(ConfigurationError, match="it is a folder"):
        with_log(tmp_path)
    (tmp_path / "old.jsonl").touch()
    with_log(tmp_path / "old.jsonl")


def test_a_tiers_secret_that_cannot_be_used_is_found_before_anything_starts(tmp_path):
    tier = {"redis": "redis://h", "advertise": "h:1", "key_file": str(tmp_path / "missing")}
    served = {"models": [{"endpoints": [{"url": "http://a:1"}]}], "tier": tier}
    with pytest.raises(ConfigurationError, match=r"tier\.key_file: .*missing: cannot read the key"):
        check(Settings.model_validate(served))
    (tmp_path / "missing").write_text("0123456789abcdef" * 2)
    (tmp_path / "missing").chmod(0o600)
    check(Settings.model_validate(served))


def test_a_tier_launches_no_engine_that_only_one_of_its_gateways_would_reach(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    tier = {"redis": "redis://h", "advertise": "h:1", "key_file": str(tmp_path / "key")}
    comes = {"model": "m", "on_demand": True, "at": "h:2"}
    for model, said in (
        ({"engine": {"model": "m"}}, "model m: in a tier every gateway reaches every engine"),
        ({"engine": {"model": "m", "on_demand": True}}, "give it `at` and `on_demand`"),
        ({"engine": comes}, "model m: it needs a `name`"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            check(Settings.model_validate({"models": [model], "tier": tier}))
    named = {"models": [{"name": "n", "engine": comes}]}
    check(Settings.model_validate({**named, "tier": tier}))
    with pytest.raises(ConfigurationError, match="`at` of its engine is for a `tier`"):
        check(Settings.model_validate(named))


def test_an_engine_needs_a_python_that_is_there(tmp_path):
    def described(python):
        return Settings.model_validate({"models": [{"engine": {"model": "m", "python": str(python)}}]})

    check(described(sys.executable))
    with pytest.raises(ConfigurationError, match=r"model m: `python` of its engine is .*/none', which is no program"):
        check(described(tmp_path / "none"))


def test_the_files_of_an_engine_that_another_gateway_launches_are_not_looked_for(tmp_path):
    engine = {"model": str(tmp_path / "nothing.gguf"), "on_demand": True}
    tier = {"redis": "redis://h", "advertise": "here:1", "key_file": "/key"}

    def described(at):
        return Settings.model_validate({"models": [{"name": "n", "engine": {**engine, "at": at}}], "tier": tier})

    with pytest.raises(ConfigurationError, match=r"nothing\.gguf"):
        preflight(described("here:2"))
    preflight(described("there:2"))


def test_two_clients_may_not_have_one_key_however_it_is_written():
    secret = sha256(b"secret").hexdigest()
    models = [{"endpoints": [{"url": "http://a:1"}]}]
    keys = [{"name": "a", "key": "secret"}, {"name": "b", "key_sha256": sha256(b"other").hexdigest()}]
    check(Settings.model_validate({"models": models, "auth": {"keys": keys}}))
    keys.append({"name": "c", "key_sha256": secret})
    with pytest.raises(ConfigurationError, match=r"auth.keys\[2\]: it is the same key as auth.keys\[0\]"):
        check(Settings.model_validate({"models": models, "auth": {"keys": keys}}))


def test_certificates_are_read_only_where_an_endpoint_names_some(monkeypatch):
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: pytest.fail(f"{cafile} was read"))
    check(settings({"endpoints": [{"url": f"{scheme}://{scheme}:1"} for scheme in ("http", "https")]}))
