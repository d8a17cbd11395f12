import asyncio

import pytest

from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.relay.exchange import Exchange
from gateway.relay.heartbeat import ASKED_WITHIN, comment, heartbeat
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import Api

pytestmark = pytest.mark.usefixtures("hurried")


class Client:
    """Takes what is sent; with `stalls` it stops reading after the head."""

    def __init__(self, *, stream=True, stalls=False):
        self.messages = []
        self.stalls = stalls
        scope = {"path": "/", "headers": [], "type": "http"}
        self.exchange = Exchange.begin(scope, self.send, asyncio.get_running_loop().time, Api.CHAT)
        self.exchange.stream = stream
        self.exchange.count = PromptCount((12,), Source.LOCAL, Kind(Api.CHAT))

    async def send(self, message):
        if self.stalls and self.messages:
            await asyncio.Event().wait()
        self.messages.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages)


async def unknown():
    """Nobody says where the request stands."""


async def test_each_heartbeat_tells_the_place_and_the_wait_of_now():
    turns = iter([Turn(3, 2.14), Turn(2, None), None])

    async def turn():
        return next(turns)

    client = Client()
    async with heartbeat(client.exchange, 5, turn):
        await asyncio.sleep(16)
    assert client.body == b": kvgate position=3 eta=2.1\n\n: kvgate position=2\n\n: kvgate queued\n\n"


@pytest.mark.parametrize("how", [asyncio.Event().wait, lambda: asyncio.wait_for(asyncio.sleep(60), 0.1)])
async def test_an_owner_that_does_not_say_holds_up_no_heartbeat(how):
    client = Client()
    async with heartbeat(client.exchange, 5, how):
        await asyncio.sleep(5 + 2 * ASKED_WITHIN)
    assert client.body == comment(None)


async def test_who_waits_long_is_told_again_and_again_that_it_waits():
    client = Client()
    async with heartbeat(client.exchange, 5, unknown):
        await asyncio.sleep(16)
    start, *rest = client.messages
    assert len(rest) == 3
    headers = dict(start["headers"])
    assert start["status"] == client.exchange.response.status == 200
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-kvgate-prompt-tokens"] == b"12"
    assert not {b"x-kvgate-queue-ms", b"x-kvgate-endpoint"} & headers.keys(), "not known yet"
    assert all(message["body"] == b": kvgate queued\n\n" and message["more_body"] for message in rest)
    assert client.exchange.response.head_sent
    assert not client.exchange.response.answer_begun, "another endpoint may still be tried"
    await asyncio.sleep(60)
    assert len(client.messages) == 4, "nothing is sent once the wait is over"


async def test_a_second_wait_goes_on_in_the_same_stream():
    client = Client()
    for sent in (3, 5):
        async with heartbeat(client.exchange, 5, unknown):
            await asyncio.sleep(11)
        assert len(client.messages) == sent
    assert [message["type"] for message in client.messages].count("http.response.start") == 1


@pytest.mark.parametrize(("interval", "stream"), [(None, True), (1, False)])
async def test_only_streams_have_heartbeats_and_only_where_they_are_on(interval, stream):
    client = Client(stream=stream)
    async with heartbeat(client.exchange, interval, unknown):
        await asyncio.sleep(60)
    assert client.messages == []


async def test_a_short_wait_has_none():
    client = Client()
    async with heartbeat(client.exchange, 5, unknown):
        await asyncio.sleep(4)
    await asyncio.sleep(60)
    assert client.messages == []


async def test_a_client_that_does_not_read_holds_nobody_up():
    client = Client(stalls=True)
    async with asyncio.timeout(60), heartbeat(client.exchange, 5, unknown):
        await asyncio.sleep(50)
    assert len(client.messages) == 1


async def test_a_refusal_after_a_heartbeat_is_told_in_the_stream():
    client = Client()
    async with heartbeat(client.exchange, 5, unknown):
        await asyncio.sleep(6)
    await client.exchange.refuse(Outcome.QUEUE_TIMEOUT, "No room became free in time.", retry_after=2)
    assert b'"code":"queue_timeout"' in client.body
    assert client.body.endswith(b"\n\n")
    assert client.messages[-1]["more_body"] is False
    assert [message["type"] for message in client.messages].count("http.response.start") == 1


async def test_nothing_else_is_sent_while_a_comment_is_still_leaving():
    class Slow(Client):
        async def send(self, message):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1)
                self.messages.append(message)

    client = Slow()
    async with heartbeat(client.exchange, 5, unknown):
        await asyncio.sleep(6)
    assert len(client.messages) == 1
