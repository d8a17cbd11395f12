from copy import deepcopy

import pytest
from fastapi import FastAPI

from gateway.relay.openapi import with_data_plane
from gateway.relay.routes import ROUTES, Action
from gateway.wire.fields import MAX_TOKENS_FIELDS, REFUSED_FIELDS
from gateway.wire.request import Api


def document(*, authenticates=False):
    return with_data_plane(minimal, authenticates=authenticates)()


def minimal():
    return {"paths": {"/livez": {"get": {}}}, "components": {"schemas": {"Status": {}}}}


def operation(route, described):
    return described["paths"][route.path.replace("*", "{rest}")][route.method.lower()]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_described_with_its_errors(route):
    told = operation(route, document())
    assert {"200", "400", "401", "404", "413", "429", "500", "502", "503", "504"} <= told["responses"].keys()
    assert "499" not in told["responses"], "nobody is told so"
    assert [parameter["name"] for parameter in told.get("parameters", ())] == ["rest"] * route.path.endswith("*")
    streams = "text/event-stream" in told["responses"]["200"]["content"]
    assert streams is (route.action is Action.ADMIT)
    assert "security" not in told


@pytest.mark.parametrize("route", [route for route in ROUTES if route.action is Action.ADMIT], ids=lambda r: r.path)
def test_what_is_admitted_says_what_its_body_needs(route):
    schema = operation(route, document())["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) <= schema["properties"].keys()
    assert ("max_tokens" in schema["required"]) is (route.api is Api.MESSAGES)
    for name in MAX_TOKENS_FIELDS[route.api]:
        assert schema["properties"][name] == {"type": "integer", "minimum": 1}
    for name in REFUSED_FIELDS:
        assert f"`{name}`" in schema["description"]
        assert name not in schema["properties"]


def test_what_is_no_json_has_no_body_described():
    told = document()
    bodies = {f"{route.method} {route.path}" for route in ROUTES if "requestBody" in operation(route, told)}
    assert "POST /tokenize" in bodies
    assert not {"POST /v1/audio/*", "POST /v1/responses/*", "GET /v1/models"} & bodies


def test_errors_have_the_shape_of_their_api():
    told = document()
    for route in ROUTES:
        content = operation(route, told)["responses"]["429"]["content"]["application/json"]
        names = [shape["$ref"].rpartition("/")[2] for shape in content.get("schema", {}).get("anyOf", ())]
        if route.action in {Action.RELAY, Action.LOOK_UP, Action.FOLLOW}:
            assert names == [], "an engine may answer by itself"
        else:
            assert ("AnthropicClientError" in names) is (route.api is Api.MESSAGES)
            assert names[0] == "ClientError"
        assert set(names) <= told["components"]["schemas"].keys()


def test_where_clients_need_a_key_each_route_says_so():
    told = document(authenticates=True)
    assert told["components"]["securitySchemes"]["ClientKey"]["scheme"] == "bearer"
    assert all(operation(route, told)["security"] == [{"ClientKey": []}] for route in ROUTES)


def test_the_document_of_an_application_is_completed_once_and_keeps_what_it_had():
    app = FastAPI()

    @app.get("/livez", response_model=dict[str, str])
    def livez(strict: int = 0): ...

    generate = with_data_plane(app.openapi, authenticates=True)
    first = deepcopy(generate())
    assert "get" in first["paths"]["/livez"]
    assert "HTTPValidationError" in first["components"]["schemas"]
    assert generate() == first
