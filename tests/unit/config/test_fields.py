import pytest
from pydantic import ValidationError

from gateway.config.endpoint import EndpointSettings
from gateway.config.settings import ServerSettings


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
