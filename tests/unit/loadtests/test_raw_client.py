"""The raw client, against the fake vLLM."""

import asyncio

import msgspec
import pytest

from loadtests.raw_client import Repeater, Stream, Tally, post
from loadtests.relay_cost import Load, repeat
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.until import PATIENCE

CHAT = "/v1/chat/completions"
SETTINGS = FakeSettings(step_seconds=0.005)


def asked(*, stream: bool, tokens: int = 5) -> bytes:
    messages = [{"role": "user", "content": "one two"}]
    fields = {"model": "fake", "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return post(CHAT, msgspec.json.encode(fields))


async def followed(fake: FakeVllm, tally: Tally, tokens: int = 5) -> Stream:
    """One stream to its end."""
    loop = asyncio.get_running_loop()
    request = asked(stream=True, tokens=tokens)
    _, stream = await loop.create_connection(lambda: Stream(request, tally), "127.0.0.1", fake.port)
    await asyncio.wait_for(stream.ended, PATIENCE)
    return stream


@pytest.mark.parametrize("fault", [None, Fault(FaultKind.SPLIT, pieces=7, path=CHAT)])
async def test_a_whole_stream_is_counted_and_seen_to_be_whole(fault):
    tally = Tally(1)
    async with FakeVllm(SETTINGS, faults=[fault] if fault else []) as fake:
        stream = await followed(fake, tally)
    assert (stream.status, stream.check.intact, stream.check.events, stream.check.error) == (200, True, 5, None)
    assert (tally.events, tally.waiting) == (5, 0)


@pytest.mark.parametrize(
    ("fault", "status", "events"),
    [
        (Fault(FaultKind.RESET_MID_STREAM, after=2, path=CHAT), 0, 2),
        (Fault(FaultKind.STATUS, path=CHAT), 503, 0),
        (Fault(FaultKind.NO_DONE, path=CHAT), 200, 5),
    ],
)
async def test_a_broken_stream_ends_and_is_not_taken_for_whole(fault, status, events):
    async with FakeVllm(SETTINGS, faults=[fault]) as fake:
        stream = await followed(fake, Tally(1))
    assert (stream.status, stream.check.intact, stream.check.events) == (status, False, events)


async def test_all_have_started_when_the_last_has_its_first_token():
    tally = Tally(2)
    async with FakeVllm(SETTINGS) as fake:
        await followed(fake, tally)
        assert (tally.waiting, tally.all_started.is_set()) == (1, False)
        await followed(fake, tally)
    assert (tally.waiting, tally.all_started.is_set(), tally.events) == (0, True, 10)


async def repeating(fake: FakeVllm, enough: int) -> Repeater:
    """One that was told to stop after so many answers, at its end."""
    loop = asyncio.get_running_loop()
    request = asked(stream=False, tokens=1)
    _, repeater = await loop.create_connection(lambda: Repeater(request), "127.0.0.1", fake.port)
    async with asyncio.timeout(PATIENCE):
        while repeater.answered < enough and not repeater.stopped.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        repeater.stop()
        await repeater.stopped
    return repeater


async def test_requests_follow_each_other_on_one_connection_until_the_last():
    async with FakeVllm(SETTINGS) as fake:
        repeater = await repeating(fake, 3)
        sent = [seen for seen in fake.seen if seen.path == CHAT]
    assert (repeater.answered, repeater.failed) == (4, 0), "the one in flight was the last"
    assert len(sent) == 4
    assert len({seen.connection for seen in sent}) == 1


@pytest.mark.parametrize("kind", [FaultKind.STATUS, FaultKind.CLOSE_BEFORE_ANSWER])
async def test_whatever_is_not_200_has_failed(kind):
    async with FakeVllm(SETTINGS, faults=[Fault(kind, path=CHAT)]) as fake:
        assert (await repeating(fake, 1)).failed == 1


def test_a_request_has_its_length_and_the_headers_given():
    head, _, body = post("/x", b"12345", {"Authorization": "Bearer k"}).partition(b"\r\n\r\n")
    assert body == b"12345"
    assert head.split(b"\r\n") == [
        b"POST /x HTTP/1.1",
        b"Host: loadtest",
        b"Authorization: Bearer k",
        b"Content-Type: application/json",
        b"Content-Length: 5",
    ]


async def test_each_request_of_a_repeater_has_a_number_of_its_own():
    async with FakeVllm(FakeSettings(step_seconds=0.002)) as fake:
        await repeat(fake.port, Load(0).request, 0.1)
        bodies = {seen.body for seen in fake.seen}
        assert len(bodies) == len(fake.seen) > 1
        assert len({len(body) for body in bodies}) == 1
