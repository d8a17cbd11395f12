"""The files of the live page, `GET /kvgate/`: open to everybody, as they hold no data."""

from pathlib import Path

import msgspec
from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from gateway.admission.placing.rules import RULES
from gateway.ops.pictures.words import OUTCOMES

FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Nothing inline, nothing from elsewhere, in nobody's frame."""


def page_routes(*, replay: bool = False) -> APIRouter:
    """The routes of the page. Its addresses are relative: it may be behind a path prefix.

    Args:
        replay: whether it shows a record instead of what happens now.
    """
    router = APIRouter(include_in_schema=False)
    files = {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.suffix in _TYPES}
    words = _words(replay=replay)

    @router.get("/kvgate")
    async def to_page() -> RedirectResponse:
        return RedirectResponse("kvgate/")

    @router.get("/kvgate/")
    async def page() -> Response:
        return Response(files["index.html"], media_type=_TYPES[".html"], headers=HEADERS)

    @router.get("/kvgate/page/words.json")
    async def show_words() -> Response:
        return Response(words, media_type="application/json", headers=HEADERS)

    @router.get("/kvgate/page/{name}")
    async def show_file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "The page has no such file")
        return Response(files[name], media_type=_TYPES[Path(name).suffix], headers=HEADERS)

    return router


def _words(*, replay: bool) -> bytes:
    """What the page calls outcomes, the rules in the order in which they are asked, and what it shows."""
    return msgspec.json.encode(
        {
            "outcomes": {outcome.value: called._asdict() for outcome, called in OUTCOMES.items()},
            "rules": [{"name": rule.name, "meaning": rule.says_no} for rule in RULES],
            "replay": replay,
        }
    )
