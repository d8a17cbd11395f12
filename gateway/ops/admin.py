"""The admin application (FastAPI, apart from the data plane): health, metrics, state, drain, explain."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from enum import Flag, auto
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.ops.explained import Explained, Explainer
from gateway.ops.metrics import content_type
from gateway.ops.on_machine import on_this_machine
from gateway.ops.pictures.broadcast import Broadcast, TooManyError
from gateway.ops.pictures.page_files import page_routes
from gateway.ops.state import EndpointState, GatewayState, StateSource, UnknownEndpointError, UnknownModelError
from gateway.wire.errors import ErrorAnswer
from gateway.wire.request import Api

_OPENMETRICS = "application/openmetrics-text"
_LOOKS = 900
"""Looks at a change of adapters, for a minute and a half: an engine may load one from a hub."""
_LOOK = 0.1
"""Seconds between two of them."""
_LONGEST_QUERY = 2048
"""Most bytes of a query."""
_LONGEST_BODY = 64 * 2**10
"""Most bytes of the body of a change."""
_BODY_TIMEOUT = 10.0
"""Seconds that such a body may take."""


class Part(Flag):
    """The routes an application serves: all on one port, or health on the main and the rest on the admin port."""

    HEALTH = auto()
    ADMIN = auto()


class Exposition(Protocol):
    """The text of `/metrics`."""

    def __call__(self, *, openmetrics: bool) -> Awaitable[bytes]:
        """Write it as OpenMetrics, if asked to and possible."""
        ...


class Error(BaseModel):
    """An error in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: Error


class Status(BaseModel):
    """The body of a good answer to a probe."""

    status: str


class Version(BaseModel):
    """Which kvgate runs."""

    version: str
    name: Literal["kvgate"] = "kvgate"
    """Tells another kvgate that this is not a vLLM."""


class OldAdapter(BaseModel):
    """A LoRA adapter of a model."""

    # A length is asked for so that half a character is refused, too: no engine could be told of it.
    model: str = Field(min_length=1, description="Name of the model.", examples=["Qwen/Qwen3-8B"])
    name: str = Field(min_length=1, description="Name of the adapter, by which clients ask for it.", examples=["sql"])


class NewAdapter(OldAdapter):
    """A LoRA adapter to be loaded."""

    path: str = Field(min_length=1, description="Its folder, as the engines find it.", examples=["/models/sql-lora"])


class AdapterStates(BaseModel):
    """How an adapter is on each endpoint of its model."""

    endpoints: dict[str, str] = Field(description="`loaded`, `unloaded`, `loading`, or why it is not loaded; by id.")


class _Refused(Exception):  # noqa: N818  # never seen by anybody: it carries an answer to the handler below
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.answer = _error(status, code, message, headers)


_NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorBody, "description": "Not ready, and why."}}
_UNAUTHORIZED: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "The admin key is missing or wrong."}
}
_FORBIDDEN: dict[int | str, dict[str, Any]] = {
    403: {"model": ErrorBody, "description": "No admin key, and not from this machine; or another site's page."}
}
_UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody, "description": "No endpoint has this id."}}
_UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorBody, "description": "No endpoint serves this model."},
    400: {"model": ErrorBody, "description": "A malformed body."},
    408: {"model": ErrorBody, "description": f"No body within {_BODY_TIMEOUT:g} s."},
    413: {"model": ErrorBody, "description": f"A body of over {_LONGEST_BODY} bytes."},
}
_NOT_EXPLAINED: dict[int | str, dict[str, Any]] = {
    status: {"description": "What the request itself would be answered.", "content": {"application/json": {}}}
    for status in (400, 404, 413, 429, 503)
}
_LONG: dict[int | str, dict[str, Any]] = {
    414: {"model": ErrorBody, "description": f"The query is over {_LONGEST_QUERY} bytes long."}
}
_FOLLOWED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    503: {"model": ErrorBody, "description": "Too many follow already."},
}
_MALFORMED: dict[int | str, dict[str, Any]] = {400: {"model": ErrorBody, "description": "A malformed parameter."}}


