import re
from dataclasses import fields
from functools import reduce

import pytest
from pydantic import BaseModel, ValidationError

from gateway.admission.limits.standing import Limits
from gateway.admission.policy import Band, Bounds, Mode, Policy
from gateway.config.admission import AdmissionSettings
from gateway.config.live import every
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


def test_a_key_has_exactly_one_source():
    for key in ({}, {"key": "a", "key_file": "/b"}):
        with pytest.raises(ValidationError, match="exactly one"):
            Settings.model_validate({"auth": {"keys": [{"name": "a", **key}]}})


def test_the_defaults_of_the_settings_are_those_of_the_core():
    assert AdmissionSettings().to_policy(weights={}, kv_shares={}, poll_interval=1.0) == Policy()


def nested(given):
    """Settings by their names, as sections."""
    sections = {}
    for name, value in given.items():
        *path, last = name.split(".")
        reduce(lambda section, key: section.setdefault(key, {}), path, sections)[last] = value
    return sections


def test_every_setting_of_admission_reaches_the_core():
    given = {
        "mode": "observe",
        "policy": "forecast",
        "kv_high": 0.85,
        "kv_low": 0.6,
        "ttft_target": 9,
        "max_passes": 5,
        "queue.ttl": 1,
        "queue.no_endpoint_ttl": 2,
        "queue.max_requests": 3,
        "queue.max_bytes": 4,
        "bands.0.ttft_target": 1.5,
        "bands.2.reserved": 0.25,
    }
    not_of_the_core = {"queue.heartbeat", "event_log"}
    named = {re.sub(r"\.\d+\.", ".N.", name) for name in given}
    assert named | not_of_the_core == {name for name, _ in every(AdmissionSettings)}, "a new one belongs into `given`"
    settings = AdmissionSettings.model_validate(nested(given))
    policy = settings.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5)
    for name in given:
        without = AdmissionSettings.model_validate(nested({key: given[key] for key in given if key != name}))
        assert without.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5) != policy, (
            f"{name} does not reach it"
        )
    for field in fields(Policy):
        assert getattr(policy, field.name) != getattr(Policy(), field.name), f"no setting reaches {field.name}"
    assert settings.to_policy(weights={"a": 2.0}, kv_shares={"a": 0.5}, poll_interval=0.5) == Policy(
        mode=Mode.OBSERVE,
        bounds=Bounds.FORECAST,
        kv_high=0.85,
        kv_low=0.6,
        ttl=1,
        no_endpoint_ttl=2,
        max_requests=3,
        max_bytes=4,
        ttft_target=9,
        bands={0: Band(1.5, 0.0), 2: Band(None, 0.25)},
        weights={"a": 2.0},
        kv_shares={"a": 0.5},
        max_passes=5,
        poll_interval=0.5,
    )


@pytest.mark.parametrize("off", [None, "none"])
def test_a_ttft_target_can_be_turned_off(off):
    assert AdmissionSettings.model_validate({"ttft_target": off}).ttft_target is None


def test_a_flow_has_one_weight():
    keys = [{"name": "a", "key": "1", "weight": 2}, {"name": "a", "key": "2", "weight": 2}, {"name": "b", "key": "3"}]
    assert Settings.model_validate({"auth": {"keys": keys}}).auth.weights == {"a": 2.0, "b": 1.0}
    keys[1]["weight"] = 3
    with pytest.raises(ValidationError, match=r"'a' has weights 2\.0 and 3\.0"):
        Settings.model_validate({"auth": {"keys": keys}})


def test_a_tenant_has_one_set_of_limits_and_one_without_limits_has_none():
    limits = {"requests_per_minute": 5, "max_tokens": 7}
    keys = [{"name": "a", "key": "1", "limits": limits}, {"name": "a", "key": "2", "limits": limits}]
    keys.append({"name": "b", "key": "3", "limits": {"max_tokens": 7}})
    assert Settings.model_validate({"auth": {"keys": keys}}).auth.limits == {"a": Limits(5)}
    keys[0] = {**keys[0], "limits": limits | {"kv_share": 0.5}}
    with pytest.raises(ValidationError, match="'a' has different limits"):
        Settings.model_validate({"auth": {"keys": keys}})
    assert Settings.model_validate({"auth": {"keys": [keys[0], keys[2]]}}).auth.kv_shares == {"a": 0.5}
    keys[0] = {**keys[0], "limits": limits}
    keys[1] = {"name": "a", "key": "2"}
    with pytest.raises(ValidationError, match="'a' has different limits"):
        Settings.model_validate({"auth": {"keys": keys}})


