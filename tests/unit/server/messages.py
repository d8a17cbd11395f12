"""What a client sends, as ASGI messages."""

import asyncio

LEFT = {"type": "http.disconnect"}


def piece(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


def receiving(*messages):
    """What a client sends, one message at a time; after the last it is silent."""
    waiting = list(messages)

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    receive.waiting = waiting
    return receive
