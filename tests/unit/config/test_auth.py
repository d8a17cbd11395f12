import pytest
from pydantic import ValidationError

from gateway.admission.limits.limit import Limits
from gateway.config.auth import AuthSettings, ClientKey


def test_a_flow_has_one_weight():
    keys = [{"name": "a", "key": "1", "weight": 2}, {"name": "a", "key": "2", "weight": 2}, {"name": "b", "key": "3"}]
    assert AuthSettings(keys=keys).weights == {"a": 2.0, "b": 1.0}
    keys[1]["weight"] = 3
    with pytest.raises(ValidationError, match=r"'a' has weights 2\.0 and 3\.0"):
        AuthSettings(keys=keys)


def test_a_tenant_has_one_set_of_limits_and_one_without_limits_has_none():
    limits = {"requests_per_minute": 5, "max_tokens": 7}
    keys = [{"name": "a", "key": "1", "limits": limits}, {"name": "a", "key": "2", "limits": limits}]
    keys.append({"name": "b", "key": "3", "limits": {"max_tokens": 7}})
    assert AuthSettings(keys=keys).limits == {"a": Limits(5)}
    keys[0] = {**keys[0], "limits": limits | {"kv_share": 0.5}}
    with pytest.raises(ValidationError, match="'a' has different limits"):
        AuthSettings(keys=keys)
    assert AuthSettings(keys=[keys[0], keys[2]]).kv_shares == {"a": 0.5}
    keys[0] = {**keys[0], "limits": limits}
    keys[1] = {"name": "a", "key": "2"}
    with pytest.raises(ValidationError, match="'a' has different limits"):
        AuthSettings(keys=keys)


@pytest.mark.parametrize(
    "given", [{}, {"key": "1", "key_file": "/k"}, {"key": "1", "key_sha256": "0" * 64}, {"key_sha256": "secret"}]
)
def test_a_client_key_is_given_once_and_a_digest_is_one(given):
    with pytest.raises(ValidationError, match=r"exactly one|pattern"):
        ClientKey(name="a", **given)


def test_there_is_one_admin_key():
    assert AuthSettings(admin_key="k").admin_key.get_secret_value() == "k"
    with pytest.raises(ValidationError, match="at most one of `admin_key` and `admin_key_file`"):
        AuthSettings(admin_key="k", admin_key_file="/k")
