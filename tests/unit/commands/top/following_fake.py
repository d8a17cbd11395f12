"""A kvgate that a test leads."""

import asyncio

from gateway.commands.top.following import RefusedError


class Led:
    """Its pictures are those put into `seen`; what is asked of it is kept."""

    url = "http://k:1"

    def __init__(self, *seen, explained=None):
        self.seen = asyncio.Queue()
        for each in seen:
            self.seen.put_nowait(each)
        self.drained = []
        self.bodies = []
        self.explained = explained
        self.closed = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.closed = True

    async def follow(self):
        while True:
            seen = await self.seen.get()
            if isinstance(seen, Exception):
                raise seen
            yield seen

    async def drain(self, endpoint, *, back):
        self.drained.append((endpoint, back))
        if endpoint == "refused:1":
            raise RefusedError("Only from this machine.")

    async def explain(self, body):
        self.bodies.append(body)
        if self.explained is None:
            raise RefusedError("400: no model")
        return self.explained


def text(app):
    """All that the terminal shows."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())
