import asyncio
import contextlib

from gateway.serve import supervising


class Choices:
    """Has news at the second look."""

    def __init__(self):
        self.looks = 0

    def news(self):
        self.looks += 1
        return iter(["others hold more"] if self.looks == 2 else [])


class Log:
    def __init__(self):
        self.said = asyncio.Queue()

    def say(self, line):
        self.said.put_nowait(line)


async def test_news_of_what_others_hold_are_logged_when_they_come(monkeypatch):
    monkeypatch.setattr(supervising, "_LOOK", 0.0)
    choices, log = Choices(), Log()
    watching = asyncio.create_task(supervising._watch(choices, log))
    try:
        assert await asyncio.wait_for(log.said.get(), 30) == "others hold more"
        assert choices.looks >= 2
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