def admin_app(
    source: StateSource,
    exposition: Exposition,
    explainer: Explainer,
    broadcast: Broadcast,
    version: str,
    *,
    admin_key: str | None = None,
    parts: Part = Part.HEALTH | Part.ADMIN,
) -> FastAPI:
    """Build the application.

    Args:
        source: what it shows and changes.
        exposition: the text of `/metrics`.
        explainer: answers `/kvgate/explain`.
        broadcast: feeds `/kvgate/events`.
        version: kvgate's own.
        admin_key: the bearer token that `/metrics` and `/kvgate/*` require. None opens reading to everybody, and
            changes to callers on this machine.
        parts: which routes it has.
    """
    app = FastAPI(
        title="kvgate",
        summary="Health, metrics and administration of the gateway.",
        version=version,
        redoc_url=None,
        redirect_slashes=False,
    )
    if Part.HEALTH in parts:
        app.include_router(_health_routes(source, version))
    if Part.ADMIN in parts:
        app.include_router(page_routes())
        app.include_router(_reading_routes(source, exposition, explainer, broadcast, admin_key))
        app.include_router(_changing_routes(source, admin_key))
    app.add_exception_handler(_Refused, _answer_refused)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_malformed)
    app.add_exception_handler(TimeoutError, _answer_silence)
    app.add_exception_handler(Exception, _answer_failure)
    app.add_middleware(_Queries)
    app.openapi = _without_422(app.openapi)  # type: ignore[method-assign]  # FastAPI's own way to change it
    return app


def _health_routes(source: StateSource, version: str) -> APIRouter:
    router = APIRouter(tags=["health"])

    async def check_ready(*, strict: bool) -> Status:
        if source.draining:
            raise _Refused(503, "draining", "The gateway is shutting down.")
        if not source.ready:  # said at once: who decides may be out of reach, and would be asked in vain
            raise _Refused(503, "not_ready", "No endpoint has been healthy yet, or no gateway of the tier decides.")
        state = await source.state()
        if strict and not any(endpoint.healthy for endpoint in state.endpoints):
            raise _Refused(503, "no_endpoint", "No endpoint is healthy now.")
        return Status(status="ready")

    @router.get("/livez", summary="The process answers. Looks at nothing else.")
    async def livez() -> Status:
        return Status(status="alive")

    @router.get(
        "/readyz",
        summary="An endpoint has been healthy since start, and the gateway is not shutting down.",
        responses=_NOT_READY | _MALFORMED | _LONG,
    )
    async def readyz(
        strict: Annotated[bool, Query(description="Whether one must be healthy now.")] = False,  # noqa: FBT002
    ) -> Status:
        return await check_ready(strict=strict)

    @router.get("/health", summary="The same as /readyz, where clients of vLLM look for it.", responses=_NOT_READY)
    async def health() -> Status:
        return await check_ready(strict=False)

    @router.get("/version", summary="Which kvgate runs.")
    async def show_version() -> Version:
        return Version(version=version)

    return router


def _reading_routes(
    source: StateSource,
    exposition: Exposition,
    explainer: Explainer,
    broadcast: Broadcast,
    admin_key: str | None,
) -> APIRouter:
    guard = [] if admin_key is None else [Depends(_guard(admin_key))]
    refusals = {} if admin_key is None else _UNAUTHORIZED
    router = APIRouter(tags=["admin"], dependencies=guard, responses=refusals)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus.",
        response_class=Response,
        responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", _OPENMETRICS)}}},
    )
    async def show_metrics(request: Request) -> Response:
        text = await exposition(openmetrics=_OPENMETRICS in request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type(text)})

    @router.get("/kvgate/state", summary="Every endpoint and queue, now.")
    async def show_state() -> GatewayState:
        return await source.state()

    @router.get(
        "/kvgate/events",
        summary="The picture of the gateway, and then its changes, at most two a second (SSE).",
        description="`snapshot` brings a whole picture, `changes` what differs from the one before; `silence` says "
        "that the process that decides does not answer. Their fields: docs/interface.md.",
        response_class=StreamingResponse,
        responses=_FOLLOWED,
    )
    async def follow(request: Request) -> StreamingResponse:
        try:
            messages = broadcast.follow(request.client.host if request.client else "local")
        except TooManyError as error:
            message = (
                f"{broadcast.readers} readers follow this gateway already, and one address leaves room for others. "
                "Follow it once, or close a page."
            )
            raise _Refused(503, "too_many_readers", message, {"retry-after": "10"}) from error
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(messages, media_type="text/event-stream", headers=headers)

    @router.post(
        "/kvgate/explain",
        summary="What would become of this request, and why. Nothing is sent to an engine, but to count a prompt.",
        description="The body is that of any generation request. `x-kvgate-ttft-ms` counts as it would there.",
        response_model=Explained,
        responses=_NOT_EXPLAINED | _LONG,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    )
    async def explain(request: Request, api: _Api = None, flow: _Flow = None) -> Response:
        explained = await explainer.explain(request.scope, request.receive, api=api, flow=flow)
        if isinstance(explained, ErrorAnswer):
            headers = {name.decode(): value.decode() for name, value in explained.headers}
            return Response(explained.body, explained.status, headers)
        return Response(explained.model_dump_json(), media_type="application/json")

    return router


