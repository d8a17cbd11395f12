import asyncio
from types import SimpleNamespace

import pytest

from gateway.server.asgi import DIRECT, Body, path, send_answer
from gateway.wire.errors import ErrorAnswer
from tests.unit.server.messages import LEFT, piece, receiving

ANSWER = ErrorAnswer(400, ((b"content-length", b"2"),), b"{}")


async def test_an_answer_to_an_unread_body_closes_only_when_that_has_ended():
    sent = []

    async def send(message):
        sent.append((message["type"], dict(message), len(unread.waiting)))

    unread = receiving(piece(b"x", more=True), piece(b"x", more=False))
    await send_answer(send, ANSWER, unread=unread)
    start, told, ended = sent
    assert (b"connection", b"close") in start[1]["headers"]
    assert (told[1]["body"], told[1]["more_body"], told[2]) == (b"{}", True, 2)
    assert (ended[1]["more_body"], ended[2]) == (False, 0)


async def test_an_answer_to_an_unread_body_outlives_its_client():
    sent = []

    async def send(message):
        sent.append(message)

    await send_answer(send, ANSWER, unread=receiving(piece(b"x", more=True), LEFT))
    assert sent[-1]["more_body"] is False


@pytest.mark.usefixtures("hurried")
async def test_an_unread_body_is_not_awaited_for_ever():
    sent = []

    async def send(message):
        sent.append(message)

    loop = asyncio.get_running_loop()
    began = loop.time()
    await send_answer(send, ANSWER, unread=receiving(piece(b"x", more=True)))
    assert 9 < loop.time() - began < 11
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize("close", [True, False])
async def test_an_answer_to_a_body_that_was_read_is_sent_at_once(close):
    sent = []

    async def send(message):
        sent.append(message)

    await send_answer(send, ANSWER, ((b"x-more", b"1"),), close=close)
    start, body = sent
    closing = [(b"connection", b"close")] if close else []
    assert (start["status"], start["headers"]) == (400, [*ANSWER.headers, (b"x-more", b"1"), *closing])
    assert body == {"type": "http.response.body", "body": b"{}"}


async def test_a_body_is_written_by_the_server_where_it_offers_to_and_sent_piece_by_piece_elsewhere():
    sent, written = [], []

    async def send(message):
        sent.append((message["body"], message["more_body"]))

    offered = SimpleNamespace(write=lambda data: written.append(data) or True)
    direct = Body({"extensions": {DIRECT: offered}}, send)
    assert direct.write(b"a")
    assert (written, sent) == ([b"a"], [])
    elsewhere = Body({}, send)
    for data in (b"b", b"c"):
        assert not elsewhere.write(data)
    assert sent == []
    await elsewhere.drained()
    await elsewhere.drained()
    assert sent == [(b"bc", True), (b"", True)]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ({"raw_path": b"/v1/a%20b", "path": "/v1/a b", "query_string": b""}, "/v1/a%20b"),
        ({"raw_path": b"/v1/a?x=1", "path": "/v1/a", "query_string": b"x=1"}, "/v1/a?x=1"),
        ({"path": "/v1/a", "query_string": b"x=%2F"}, "/v1/a?x=%2F"),
    ],
)
def test_a_path_goes_on_as_the_client_wrote_it(scope, expected):
    assert path(scope) == expected
