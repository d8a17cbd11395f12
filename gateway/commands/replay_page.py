"""`kvgate replay --page`: a record on the live page, on this machine alone."""

import socket

import msgspec
import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response
from rich.console import Console
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.ops.on_machine import on_this_machine
from gateway.ops.pictures.page_files import HEADERS, page_routes
from gateway.record.series import Pictured

_GZIP = {**HEADERS, "content-encoding": "gzip"}


def replay_app(pictured: Pictured) -> ASGIApp:
    """The page over a record. It asks for no key, and answers to this machine alone."""
    app = FastAPI(openapi_url=None)
    app.include_router(page_routes(replay=True))
    series = msgspec.json.encode(pictured.series)

    @app.get("/kvgate/replay")
    async def show_series() -> Response:
        return Response(series, media_type="application/json", headers=HEADERS)

    @app.get("/kvgate/replay/{side}/{number}")
    async def show_picture(side: int, number: int) -> Response:
        if not (0 <= side < len(pictured.pictures) and 0 <= number < len(pictured.pictures[side])):
            raise HTTPException(404, "The record has no such picture")
        return Response(pictured.pictures[side][number], media_type="application/json", headers=_GZIP)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not on_this_machine(scope):
            refused = PlainTextResponse("A replay is shown on this machine alone, under a loopback address.", 403)
            await refused(scope, receive, send)
            return
        await app(scope, receive, send)

    return guarded


def show_page(pictured: Pictured, host: str, port: int, console: Console) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        OSError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown = f"[{host}]" if ":" in host else host
        console.print(f"http://{shown}:{listening.getsockname()[1]}/kvgate/ shows it until Ctrl-C", soft_wrap=True)
        config = uvicorn.Config(replay_app(pictured), log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])
