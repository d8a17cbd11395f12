"""The response to one request, as a state machine: what has left for the client, and so what may still be sent.

What an error looks like is in `wire/errors.py`.
"""

from collections.abc import Awaitable, Callable
from enum import Enum, auto

from gateway.server.asgi import Body, Headers, Receive, Scope, Send, send_answer
from gateway.wire.errors import ErrorAnswer

_OK = 200


class State(Enum):
    """State of a response. It stays in the last one if the client leaves, or if the endpoint fails midway."""

    __hash__ = object.__hash__  # Enum's is a Python function, and every step of a response calls it

    WAITING = auto()
    """Nothing has left."""
    OPENED = auto()
    """The head of a stream has left, with status 200, and perhaps comments. An error can only be told as an event."""
    BEGUN = auto()
    """An answer has begun. From now on no other endpoint can be tried."""
    ENDED = auto()
    """Its last piece has left."""


class Step(Enum):
    """What can be sent."""

    __hash__ = object.__hash__

    OPEN = auto()
    BEGIN = auto()
    WRITE = auto()
    END = auto()


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.WAITING, Step.OPEN): State.OPENED,
    (State.WAITING, Step.BEGIN): State.BEGUN,
    (State.OPENED, Step.WRITE): State.OPENED,
    (State.OPENED, Step.BEGIN): State.BEGUN,
    (State.BEGUN, Step.WRITE): State.BEGUN,
    (State.BEGUN, Step.END): State.ENDED,
}
"""Any other step is a defect of ours."""


class Response:
    """The response to one request. `send` waits for its client, and then sends: cancelled, it has sent nothing.

    Attributes:
        status: as told to the client; None while nothing has left.
        body: for the pieces of a stream that has begun, one by one and without a check.
        begins: called when an answer begins: what was kept for another try can go.
    """

    __slots__ = ("_send", "begins", "body", "state", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.state = State.WAITING
        self.status: int | None = None
        self.body = Body(scope, send)
        self.begins: Callable[[], None] = _nothing

    @property
    def head_sent(self) -> bool:
        """Whether the head of a stream has left, but no answer has begun."""
        return self.state is State.OPENED

    @property
    def answer_begun(self) -> bool:
        """Whether an answer has begun."""
        return self.state in (State.BEGUN, State.ENDED)

    async def open(self, headers: Headers) -> None:
        """Send the head of a stream while the request still waits."""
        after = self._after(Step.OPEN)
        await self._head(_OK, headers)
        self.state = after

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer. Its headers tell its length."""
        if self.state is State.WAITING and self.body.whole(status, headers, body):
            self.status = status
            for step in (Step.BEGIN, Step.END):
                self.state = self._after(step)
            self.begins()
        else:
            await self.begin(status, headers)
            await self.end(body)

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin the answer. Its head is left out if one has left."""
        head_sent, self.state = self.head_sent, self._after(Step.BEGIN)
        self.begins()
        if not head_sent:
            await self._head(status, headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece, and wait until the client has caught up."""
        self.state = self._after(Step.WRITE)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        """Send the last piece."""
        after = self._after(Step.END)
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})
        self.state = after

    async def answer(
        self, answer: ErrorAnswer, extra: tuple[tuple[bytes, bytes], ...], *, close: bool, unread: Receive | None
    ) -> None:
        """Send a complete answer of our own; see `send_answer`."""
        self.state, self.status = self._after(Step.BEGIN), answer.status
        self.begins()
        await send_answer(self._send, answer, extra, close=close, unread=unread)
        self.state = self._after(Step.END)

    def _head(self, status: int, headers: Headers) -> Awaitable[None]:
        self.status = status
        return self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _after(self, step: Step) -> State:
        after = TRANSITIONS.get((self.state, step))
        if after is None:
            raise RuntimeError(f"{step.name} of a response that is {self.state.name}")
        return after


def _nothing() -> None:
    pass
