"""The talk of the process that decides with the parent that launches engines: which to run and to end, and how it went.

It goes over the descriptor on which a supervised program talks with its supervisor, a line each. In a tier a front has
it, and carries what both say to and from the owner (`gateway.tier.launchers`).
"""

import asyncio

import msgspec

from gateway.pools.launcher import EngineEnded, EngineNews, Launcher

RUN = "run"
"""A line of this process: start the engine at the address that follows."""
END = "end"
"""Likewise: no request is on it, end it."""
NEWS = b"engine "
"""A line of the parent: an `EngineNews` follows."""
ENDED = b"ended "
"""Likewise: an `EngineEnded`."""


class Parent(Launcher):
    """The parent of this process. Without one nothing is heard, and nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: asyncio.Queue[str] = asyncio.Queue()

    def run(self, address: str) -> None:
        """Have it start an engine."""
        self._asked.put_nowait(f"{RUN} {address}")

    def end(self, address: str) -> None:
        """Have it end an engine."""
        self._asked.put_nowait(f"{END} {address}")

    def seems(self, address: str, state: str, reason: str) -> None:
        """Say what is seen of an engine."""
        self._asked.put_nowait(f"{state} {address} {' '.join(reason.split())}")

    async def next_line(self) -> str:
        """What it is to be told next."""
        return await self._asked.get()

    def heard(self, line: bytes) -> bool:
        """Take a line of its; False if it is about something else."""
        if line.startswith(NEWS):
            self.on_news(_news.decode(line.removeprefix(NEWS)))
        elif line.startswith(ENDED):
            self.on_ended(_ended.decode(line.removeprefix(ENDED)))
        else:
            return False
        return True


def as_line(news: EngineNews | EngineEnded) -> bytes:
    """A parent's line."""
    return (NEWS if isinstance(news, EngineNews) else ENDED) + msgspec.json.encode(news)


_news = msgspec.json.Decoder(EngineNews)
_ended = msgspec.json.Decoder(EngineEnded)
