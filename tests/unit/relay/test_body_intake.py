import asyncio

import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.settings import ServerSettings
from gateway.relay.body_intake import read_request, read_within_limits
from gateway.relay.exchange import RefusedError
from gateway.relay.payload import Room

LIMITS = ServerSettings(max_body_bytes=100_000, body_timeout=0.02, body_min_rate=7)
LARGE = 2**16 + 1


def receiving(*messages):
    """What a client sends, one message at a time; after the last it is silent."""
    waiting = list(messages)

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    return receive


def piece(size, *, more=True):
    return {"type": "http.request", "body": bytes(size), "more_body": more}


class Answered:
    """An exchange that keeps what it was refused with."""

    flow = "a"

    async def refuse(self, outcome, message, **how):
        self.message, self.how = message, how
        return outcome


@pytest.mark.parametrize(
    ("sent", "outcome", "says", "closes"),
    [
        ([piece(100_001, more=False)], Outcome.BODY_TOO_LARGE, "100001 bytes or more; at most 100000", False),
        ([piece(LARGE, more=False)], Outcome.GATEWAY_FULL, "Too many large bodies", False),
        ([piece(1)], Outcome.INVALID_REQUEST, r"nothing came for 0.02 s, or less than 7 bytes a second", True),
    ],
)
async def test_a_body_over_a_limit_is_refused_alike_whoever_reads_it(sent, outcome, says, closes):
    room = Room(lambda: 0)
    with room.payload("another") as of_another, room.payload("a") as payload, room.payload("a") as asked_about:
        of_another.grown(LARGE)
        answered, receive = Answered(), receiving(*sent)
        assert await read_request(LIMITS, payload, {"headers": []}, receive, answered) is outcome
        with pytest.raises(RefusedError, match=says) as refused:
            await read_within_limits(LIMITS, asked_about, {"headers": []}, receiving(*sent))
    assert (answered.message, answered.how["retry_after"]) == (refused.value.message, refused.value.retry_after)
    assert refused.value.outcome is outcome
    assert (answered.how["close"], answered.how["unread"]) == (closes, None if closes else receive)


async def test_a_whole_body_within_the_limits_is_read():
    with Room(lambda: 0).payload("a") as payload:
        sent = receiving(piece(9, more=False))
        assert await read_request(LIMITS, payload, {"headers": []}, sent, Answered()) is None
        assert payload.data == bytes(9)


async def test_a_byte_order_mark_is_none_of_the_body():
    with Room(lambda: 0).payload("a") as payload:
        sent = receiving({"type": "http.request", "body": b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}'})
        await read_within_limits(LIMITS, payload, {"headers": []}, sent)
        assert payload.data == b'{"a": "\xef\xbb\xbf"}'