@pytest.mark.parametrize("given", [{}, {"key": "1", "key_sha256": "0" * 64}, {"key_sha256": "secret"}])
def test_a_client_key_is_given_once_and_a_digest_is_one(given):
    with pytest.raises(ValidationError, match=r"exactly one|pattern"):
        Settings.model_validate({"auth": {"keys": [{"name": "a", **given}]}})


def discovered(**source):
    (model,) = Settings.model_validate({"models": [{"discover": [source]}]}).models
    return model.discover[0]


def test_a_source_of_endpoints_is_taken_as_people_write_it():
    assert str(discovered(dns="http://vllm.test:8000/v1").dns) == "http://vllm.test:8000/"
    assert discovered(srv="_vllm._tcp.test").srv == "http://_vllm._tcp.test"
    assert discovered(srv=" https://_vllm._tcp.test. ").name == "https://_vllm._tcp.test."
    for given, known in {"127.0.0.1": "127.0.0.1:53", "[::1]:8600": "[::1]:8600", "[fd00::1]": "[fd00::1]:53"}.items():
        assert discovered(srv="_a._tcp.test", nameserver=given).nameserver == known


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, "exactly one of `dns`, `srv` and `file`"),
        ({"dns": "http://a.test", "file": "/f"}, "exactly one of `dns`, `srv` and `file`"),
        ({"dns": "vllm.test:8000"}, "expected a URL with its scheme, as http://vllm.test:8000"),
        ({"dns": "http://10.0.0.1:8000"}, "10.0.0.1 is an address: it goes to `endpoints`"),
        ({"dns": "http://[::1]:8000"}, "::1 is an address"),
        ({"dns": "http://k@vllm.test"}, "expected no user or password"),
        ({"srv": "http://_vllm._tcp.test:8000"}, "expected the name of SRV records, as _vllm._tcp.example.org"),
        ({"file": "/f", "nameserver": "127.0.0.1"}, "`nameserver` goes with `dns` or `srv`"),
        ({"srv": "_a._tcp.test", "nameserver": "dns.test"}, "expected the address of a name server, as 127.0.0.1:8600"),
        ({"srv": "_a._tcp.test", "nameserver": "::1"}, "expected the address of a name server"),
        ({"file": "/f", "api_key": "k", "api_key_file": "/k"}, "at most one of `api_key` and `api_key_file`"),
        ({"file": "/f", "interval": 0}, "greater than 0"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_for_people(source, expected):
    with pytest.raises(ValidationError, match=re.escape(expected)):
        discovered(**source)


def test_an_endpoint_found_has_the_settings_of_its_source_unless_it_brings_its_own():
    source = discovered(file="/f", api_key="k", max_num_seqs=3, tls={"verify": False})
    endpoint = source.endpoint(url="http://a:1")
    assert (endpoint.max_num_seqs, endpoint.tls.verify) == (3, False)
    assert endpoint.api_key is not None
    assert endpoint.api_key.get_secret_value() == "k"
    own = source.endpoint(url="http://a:1", api_key_file="/own", max_num_seqs=4)
    assert (own.api_key, str(own.api_key_file), own.max_num_seqs) == (None, "/own", 4)


def test_a_model_awaits_endpoints_until_one_is_found():
    sought = {"discover": [{"file": "/f"}]}
    assert Settings.model_validate({"models": [sought]}).awaits_endpoints
    assert not Settings.model_validate({"models": [{**sought, "endpoints": [{"url": "http://a:1"}]}]}).awaits_endpoints
    assert not Settings.model_validate({"models": [{"engine": {"model": "m"}}]}).awaits_endpoints
