import json

import pytest
import yaml

from gateway.config.auth import AuthSettings
from gateway.config.secrets import redacted, revealed, shown
from gateway.config.settings import Settings


def test_what_a_child_is_handed_makes_the_same_settings():
    text = (
        "auth: {admin_key: hidden-1, keys: [{name: a, key_file: /tmp/k}]}\n"
        "models: [{engine: {model: m, env: {HF_TOKEN: hidden-4}, args: ['--x'], gpus: [[0, 1]]}}]\n"
    )
    settings = Settings.model_validate(yaml.safe_load(text))
    handed = json.loads(json.dumps(revealed(settings)))
    assert Settings.model_validate(handed) == settings
    assert handed["auth"]["admin_key"] == "hidden-1"


def test_the_password_of_a_tiers_redis_is_never_shown():
    tier = {"redis": "redis://u:hidden@h", "advertise": "h:1", "key_file": "/k"}
    settings = Settings.model_validate({"tier": tier})
    assert "hidden" not in json.dumps(redacted(settings))
    assert "hidden" not in repr(settings)
    assert Settings.model_validate(revealed(settings)) == settings


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        (5, ("server", "port"), " = 5"),
        ("hidden", ("auth", "keys", 0, "key"), " = ***"),
        ({"key": "hidden"}, ("auth",), ""),
        (["hidden"], ("auth", "keys"), ""),
        (AuthSettings(), ("auth",), ""),
        ("http://user:hidden@h", ("url",), " = '//***@h'"),
        ("x" * 100, ("model",), f" = '{'x' * 59}..."),
    ],
)
def test_a_wrong_value_is_shown_briefly_and_without_secrets(value, path, expected):
    assert shown(value, path) == expected
