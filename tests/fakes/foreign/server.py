"""The server that answers as one row of facts says."""

import asyncio
import json
from collections import deque
from types import TracebackType
from typing import Any, Self

from tests.fakes.foreign.facts import FACTS, LENGTH, Facts, Fields, State, Wrong, as_body, words

GENERATES = ("/v1/chat/completions", "/v1/completions")


class FakeEngine:
    """A server of an engine without a model: `async with FakeEngine("sglang") as fake:` serves at `fake.url`.

    Attributes:
        state: what its gauges show.
        ill: whether its health route says so.
        free: until it is set, requests for an answer get none.
        wrong: errors with which the next requests are answered, instead of an answer.
        events: first events with which the next streams begin, and end.
        counts_chats: whether its counting route takes a conversation.
        more: tokens that its template adds to a prompt.
        models, get: in place of those of its facts.
        seen: the bodies of the requests for an answer.
        asked: the routes that were asked.
    """

    def __init__(self, kind: str, *, counts_chats: bool = True, more: int = 0, models: Any = None) -> None:
        self.facts: Facts = FACTS[kind]
        self.state = State()
        self.ill = False
        self.free = asyncio.Event()
        self.free.set()
        self.wrong: deque[Wrong] = deque()
        self.events: deque[Any] = deque()
        self.counts_chats = counts_chats
        self.more = more
        self.models = models or self.facts.models
        self.get: dict[str, Any] = {}
        self.seen: list[Fields] = []
        self.asked: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()

    def tokens(self, fields: Fields) -> int:
        """What it counts in a prompt."""
        return words(fields) + self.more

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while head := await _head(reader):
                method, path, length = head
                body = await reader.readexactly(length)
                self.asked.append(path)
                answer = self._answer(method, path, body)
                if path in GENERATES:
                    await self.free.wait()
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        if method == "GET":
            return self._told(path)
        if path in self.facts.counts:
            return self._count(path, json.loads(body))
        return self._generate(path, json.loads(body)) if path in GENERATES else _response(404, *as_body({}))

    def _told(self, path: str) -> bytes:
        route, illness = self.facts.health
        if path == route and self.ill and illness is not None:
            return _response(illness[0], *as_body(illness[1]))
        get = {route: lambda _: "", "/v1/models": lambda _: self.models, **self.facts.get, **self.get}
        return _response(200, *as_body(get[path](self.state))) if path in get else _response(404, *as_body({}))

    def _count(self, path: str, fields: Fields) -> bytes:
        if "messages" in fields and not self.counts_chats:
            return _response(400, b'{"object":"error","message":"1 validation error","code":400}', "application/json")
        padded = dict(fields)
        if self.more and "messages" in fields:
            padded["messages"] = [*fields["messages"], {"content": "x " * (self.more - 2)}]
        return _response(200, *as_body(self.facts.counts[path](padded)))

    def _generate(self, path: str, fields: Fields) -> bytes:
        self.seen.append(fields)
        if self.wrong:
            status, error = self.wrong.popleft()
            return _response(status, *as_body(error))
        prompt = self.tokens(fields)
        if prompt >= LENGTH:
            if self.facts.too_long is not None:
                return _response(self.facts.too_long[0], *as_body(self.facts.too_long[1]))
            prompt = LENGTH - 1  # cut, and nobody is told
        usage = {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}
        chat = "chat" in path
        if not fields.get("stream"):
            said = {"message": {"role": "assistant", "content": "a b"}} if chat else {"text": "a b"}
            whole = {"id": "a", "choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": usage}
            return _response(200, *as_body(whole))
        if self.events:
            return _response(200, self._event(self.events.popleft()) + self._event("[DONE]"), "text/event-stream")
        pieces = [{"delta": {"content": word}} if chat else {"text": word} for word in ("a", " b")]
        chunks: list[Any] = [{"id": "a", "choices": [{"index": 0, **piece, "finish_reason": None}]} for piece in pieces]
        chunks.append({"id": "a", "choices": [{"index": 0, **pieces[0], "finish_reason": "stop"}]})
        if (fields.get("stream_options") or {}).get("include_usage"):
            chunks.append({"id": "a", "choices": [], "usage": usage})
        return _response(200, b"".join(map(self._event, [*chunks, "[DONE]"])), "text/event-stream")

    def _event(self, event: Any) -> bytes:
        return self.facts.data + as_body(event)[0] + b"\n\n"


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, int] | None:
    """The method, the path and the body's length of the next request; None at the end of the connection."""
    first = await reader.readline()
    if not first.strip():
        return None
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    method, path, _ = first.decode().split()
    return method, path.partition("?")[0], length


def _response(status: int, body: bytes, kind: str) -> bytes:
    return f"HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
