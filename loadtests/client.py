"""The load client: one timed, streamed completion on a connection of its own.

It shares its cores with the program it measures, so it must be cheap.
An event that is plainly a token costs a search for its marker and a time stamp. Only the others are decoded.
"""
# ruff: noqa: D102, ARG002 - the methods without a docstring are those of asyncio.Protocol and of httptools' parser

import asyncio
import ssl
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from loadtests.arrivals import Planned
from loadtests.raw_client import post
from loadtests.sse import EventReader

TOKEN = b'"finish_reason":null'
"""Marker in every event with a token except the last, as vLLM writes them. Quotes in a text are escaped."""
STOP_TOKEN = 99
"""A token that ends an answer before its `max_tokens`. Every vocabulary has it and no prompt does."""
BUSY_STATUS = (429, 503)
BUSY_CODES = ("queue_full", "wait_too_long", "queue_timeout", "rate_limit_exceeded", "no_endpoint", "draining")
"""Error codes of a refusal within a stream, after a 200 has opened it."""
STOP_TOLERANCE = 2
"""Tokens by which an engine that schedules ahead may miss the requested end."""


@dataclass(slots=True)
class Record:
    """The result of one request. Times are seconds after the run's start; None for those that never came."""

    planned: Planned
    arrived: float
    """Its due time, even if the client sent it late."""
    sent: float = 0.0
    first: float | None = None
    """The first token."""
    ended: float = 0.0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds between successive events with tokens."""
    tokens: int = 0
    """Generated, by the engine's count. For a broken answer, the number of events with tokens."""
    status: int | None = None
    code: str | None = None
    """The code of an error."""
    reason: str | None = None
    """`x-kvgate-reason`."""
    retry_after: float | None = None
    """Seconds."""
    loss: str | None = None
    """Why the answer is incomplete; None if it is complete."""
    port: int | None = None
    """The client's own, of its connection."""

    @property
    def ttft(self) -> float | None:
        """Seconds from the arrival to the first token."""
        return None if self.first is None else self.first - self.arrived

    @property
    def worst_gap(self) -> float:
        """The longest wait between two events with tokens, in seconds."""
        return max(self.gaps, default=0.0)

    @property
    def refused(self) -> bool:
        """Whether it was told to come back later, before it got anything."""
        busy = self.status in BUSY_STATUS or self.code in (*BUSY_CODES, *map(str, BUSY_STATUS))
        return self.loss is not None and self.first is None and busy


def body(planned: Planned, model: str, salt: str) -> bytes:
    """A completion that generates exactly what was planned.

    If `max_tokens` is larger than that, a stop token ends the answer: the engine may not choose it before its time and
    must choose it then.
    """
    fields: dict[str, Any] = {
        "model": model,
        "prompt": planned.prompt_ids(salt),
        "max_tokens": planned.max_tokens,
        "min_tokens": planned.output,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if planned.max_tokens > planned.output:
        fields |= {
            "min_tokens": planned.output - 1,
            "ignore_eos": False,
            "stop_token_ids": [STOP_TOKEN],
            "logit_bias": {str(STOP_TOKEN): 100},
        }
    return msgspec.json.encode(fields)


@dataclass(frozen=True, slots=True)
class Address:
    """The address that requests go to."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, base_url: str) -> "Address":
        parts = urlsplit(base_url)
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname or "", port, f"{parts.path.rstrip('/')}/v1/completions", tls)

    def request(self, content: bytes, headers: Mapping[str, str]) -> bytes:
        """A request as bytes."""
        return post(self.path, content, {"Host": f"{self.host}:{self.port}", **headers})


async def exchange(address: Address, request: bytes, record: Record, epoch: float, timeout: float) -> None:
    """Send a request and follow its answer. A failure goes into the record and is never raised.

    Args:
        address: the target.
        request: its bytes.
        record: to fill.
        epoch: `time.monotonic()` of the run's start.
        timeout: seconds until an answer counts as lost.
    """
    loop = asyncio.get_running_loop()
    record.sent = time.monotonic() - epoch
    try:
        async with asyncio.timeout(timeout):
            transport, stream = await loop.create_connection(
                lambda: _Stream(request, record, epoch), address.host, address.port, ssl=address.tls
            )
            record.port = transport.get_extra_info("sockname")[1]
            try:
                await stream.ended
            finally:
                stream.close()
    except (OSError, TimeoutError) as error:
        record.loss = type(error).__name__
    record.ended = time.monotonic() - epoch
    if not record.tokens and record.first is not None:
        record.tokens = len(record.gaps) + 1


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, record: Record, epoch: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._record = record
        self._epoch = epoch
        self._parser = httptools.HttpResponseParser(self)
        self._reader = EventReader()
        self._refusal = b""
        self._now = 0.0
        self._last = 0.0
        self._events = 0
        self._finish: str | None = None
        self._done = False
        record.loss = "connection closed"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic() - self._epoch
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.DecodeError) as error:
            self._end(type(error).__name__)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._record.loss)

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"retry-after" if self._record.retry_after is None:
                self._record.retry_after = float(value)
            case b"retry-after-ms":
                self._record.retry_after = float(value) / 1000
            case b"x-kvgate-reason":
                self._record.reason = value.decode("latin-1")
            case _:
                pass

    def on_headers_complete(self) -> None:
        self._record.status = self._parser.get_status_code()

    def on_body(self, content: bytes) -> None:
        if self._record.status != 200:
            self._refusal += content
        elif content.count(b"\n\n") == 1 and content.endswith(b"\n\n") and TOKEN in content and not self._reader.torn:
            self._token()
        else:
            for payload in self._reader.feed(content):
                self._event(payload)

    def on_message_complete(self) -> None:
        if self._record.status == 200:
            self._end(self._verdict())
            return
        try:
            error = msgspec.json.decode(self._refusal).get("error") or {}
            self._record.code = str(error.get("code"))
        except (msgspec.DecodeError, AttributeError):
            self._record.code = None
        self._end(f"status {self._record.status}")

    def close(self) -> None:
        """Close the connection, so that the engine stops work on an answer nobody waits for."""
        self._transport.abort()

    def _token(self) -> None:
        if self._events:
            self._record.gaps.append(self._now - self._last)
        else:
            self._record.first = self._now
        self._last = self._now
        self._events += 1

    def _event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._done = True
        elif TOKEN in payload:
            self._token()
        else:
            chunk = msgspec.json.decode(payload)
            if chunk.get("error"):
                self._record.code = str(chunk["error"].get("code"))
                self._end(f"error event {self._record.code}")
            if chunk.get("usage"):
                self._record.tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk.get("choices", ()):
                self._finish = choice.get("finish_reason")
                self._token()

    def _verdict(self) -> str | None:
        planned, got = self._record.planned, self._record.tokens
        early = planned.max_tokens > planned.output
        right = abs(got - planned.output) <= STOP_TOLERANCE if early else got == planned.output
        if self._done and self._finish == ("stop" if early else "length") and right:
            return None
        return f"ended after {got} of {planned.output} tokens"

    def _end(self, loss: str | None) -> None:
        if not self.ended.done():
            self._record.loss = loss
            self.ended.set_result(None)
