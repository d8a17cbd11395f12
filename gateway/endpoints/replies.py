"""PURE. The result of a question to an endpoint: an answer, or none."""

from dataclasses import dataclass
from http import HTTPStatus


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
