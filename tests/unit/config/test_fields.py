import math

import pytest
from pydantic import ValidationError

from gateway.config.endpoint import EndpointSettings
from gateway.config.fields import (
    Key,
    OptionalSeconds,
    OptionalTokens,
    Port,
    Seconds,
    Section,
    Share,
    is_loopback,
    usable_key,
)
from gateway.config.settings import ServerSettings


class Kinds(Section):
    seconds: Seconds = 1.0
    optional: OptionalSeconds = 1.0
    tokens: OptionalTokens = 1
    port: Port = 1
    share: Share = 1.0
    key: Key | None = None


@pytest.mark.parametrize(
    "wrong",
    [
        *({"seconds": value} for value in (0, -1, math.inf, math.nan, "none")),
        *({"optional": value} for value in (0, "some")),
        *({"tokens": value} for value in (0, 1.5)),
        *({"port": value} for value in (-1, 65536)),
        *({"share": value} for value in (0, 1.1)),
        *({"key": value} for value in ("", " ", "two\nlines", "schl\u00fcssel")),
        {"unknown": 1},
    ],
)
def test_what_no_setting_of_its_kind_can_be_is_refused(wrong):
    with pytest.raises(ValidationError):
        Kinds(**wrong)


def test_what_may_be_absent_is_written_as_none_where_there_is_no_null():
    kinds = Kinds(optional="none", tokens="none")
    assert (kinds.optional, kinds.tokens) == (None, None)


def test_a_key_is_what_a_header_can_hold_without_the_space_around_it():
    assert usable_key(" k \n") == Kinds(key=" k \n").key.get_secret_value() == "k"


def test_a_section_is_checked_by_default_too_and_never_changes():
    class Wrong(Section):
        port: Port = -1

    with pytest.raises(ValidationError):
        Wrong()
    with pytest.raises(ValidationError, match="frozen"):
        Kinds().port = 2


@pytest.mark.parametrize("text", ["unix:/run/vllm.sock", "unix:///run/vllm.sock", " unix:/run/vllm.sock "])
def test_a_unix_socket_is_an_endpoint_of_one_name(text):
    endpoint = EndpointSettings.model_validate({"url": text})
    assert (endpoint.address, endpoint.unix) == ("unix:/run/vllm.sock", "/run/vllm.sock")
    assert EndpointSettings.model_validate({"url": str(endpoint.url)}) == endpoint


@pytest.mark.parametrize(
    "text", ["unix:", "unix:run/vllm.sock", "unix:/run/a b", "unix:/run/%41", "unix:/run/", "unix://h/x"]
)
def test_what_is_no_socket_s_path_is_refused(text):
    for section, field in ((EndpointSettings, "url"), (ServerSettings, "host")):
        with pytest.raises(ValidationError, match="expected the whole path of a socket"):
            section.model_validate({field: text})


def test_a_path_longer_than_the_kernel_takes_is_refused():
    EndpointSettings.model_validate({"url": f"unix:/{'a' * 106}"})
    with pytest.raises(ValidationError, match="at most 107 characters"):
        EndpointSettings.model_validate({"url": f"unix:/{'a' * 107}"})


@pytest.mark.parametrize("mode", ["660", "0600"])
def test_a_mode_is_that_of_a_file(mode):
    assert ServerSettings(socket_mode=mode).socket_mode == mode


@pytest.mark.parametrize("mode", ["rw", "6", "888", "7777", 660])
def test_a_mode_that_may_mean_something_else_is_refused(mode):
    with pytest.raises(ValidationError, match=r"mode of a file|valid string"):
        ServerSettings.model_validate({"socket_mode": mode})


def test_tls_needs_both_files_and_an_address():
    with pytest.raises(ValidationError, match="go together"):
        ServerSettings.model_validate({"tls_cert": "/c"})
    with pytest.raises(ValidationError, match="goes with an address"):
        ServerSettings.model_validate({"tls_cert": "/c", "tls_key": "/k", "host": "unix:/run/kvgate.sock"})


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.9", False), ("gpu", False)],
)
def test_only_loopback_addresses_are_taken(host, is_one):
    assert is_loopback(host) is is_one


@pytest.mark.parametrize("origin", ["https://chat.example.com", "http://localhost:3000", "app://obsidian.md", "*"])
def test_a_page_is_let_in_by_its_origin(origin):
    assert ServerSettings(allowed_origins=[origin]).allowed_origins == (origin,)


@pytest.mark.parametrize("origin", ["chat.example.com", "https://chat.example.com/", "https://", "https://a b", ""])
def test_what_no_browser_calls_an_origin_is_refused(origin):
    with pytest.raises(ValidationError, match="origin"):
        ServerSettings.model_validate({"allowed_origins": [origin]})
