"""One request to an ASGI application, and what its client gets."""

import asyncio
import json


class Asking:
    """A request under way. It sends its body in pieces, and stays until `left` is set."""

    def __init__(self, app, path, method="POST", *, body=(b"",), headers=(), send=None):
        self.messages = []
        self.left = asyncio.Event()
        self.unsent = list(body)
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [*headers], "client": ("10.0.0.1", 5),
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, send or self._send))

    async def _receive(self):
        if self.unsent:
            return {"type": "http.request", "body": self.unsent.pop(0), "more_body": bool(self.unsent)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.messages.append(message)

    async def answered(self):
        await self.task
        return self

    @property
    def status(self):
        return self.messages[0]["status"]

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self):
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self):
        return json.loads(self.body)["error"]
