"""PURE. The result of a question to an endpoint: an answer, or none."""

from dataclasses import dataclass
from http import HTTPStatus

MOST_VALUES = 2**16
"""Most values that are read of a JSON answer, an object counted as four: as many as real ones of a megabyte have. A
megabyte of empty objects takes 0.4 s to read."""


def crowded(body: bytes) -> bool:
    """Whether a JSON answer has too many values to be read."""
    return body.count(b",") + 4 * body.count(b"{") > MOST_VALUES


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    body: bytes
    answered_at: float
    """When its head arrived."""

    @property
    def ok(self) -> bool:
        """Whether its status is 200."""
        return self.status == HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class NoReply:
    """No answer came."""

    reason: str
    refused: bool = False
    """Nobody listens there. A name that is not found, a missing route and a broken handshake say less."""
    accepted: bool = False
    """A connection was made and stayed silent."""


def unanswered(path: str, reply: Reply | NoReply) -> str | None:
    """Why a question was not answered, so that nothing follows from it; None if it was, if only by "no such route"."""
    if isinstance(reply, NoReply):
        return reply.reason
    failed = reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR and reply.status != HTTPStatus.NOT_IMPLEMENTED
    return f"GET {path} answered {reply.status}" if failed or reply.status == HTTPStatus.TOO_MANY_REQUESTS else None