def _changing_routes(source: StateSource, admin_key: str | None) -> APIRouter:
    """Every admin route that changes something. Without a key only callers on this machine may use them."""
    guards = [Depends(_from_here if admin_key is None else _guard(admin_key)), Depends(_own_page)]
    refusals = _FORBIDDEN if admin_key is None else _FORBIDDEN | _UNAUTHORIZED
    router = APIRouter(tags=["admin"], dependencies=guards, responses=refusals, route_class=_SmallBody)

    @router.post(
        "/kvgate/endpoints/{endpoint_id:path}/drain",
        summary="Send an endpoint no new requests; those on it finish.",
        responses=_UNKNOWN,
    )
    async def drain(endpoint_id: _EndpointId) -> EndpointState:
        return await _changed(source, endpoint_id, source.drain)

    @router.post(
        "/kvgate/endpoints/{endpoint_id:path}/undrain",
        summary="Let an endpoint back as soon as a probe finds it healthy.",
        responses=_UNKNOWN,
    )
    async def undrain(endpoint_id: _EndpointId) -> EndpointState:
        return await _changed(source, endpoint_id, source.undrain)

    @router.post(
        "/kvgate/adapters/load",
        summary="Have every endpoint of a model load a LoRA adapter.",
        description="Answers when each has, or says why it has not. Kept until kvgate ends; what is to stay goes into "
        "the settings (`models[].lora`).",
        responses=_UNKNOWN_MODEL,
    )
    async def load(adapter: NewAdapter) -> AdapterStates:
        return await _given(source, adapter.model, adapter.name, adapter.path)

    @router.post(
        "/kvgate/adapters/unload",
        summary="Have every endpoint of a model unload a LoRA adapter.",
        responses=_UNKNOWN_MODEL,
    )
    async def unload(adapter: OldAdapter) -> AdapterStates:
        return await _given(source, adapter.model, adapter.name, None)

    return router


_Api = Annotated[
    Api | None,
    Query(
        description="Whose request it is. Where it is not given, `prompt` tells completions and `input` responses; all "
        "else is chat."
    ),
]
_Flow = Annotated[
    str | None,
    Query(max_length=128, description="Whose it would be: the name of a client key; else that of who asks."),
]


_EndpointId = Annotated[
    str, Path(description="As in `/kvgate/state`: host and port, or unix socket.", examples=["127.0.0.1:8001"])
]


async def _given(source: StateSource, model: str, adapter: str, path: str | None) -> AdapterStates:
    """Give an adapter to a model, or take it away, and wait until each endpoint has done so or failed."""
    if path is not None and any(endpoint.model == adapter for endpoint in (await source.state()).endpoints):
        raise _Refused(400, "invalid_request", "A model has this name: its requests would be for the adapter.")
    try:
        await source.give(model, adapter, path)
    except UnknownModelError as error:
        message = "No endpoint serves a model of this name; /kvgate/state lists them."
        raise _Refused(404, "model_not_found", message) from error
    for _ in range(_LOOKS):
        states = await _adapter_states(source, model, adapter, path)
        if not {"loading", "unloading"}.intersection(states.values()):
            break
        await asyncio.sleep(_LOOK)
    return AdapterStates(endpoints=states)  # what still loads goes on, and the state tells how it ends


async def _adapter_states(source: StateSource, model: str, adapter: str, path: str | None) -> dict[str, str]:
    endpoints = [endpoint for endpoint in (await source.state()).endpoints if endpoint.model == model]
    return {endpoint.id: _adapter_state(endpoint, adapter, path) for endpoint in endpoints}


