"""The broadcast of pictures to everybody who follows one gateway: made and encoded once, however many look.

Nothing is made while nobody looks. A reader gets a picture, then the changes. One that is slower than the changes come
gets the latest picture instead of those it missed; nothing is kept for it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from gateway.ops.pictures.picture import SPAN, Picture, changed, changes
from gateway.runtime.background import kept_up
from gateway.runtime.shares import Shares

INTERVAL = 0.5
"""Seconds between two pictures."""
MOST = 128
"""Readers at once. One address has at most half of what the others leave."""
SILENT = 10.0
"""Seconds after which a reader that has not read what it was given makes room for a new one."""
KEPT = 8
"""Changes that a slow reader may be behind."""

_encode = msgspec.json.Encoder().encode

Look = Callable[[float], Awaitable[Picture]]
"""Makes a picture of now, with the history's points after a time."""


class TooManyError(RuntimeError):
    """There are as many readers as there may be."""


class _Reader:
    """One reader. `given`: when it got what it has yet to read; None if it has read all."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.given: float | None = None


class Broadcast:
    """To all readers at one front.

    Args:
        look: asks the process that decides. A TimeoutError says that it does not answer.
        interval: seconds between two pictures.
    """

    def __init__(self, look: Look, *, interval: float = INTERVAL) -> None:
        self._look = look
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Event()
        self._number = 0
        """Of the latest message. A reader that has none starts with the whole picture."""
        self._recent: deque[bytes] = deque(maxlen=KEPT)
        """The latest messages, without a gap."""
        self._picture: Picture | None = None
        self._whole: bytes | None = None
        """The picture as a message, once a reader needed it."""
        self._closed = False
        self._reading: set[_Reader] = set()
        self._shares = Shares(lambda: MOST)

    @property
    def readers(self) -> int:
        """How many there are."""
        return len(self._reading)

    def follow(self, address: str) -> AsyncIterator[bytes]:
        """The messages for a new reader at this address.

        Raises:
            TooManyError: there are too many.
        """
        if not self._shares.takes(address, 1):
            self._make_room(asyncio.get_running_loop().time())
            if not self._shares.takes(address, 1):
                raise TooManyError
        return self._follow(_Reader(address))

    def close(self) -> None:
        """End it for every reader: this process takes no new work."""
        self._closed = True
        self._turn.set()

    async def _follow(self, reader: _Reader) -> AsyncIterator[bytes]:
        if not self._shares.takes(reader.address, 1):  # many asked at once, before the first of them began to read
            return
        self._reading.add(reader)
        self._shares.add(reader.address, 1)
        clock = asyncio.get_running_loop().time
        if self._task is None:
            self._task = asyncio.create_task(kept_up("pictures", self._run))
        have = -1
        try:
            while reader in self._reading and not self._closed:
                if have == self._number or (self._picture is None and not self._recent):
                    await self._turn.wait()
                    continue
                message, have = self._after(have), self._number
                reader.given = clock()
                yield message
                reader.given = None
        finally:
            self._leave(reader)

    def _make_room(self, now: float) -> None:
        for reader in [*self._reading]:
            if reader.given is not None and now - reader.given > SILENT:
                self._leave(reader)

    def _leave(self, reader: _Reader) -> None:
        if reader in self._reading:
            self._reading.remove(reader)
            self._shares.add(reader.address, -1)
            if not self._reading:
                self._rest()

    def _after(self, have: int) -> bytes:
        if self._picture is None:
            return self._recent[-1]
        missed = self._number - have
        if have >= 0 and missed <= len(self._recent):
            return b"".join(list(self._recent)[-missed:])
        if self._whole is None:
            self._whole = _message(b"snapshot", _encode(self._picture))
        return self._whole

    def _rest(self) -> None:
        """Nobody looks any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._forget()

    def _forget(self) -> None:
        self._picture = self._whole = None
        self._recent.clear()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await self._tell()
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _tell(self) -> None:
        before = self._picture
        after = 0.0 if before is None else before.points[-1].at if before.points else before.at - SPAN
        try:
            picture = await self._look(after)
        except TimeoutError:
            self._forget()
            self._say(_message(b"silence", b'{"text":"The process that decides does not answer."}'))
            return
        if before is None:
            self._picture = picture
            self._recent.clear()
            self._say(None)
            return
        new = changes(before, picture)
        self._picture = changed(before, new)
        self._say(_message(b"changes", _encode(new)))

    def _say(self, message: bytes | None) -> None:
        self._whole = None
        self._number += 1
        if message is not None:
            self._recent.append(message)
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()


def _message(event: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event, data)
