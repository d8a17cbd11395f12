import asyncio

import pytest

from gateway.relay.response import TRANSITIONS, Response, State, Step
from gateway.wire.errors import ErrorAnswer

HEADERS = [(b"x", b"y")]
TO = {
    State.WAITING: (),
    State.OPENED: (Step.OPEN,),
    State.BEGUN: (Step.BEGIN,),
    State.ENDED: (Step.BEGIN, Step.END),
}
"""The steps that lead to a state."""


class Client:
    """Keeps what reaches it; takes nothing while it `stalls`."""

    def __init__(self):
        self.messages = []
        self.stalls = False
        self.response = Response({}, self.send)

    async def send(self, message):
        if self.stalls:
            await asyncio.Event().wait()
        self.messages.append(message)

    async def take(self, *steps):
        for step in steps:
            await {
                Step.OPEN: lambda: self.response.open(HEADERS),
                Step.BEGIN: lambda: self.response.begin(201, HEADERS),
                Step.WRITE: lambda: self.response.write(b"piece"),
                Step.END: lambda: self.response.end(b"last"),
            }[step]()

    async def give_up(self, step):
        """Begin a step that the client does not let happen, and give up."""
        self.stalls = True
        task = asyncio.create_task(self.take(step))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        self.stalls = False


@pytest.fixture
def client():
    return Client()


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("state", State)
async def test_the_table_is_followed_and_nothing_else_is_sent(client, state, step):
    await client.take(*TO[state])
    assert client.response.state is state
    sent = len(client.messages)
    if (state, step) in TRANSITIONS:
        await client.take(step)
        assert client.response.state is TRANSITIONS[state, step]
    else:
        with pytest.raises(RuntimeError, match=f"{step.name} of a response that is {state.name}"):
            await client.take(step)
        assert (client.response.state, len(client.messages)) == (state, sent)


@pytest.mark.parametrize("state", State)
async def test_it_says_whether_an_answer_has_begun(client, state):
    await client.take(*TO[state])
    assert client.response.answer_begun is (state in (State.BEGUN, State.ENDED))
    assert client.response.head_sent is (state is State.OPENED)


async def test_an_answer_has_one_head_and_one_end(client):
    await client.take(Step.BEGIN, Step.WRITE, Step.WRITE, Step.END)
    assert client.messages == [
        {"type": "http.response.start", "status": 201, "headers": HEADERS},
        *[{"type": "http.response.body", "body": b"piece", "more_body": True}] * 2,
        {"type": "http.response.body", "body": b"last", "more_body": False},
    ]


async def test_an_answer_behind_an_opened_stream_has_the_head_that_has_left(client):
    await client.take(Step.OPEN, Step.WRITE, Step.BEGIN)
    assert [message["type"] for message in client.messages] == ["http.response.start", "http.response.body"]
    assert client.response.status == client.messages[0]["status"] == 200


@pytest.mark.parametrize(
    ("before", "step", "after"),
    [
        ((), Step.OPEN, State.WAITING),
        ((), Step.BEGIN, State.BEGUN),
        ((Step.BEGIN,), Step.WRITE, State.BEGUN),
        ((Step.BEGIN,), Step.END, State.BEGUN),
    ],
)
async def test_what_its_client_did_not_take_was_not_sent_but_an_answer_once_begun_stays_begun(
    client, before, step, after
):
    await client.take(*before)
    await client.give_up(step)
    assert client.response.state is after
    assert len(client.messages) == len(before)


async def test_an_answer_of_our_own_is_sent_whole_and_only_where_nothing_has_left(client):
    answer = ErrorAnswer(418, ((b"a", b"b"),), b"no")
    await client.response.answer(answer, ((b"c", b"d"),), close=False, unread=None)
    start, body = client.messages
    assert (start["status"], start["headers"], body["body"]) == (418, [(b"a", b"b"), (b"c", b"d")], b"no")
    assert (client.response.state, client.response.status) == (State.ENDED, 418)
    with pytest.raises(RuntimeError):
        await client.response.answer(answer, (), close=False, unread=None)
