"""kvgate as a process of its own that tells how long one stretch of its event loop was: what this suite attacks.

Settings come as one line of JSON on standard input, then one line for each question. Answers go to standard output.
"""

import asyncio
import functools
import gc
import json
import resource
import sys
import threading
import time

import uvloop

from gateway.app.application import Application
from gateway.config.settings import Settings
from gateway.ops.logs import configure
from gateway.serve.lifetime import run

TICK = 0.002
"""Seconds between two looks: so much may have been other work, of no request in particular."""


class Stretch:
    """The CPU time the loop's thread took between two looks, most of all: never wall time, which others spend too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest = 0.0
        self._loop = loop
        self._before = time.thread_time()
        loop.call_later(TICK, self._tick)

    def look(self) -> None:
        """Add what was taken since the last look."""
        now = time.thread_time()
        self.longest = max(self.longest, now - self._before)
        self._before = now

    def _tick(self) -> None:
        self.look()
        self._loop.call_later(TICK, self._tick)


def _answer(loop: asyncio.AbstractEventLoop, stretch: Stretch) -> None:
    """Each line asks for the longest stretch since the last one, in seconds."""
    for _ in sys.stdin:
        asyncio.run_coroutine_threadsafe(_tell(stretch), loop).result()


async def _tell(stretch: Stretch) -> None:
    stretch.look()
    longest = stretch.longest
    gc.collect()  # of what the attack left behind: it is not the next one's
    await asyncio.sleep(2 * TICK)  # what telling takes is nobody's stretch
    stretch.longest = 0.0
    print(longest, flush=True)


class _Watched(Application):
    """A gateway that says its port and answers for its loop as soon as it listens."""

    async def start(self, settle: float = 0.0) -> None:
        await super().start(settle)
        loop = asyncio.get_running_loop()
        threading.Thread(target=_answer, args=(loop, Stretch(loop)), daemon=True).start()
        print(self.port, flush=True)


def main() -> None:
    """Serve until SIGTERM. The one argument is how many file descriptors there are."""
    for limit in map(int, sys.argv[1:]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    settings = Settings.model_validate(json.loads(sys.stdin.readline()))
    configure(settings.log)
    uvloop.run(run(functools.partial(_Watched, settings)))


if __name__ == "__main__":
    main()
