import pytest

from gateway.relay.routes import ROUTES, Action, find, methods
from gateway.wire.request import Api


@pytest.mark.parametrize("route", ROUTES)
def test_every_line_of_the_table_is_found(route):
    assert find(route.method, route.path.replace("*", "x/y")) is route


def test_the_generation_apis_are_admitted():
    admitted = {route.path: route.api for route in ROUTES if route.action is Action.ADMIT}
    assert admitted == {
        "/v1/chat/completions": Api.CHAT,
        "/v1/chat/completions/batch": Api.BATCH,
        "/v1/completions": Api.COMPLETIONS,
        "/v1/responses": Api.RESPONSES,
        "/v1/messages": Api.MESSAGES,
    }


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1", "/v1/chat/completions/", "/V1/chat/completions", "/v1/audio/", "/v1/responses/", "/v1/models/",
        "/v1/audio/../../sleep", "/v1/audio/x/..", "/v1/responses/./x", "/v1/models/..", "/sleep", "/metrics",
        "//v1/models",
    ],
)  # fmt: skip
def test_what_is_not_in_the_table_is_not_found(path):
    assert find("POST", path) is None
    assert methods(path) == ()


def test_a_known_path_says_what_it_takes():
    assert methods("/v1/models") == ("GET", "HEAD")
    assert methods("/v1/responses/resp_1") == ("GET", "HEAD", "POST")
    assert find("DELETE", "/v1/responses/resp_1") is None
    assert find("GET", "/v1/models/..org/name..") is not None
