import re

import pytest
from pydantic import ValidationError

from gateway.config.endpoint import EndpointSettings


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1/v1", "http://h:1/"),
        ("http://h:1/v1/", "http://h:1/"),
        (" http://h:1/gw/v1 ", "http://h:1/gw"),
        ("http://h:1/gw/", "http://h:1/gw/"),
        ("http://v1/", "http://v1/"),
        ("http://v1:1/v1", "http://v1:1/"),
    ],
)
def test_a_url_may_be_the_base_url_of_a_client(url, base):
    assert str(EndpointSettings(url=url).url) == base


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("h:1", "expected a URL with its scheme, as http://h:1"),
        ("user:pw@h:1", "expected a URL with its scheme, as http://h:1"),
        ("http://h:1/v1/chat/completions", "expected the base URL, http://h:1: kvgate adds the paths"),
        ("http://user@h:1/v1/models", "expected the base URL, http://h:1: kvgate adds the paths"),
        ("http://user:pw@h:1", "expected no user or password: give `api_key`"),
        ("http://h:1?a=b", "expected a base URL, without `?` and `#`"),
        (8000, "URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_for_people(url, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        EndpointSettings(url=url)


def test_an_endpoint_is_called_by_its_host_and_port():
    assert EndpointSettings(url="http://h:1/gw/v1").address == "h:1"


def test_an_endpoint_has_one_key():
    with pytest.raises(ValidationError, match="at most one of `api_key` and `api_key_file`"):
        EndpointSettings(url="http://h:1", api_key="k", api_key_file="/k")
