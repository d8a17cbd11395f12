from time import process_time

import pytest

from gateway.app.named_files import read_named_files
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings


def settings(endpoint=None, **auth):
    return Settings.model_validate(
        {"models": [{"endpoints": [{"url": "http://a:1/", **(endpoint or {})}]}], "auth": auth}
    )


def test_files_are_read_each_time(tmp_path):
    key = tmp_path / "key"
    key.write_text("one")
    given = settings({"api_key_file": key}, admin_key_file=key, keys=[{"name": "n", "key_file": key}])
    first = read_named_files(given)
    key.write_text("two")
    second = read_named_files(given)
    assert (first.admin_key, second.admin_key) == ("one", "two")
    assert [found.endpoints["a:1"].api_key for found in (first, second)] == ["one", "two"]
    assert (second.endpoints["a:1"].base_url, second.clients.authenticates) == ("http://a:1", True)


def test_thousands_of_keys_take_no_longer_than_the_reading_of_each():
    keys = [{"name": f"n{number}", "key": f"key-{number}", "limits": {"concurrent": 1}} for number in range(4000)]
    began = process_time()
    read_named_files(settings(keys=keys))
    assert process_time() - began < 10, "each key was compared with all others"


def test_a_certificate_that_cannot_be_read_is_a_fault_of_its_endpoint(tmp_path):
    with pytest.raises(ConfigurationError, match=r"^a:1: tls\.ca_file: "):
        read_named_files(settings({"url": "https://a:1", "tls": {"ca_file": tmp_path / "none"}}))


def test_certificates_are_read_for_endpoints_with_tls_alone():
    plain, secured = (read_named_files(settings({"url": f"{scheme}://a:1"})) for scheme in ("http", "https"))
    assert plain.endpoints["a:1"].tls is None
    assert secured.endpoints["a:1"].tls is not None
