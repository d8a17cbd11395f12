"""The load client on raw protocols, so cheap that its cost does not spoil the measurement."""
# ruff: noqa: D102, ARG002 - the methods without a docstring are those of asyncio.Protocol and of httptools' parser

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Mapping
from typing import cast

import httptools

from loadtests.stream_check import StreamCheck


class Tally:
    """The shared counts of a run's streams."""

    def __init__(self, streams: int) -> None:
        self.waiting = streams
        """Streams without a first token."""
        self.events = 0
        self.all_started = asyncio.Event()


class Stream(asyncio.Protocol):
    """One request, followed to its end on a connection of its own."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self.check = StreamCheck()
        self.status = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._tally = tally
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def on_body(self, body: bytes) -> None:
        started = self.check.events > 0
        self._tally.events += self.check.feed(body)
        if not started and self.check.events:
            self._tally.waiting -= 1
            if self._tally.waiting == 0:
                self._tally.all_started.set()

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._transport.close()


class TimedStream(Stream):
    """The same, noting the seconds between two reads with events in a list that streams share."""

    def __init__(self, request: bytes, tally: Tally, gaps: list[float]) -> None:
        super().__init__(request, tally)
        self._gaps = gaps
        self._last = 0.0

    def on_body(self, body: bytes) -> None:
        before = self.check.events
        super().on_body(body)
        if self.check.events > before:
            now = time.monotonic()
            if before:
                self._gaps.append(now - self._last)
            self._last = now


class Caller(asyncio.Protocol):
    """Sends requests on one connection, each after the answer to the last.

    Attributes:
        begun: the time at which the current answer's body began, of `time.monotonic()`.
        ended: its status.
    """

    def __init__(self) -> None:
        self._expect()

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self._expect()
        self._transport.write(request)

    def _expect(self) -> None:
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[float] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)

    def leave(self) -> None:
        """Close the connection, whatever comes."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for each in (self.begun, self.ended):
            if not each.done():
                each.cancel()

    def on_body(self, body: bytes) -> None:
        if not self.begun.done():
            self.begun.set_result(time.monotonic())  # uvloop's own time is in milliseconds

    def on_message_complete(self) -> None:
        if not self.ended.done():  # else it is the last word of a server that ends
            self.ended.set_result(self._parser.get_status_code())


NUMBER = "000000000000"
"""Where a request of a `Repeater` has this, each that it sends has another number: its prompt is new to everybody."""
_numbers = itertools.count(1)


class Repeater(asyncio.Protocol):
    """Sends a request on one connection as soon as the last one is answered, until told to stop."""

    def __init__(self, request: bytes) -> None:
        self.answered = 0
        self.failed = 0
        self.errors: Counter[int] = Counter()
        """Answers with another status than 200, by status."""
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.stopped.done():
            self.failed += not self._stopping
            self.stopped.set_result(None)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 200:
            self.answered += 1
        else:
            self.failed += 1
            self.errors[status] += 1
        if self._stopping:
            self._transport.close()
        else:
            self._send()

    def stop(self) -> None:
        """Make the request in flight the last."""
        self._stopping = True

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request.replace(NUMBER.encode(), b"%012d" % next(_numbers), 1))


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A request as bytes, with `headers` beside its length and type."""
    given = {"Host": "loadtest", **(headers or {}), "Content-Type": "application/json", "Content-Length": len(body)}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
