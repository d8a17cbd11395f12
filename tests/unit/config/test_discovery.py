import re

import pytest
from pydantic import ValidationError

from gateway.config.discovery import DiscoverySettings


def discovered(**source):
    return DiscoverySettings.model_validate(source)


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
