"""What people put in the place of a vLLM's URL, and what they are told."""

import pytest

from gateway.endpoints.identity import KVGATE
from gateway.endpoints.mistakes import helps, mistaken
from gateway.endpoints.replies import NoReply, Reply


def reply(status=200, body=b""):
    return Reply(status, body, 0.0)


ABSENT = reply(404, b"<html>")
VLLM = reply(200, b'{"data":[{"id":"m","max_model_len":8}]}')
OTHER = reply(200, b'{"data":[{"id":"llama3"}]}')


@pytest.mark.parametrize(
    ("url", "models", "version", "said"),
    [
        ("http://h:1/", ABSENT, ABSENT, "this is no vLLM: it knows neither /health nor /v1/models"),
        ("http://h:1/api", ABSENT, ABSENT, "is its path right? Without it: http://h:1"),
        ("http://h:1/", reply(200, b"<html>"), ABSENT, "this is no vLLM: /v1/models answered no list of models"),
        ("http://h:1/", OTHER, ABSENT, "this is an OpenAI API, but no vLLM: /v1/models tells no max_model_len"),
        ("http://h:1/", VLLM, reply(200, b'{"version":"1","name":"kvgate"}'), KVGATE),
        ("http://h:1/", ABSENT, reply(200, b'{"version":"1","name":"kvgate"}'), KVGATE),
        ("http://h:1/", VLLM, reply(200, b'{"version":"0.32.0"}'), None),
        ("http://h:1/", reply(500), ABSENT, None),
        ("http://h:1/", NoReply("gone", refused=True), NoReply("gone", refused=True), None),
    ],
)
def test_what_is_no_vllm_is_named(url, models, version, said):
    told = mistaken(url, models, version)
    assert told is None if said is None else said in told


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("cannot connect: All connection attempts failed", "a vLLM does when its model is loaded"),
        ("cannot connect: [Errno -2] Name or service not known", "no host of that name"),
        ("cannot connect: [Errno -3] Temporary failure in name resolution", "no host of that name"),
        ("cannot connect: [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "write http://"),
        ("cannot connect: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "tls.ca_file"),
        ("GET /health: the answer broke off, or is not HTTP", "write https://"),
        ("GET /health: no answer within 5 s", "is it stuck?"),
        ("GET /v1/models answered 401", "api_key_file"),
        ("GET /health answered 308", "give the URL it leads to"),
    ],
)
def test_what_helps_is_said_of_what_is_known(reason, remedy):
    assert remedy in helps(reason)


def test_nothing_is_said_of_what_is_not_known():
    assert helps("GET /health answered 500") is None