def _adapter_state(endpoint: EndpointState, adapter: str, path: str | None) -> str:
    """How an adapter is there. Its engine may have it, or no more, a moment before requests for it know that."""
    said, serves = endpoint.adapters.get(adapter), adapter in endpoint.models
    if path is None:
        return said or ("unloading" if serves else "unloaded")
    if said is None:
        return "given up: it was unloaded meanwhile, or another process decides by now"
    return "loading" if said == "loaded" and not serves else said


async def _changed(source: StateSource, endpoint_id: str, change: Callable[[str], Awaitable[None]]) -> EndpointState:
    try:
        await change(endpoint_id)
    except UnknownEndpointError as error:
        raise _Refused(404, "endpoint_not_found", "No endpoint has this id; /kvgate/state lists them.") from error
    return next(endpoint for endpoint in (await source.state()).endpoints if endpoint.id == endpoint_id)


def _guard(admin_key: str) -> Callable[..., Awaitable[None]]:
    expected = admin_key.encode()
    bearer = HTTPBearer(auto_error=False, description="The admin key.")

    async def require(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        # The framework decodes header bytes as Latin-1, whatever they are.
        presented = b"" if given is None else given.credentials.encode("latin-1", "replace")
        if not hmac.compare_digest(presented, expected):
            raise _Refused(
                401, "invalid_api_key", "This needs the admin key as a bearer token.", {"www-authenticate": "Bearer"}
            )

    return require


async def _own_page(request: Request) -> None:
    """Refuse a web page of another site, whatever key it has. A proxy may end TLS, so the scheme may differ."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    if origin is not None and origin.partition("://")[2] != host:
        raise _Refused(403, "foreign_origin", "Changes are not taken from a web page of another site.")


async def _from_here(request: Request) -> None:
    if not on_this_machine(request.scope):
        message = (
            "Without an admin key, changes are taken only from this machine itself, under a loopback address and not "
            "through a proxy. Set `auth.admin_key` and send it as a bearer token, or call this there."
        )
        raise _Refused(403, "admin_key_required", message)


class _SmallBody(APIRoute):
    """A route that takes a small body, and does not wait for it long.

    FastAPI reads a body to its end before it asks who sends it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            end, size = asyncio.get_running_loop().time() + _BODY_TIMEOUT, 0

            async def receive() -> Message:
                nonlocal size
                try:
                    async with asyncio.timeout_at(end):
                        message = await request.receive()
                except TimeoutError:
                    raise HTTPException(408, f"The body did not arrive within {_BODY_TIMEOUT:g} s") from None
                size += len(message.get("body", b""))
                if size > _LONGEST_BODY:
                    raise HTTPException(413, f"The body is over {_LONGEST_BODY} bytes long")
                return message

            return await handle(Request(request.scope, receive))

        return limited


class _Queries:
    """Answers HEAD as GET: the server, which has its own scope, leaves out the body.

    Refuses a query of thousands of parameters, which would be parsed on the event loop.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}
        if len(scope.get("query_string", b"")) > _LONGEST_QUERY:
            answer = _error(414, "query_too_long", f"The query is over {_LONGEST_QUERY} bytes long.")
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004  # as HTTP divides them
    body = ErrorBody(error=Error(message=message, type=kind, code=code))
    return JSONResponse(body.model_dump(), status, headers)


async def _answer_refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, _Refused)  # noqa: S101  # registered for nothing else
    return error.answer


async def _answer_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for nothing else
    code = {404: "not_found", 405: "method_not_allowed", 408: "timeout", 413: "body_too_large"}.get(
        error.status_code, "http_error"
    )
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return _error(error.status_code, code, f"{error.detail}.", headers)


async def _answer_malformed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for nothing else
    faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
    return _error(400, "invalid_request", f"{faults}.")


async def _answer_silence(_request: Request, _error_seen: Exception) -> Response:
    return _error(503, "not_ready", "The process that decides does not answer.")


async def _answer_failure(_request: Request, _error_seen: Exception) -> Response:
    return _error(500, "internal_error", "The gateway failed on this; its log says how.")


def _without_422(generate: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The schema without 422, FastAPI's status for malformed parameters: here it is 400."""

    def openapi() -> dict[str, Any]:
        schema = generate()
        for operations in schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema.get("components", {}).get("schemas", {}).pop(unused, None)
        return schema

    return openapi
