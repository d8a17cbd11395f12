"""The data plane's part of the OpenAPI document: the route table, with the headers and errors of kvgate itself."""

from collections.abc import Callable
from typing import Any

from gateway.admission.outcomes import Outcome
from gateway.relay.routes import ROUTES, Action, Route
from gateway.wire.errors import REFUSALS
from gateway.wire.fields import MAX_TOKENS_FIELDS, REFUSED_FIELDS
from gateway.wire.request import Api

Document = dict[str, Any]

_SUMMARIES = {
    Action.ADMIT: "Counted and admitted, then answered by an endpoint of the model.",
    Action.RELAY: "Passed to a healthy endpoint of the model.",
    Action.LOOK_UP: "Passed to a healthy endpoint of the model.",
    Action.FOLLOW: "Passed to the endpoint that made the response.",
    Action.ANSWER: "The models that are served here.",
}
_PROMPTS: dict[Api, Document] = {
    Api.CHAT: {"messages": {"type": "array", "items": {"type": "object"}}},
    Api.BATCH: {"messages": {"type": "array", "items": {"type": "array", "items": {"type": "object"}}}},
    Api.COMPLETIONS: {"prompt": {"type": ["string", "array"]}},
    Api.RESPONSES: {"input": {"type": ["string", "array"]}},
    Api.MESSAGES: {"messages": {"type": "array", "items": {"type": "object"}}},
}
_OPENAI_ERROR: Document = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR: Document = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_STATUSES = sorted({REFUSALS[outcome].status for outcome in REFUSALS if outcome is not Outcome.CLIENT_CLOSED})


def with_data_plane(generate: Callable[[], Document], *, authenticates: bool) -> Callable[[], Document]:
    """Add the data plane to an OpenAPI document.

    Args:
        generate: makes the document of all other routes; the same one each time.
        authenticates: whether clients need a key.
    """

    def openapi() -> Document:
        document = generate()
        if "ClientError" in document["components"]["schemas"]:
            return document
        document["components"]["schemas"] |= {"ClientError": _OPENAI_ERROR, "AnthropicClientError": _ANTHROPIC_ERROR}
        if authenticates:
            schemes = document["components"].setdefault("securitySchemes", {})
            schemes["ClientKey"] = {"type": "http", "scheme": "bearer", "description": "A key of `auth.keys`."}
        for route in ROUTES:
            operation = _operation(route)
            if authenticates:
                operation["security"] = [{"ClientKey": []}]
            document["paths"].setdefault(_template(route), {})[route.method.lower()] = operation
        return document

    return openapi


def _template(route: Route) -> str:
    return route.path.replace("*", "{rest}")


def _operation(route: Route) -> Document:
    operation: Document = {
        "tags": ["models"],
        "summary": _SUMMARIES[route.action],
        "operationId": f"{route.method} {route.path}",
        "responses": {"200": _good(route)} | {str(status): _bad(route) for status in _STATUSES},
    }
    if route.path.endswith("*"):
        operation["parameters"] = [{"name": "rest", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.method == "POST" and route.action is not Action.FOLLOW and not route.path.startswith("/v1/audio/"):
        content = {"application/json": {"schema": _body(route)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _body(route: Route) -> Document:
    properties: Document = {"model": {"type": "string", "description": "May be left out where one model is served."}}
    if route.action is not Action.ADMIT or route.api is None:
        return {"type": "object", "properties": properties}
    properties |= _PROMPTS[route.api]
    properties |= {"stream": {"type": "boolean"}, "stream_options": {"type": "object"}, "n": {"type": "integer"}}
    properties |= {name: {"type": "integer", "minimum": 1} for name in MAX_TOKENS_FIELDS[route.api]}
    required = [*_PROMPTS[route.api], *(["max_tokens"] if route.api is Api.MESSAGES else [])]
    refused = ", ".join(f"`{name}`" for name in REFUSED_FIELDS)
    return {
        "type": "object",
        "description": f"As the engine takes it; only an operator may set {refused}.",
        "properties": properties,
        "required": required,
    }


def _good(route: Route) -> Document:
    content: Document = {"application/json": {}}
    if route.action is Action.ADMIT:
        content["text/event-stream"] = {}
    return {"description": "The engine's own answer.", "content": content}


def _bad(route: Route) -> Document:
    if route.action not in {Action.ADMIT, Action.ANSWER}:  # an engine without this route answers by itself
        return {"description": "What went wrong.", "content": {"application/json": {}}}
    names = ["ClientError", "AnthropicClientError"] if route.api is Api.MESSAGES else ["ClientError"]
    schema = {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}
    return {"description": "What went wrong.", "content": {"application/json": {"schema": schema}}}
