"""A running kvgate, as `top` follows it: its pictures, drain and undrain, and what would become of a request."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx
import msgspec
from pydantic import ValidationError

from engine.asking import asking_at_length
from gateway.config.fields import usable_key
from gateway.ops.explained import Explained
from gateway.ops.pictures.picture import Changes, Picture, changed

TIMEOUT = 10.0
"""Seconds without a byte. A kvgate sends two events a second."""
SOON, LATEST = 0.5, 5.0
"""Seconds before another attempt: after the first that fails, and at most."""
_CLIENT_ERRORS = range(400, 500)


@dataclass(frozen=True, slots=True)
class Lost:
    """No picture comes now."""

    reason: str
    again_in: float | None = None
    """Seconds until the next attempt; None while the connection stands."""


class RefusedError(Exception):
    """The server will not answer another attempt either. The message names it, and what to do."""


class _LostError(Exception):
    pass


class Kvgate:
    """A kvgate by its URL or unix socket; a context that closes its connections.

    Args:
        url: where it serves `/kvgate/events`.
        key: its admin key, if it has one.
        sleep: waits so many seconds.

    Raises:
        RefusedError: the key or the URL cannot be used.
    """

    def __init__(
        self, url: str, key: str | None = None, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.url = url.rstrip("/")
        self._sleep = sleep
        self._key_given = key is not None
        try:
            # Check the key first: the HTTP client's error about an unusable key would show it.
            headers = {} if key is None else {"authorization": f"Bearer {usable_key(key)}"}
        except ValueError as error:
            raise RefusedError(f"{self.url}: the admin key cannot be sent: {error}") from None
        try:
            self._client = asking_at_length(self.url, timeout=TIMEOUT, headers=headers)
        except httpx.InvalidURL as error:
            raise RefusedError(f"{self.url}: cannot be reached: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def follow(self) -> AsyncIterator[Picture | Lost]:
        """Every picture, and every loss of the connection, after which it is made again.

        Raises:
            RefusedError: it does not let us follow, or is no kvgate.
        """
        pause = SOON
        while True:
            try:
                async for seen in self._pictures():
                    pause = SOON
                    yield seen
                reason = "it ended the connection"
            except (httpx.HTTPError, _LostError) as error:
                reason = str(error) or type(error).__name__
            yield Lost(reason, pause)
            await self._sleep(pause)
            pause = min(2 * pause, LATEST)

    async def picture(self) -> Picture:
        """The picture of now.

        Raises:
            RefusedError: there is none.
        """
        async for seen in self.follow():
            if isinstance(seen, Picture):
                return seen
            raise RefusedError(f"{self.url}: cannot be reached: {seen.reason}")
        raise AssertionError  # it follows for ever

    async def drain(self, endpoint: str, *, back: bool) -> None:
        """Send an endpoint no new requests; or, with `back`, let it have some again.

        Raises:
            RefusedError: it was not done; the message says why.
        """
        path = f"/kvgate/endpoints/{quote(endpoint, safe='/:')}/{'undrain' if back else 'drain'}"
        try:
            answer = await self._client.post(path)
        except httpx.HTTPError as error:
            raise RefusedError(f"{self.url}: cannot be reached: {str(error) or type(error).__name__}") from None
        if not answer.is_success:
            raise RefusedError(_message(answer))

    async def explain(self, body: bytes) -> Explained:
        """What would become of a request with this body.

        Raises:
            RefusedError: it would be answered with an error, or cannot be read.
        """
        try:
            answer = await self._client.post(
                "/kvgate/explain", content=body, headers={"content-type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise RefusedError(f"{self.url}: cannot be reached: {str(error) or type(error).__name__}") from None
        if not answer.is_success:
            raise RefusedError(f"{answer.status_code}: {_message(answer)}")
        try:
            return Explained.model_validate_json(answer.content)
        except ValidationError:
            raise RefusedError(_not_ours(self.url)) from None

    async def _pictures(self) -> AsyncIterator[Picture | Lost]:
        async with self._client.stream("GET", "/kvgate/events") as answer:
            await self._check(answer)
            picture: Picture | None = None
            try:
                async for event, data in events(answer.aiter_lines()):
                    if event == "silence":
                        yield Lost("the process that decides does not answer")
                    elif event == "snapshot":
                        yield (picture := msgspec.json.decode(data, type=Picture))
                    elif event == "changes" and picture is not None:
                        yield (picture := changed(picture, msgspec.json.decode(data, type=Changes)))
            except (msgspec.DecodeError, KeyError):
                raise RefusedError(_not_ours(self.url)) from None

    async def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            given = "not the one given" if self._key_given else "none was given: see --admin-key"
            raise RefusedError(f"{self.url}: answered 401, it wants an admin key, and {given}")
        if answer.is_success and answer.headers.get("content-type", "").startswith("text/event-stream"):
            return
        await answer.aread()
        if answer.is_success or answer.status_code in _CLIENT_ERRORS:
            raise RefusedError(
                f"{self.url}: expected a kvgate's admin listener there, /kvgate/events answered {answer.status_code}"
            )
        raise _LostError(f"it answered {answer.status_code}: {_message(answer)}")


async def events(lines: AsyncIterable[str]) -> AsyncIterator[tuple[str, str]]:
    """The name and the data of each server-sent event of kvgate, which has one line of data."""
    name = ""
    async for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, value


def _message(answer: httpx.Response) -> str:
    """What an error of kvgate says."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"answered {answer.status_code}"


def _not_ours(url: str) -> str:
    return f"{url}: expected a kvgate of this version, its answer cannot be read"
