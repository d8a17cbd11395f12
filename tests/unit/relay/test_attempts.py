import asyncio
import json

import pytest

from gateway.admission.events import Progress, ShutdownStarted
from gateway.relay import attempt
from gateway.relay.payload import Room
from gateway.runtime.turnstile import MOST
from gateway.tokens.count import Source
from gateway.upstream.interface import ConnectionLostError, UpstreamError
from gateway.wire.token_ids import IdsField
from tests.fakes.plane import (
    ASKED,
    CHAT,
    DONE,
    LAST,
    TOKEN,
    USED,
    WHOLE,
    Counter,
    FakePlane,
    Reply,
    asked,
    error_of,
    stream,
    would,
)
from tests.until import PATIENCE

pytestmark = pytest.mark.usefixtures("hurried")

BUSY = b'{"error":{"message":"we are currently busy","code":503}}'


@pytest.fixture
async def plane(hurried):
    return FakePlane()


@pytest.fixture
async def observing(hurried):
    return FakePlane(admission={"mode": "observe"})


async def occupy(plane, answer=WHOLE):
    """A request that has the only place; and the event after which it is answered."""
    free = asyncio.Event()
    plane.replies.append(Reply(free, answer))
    client = plane.ask()
    await plane.turns()
    return client, free


async def test_a_request_is_counted_admitted_and_answered(plane):
    plane.replies.append(Reply(WHOLE))
    client = await plane.ask().ended()
    assert (client.status, client.body) == (200, WHOLE)
    (line,) = plane.lines
    assert (line["flow"], line["model"], line["endpoint"], line["counted"]) == ("peer", "m", "a", "local")
    assert plane.sent[0][4] == ASKED
    assert plane.in_flight == 0


async def test_one_that_waits_for_its_turn_says_how_long(plane):
    first, free = await occupy(plane)
    plane.replies.append(Reply(WHOLE))
    second = plane.ask()
    await asyncio.sleep(2)
    free.set()
    await first.ended()
    assert 2000 <= int((await second.ended()).headers["x-kvgate-queue-ms"]) < 3000
    waits = plane.metrics.registry.get_sample_value
    assert waits("kvgate_queue_wait_seconds_count") == 2
    assert waits("kvgate_queue_wait_seconds_sum") >= 2


@pytest.mark.parametrize(
    ("queue", "status", "code", "waits"),
    [({"max_requests": 0}, 429, "queue_full", 1), ({"ttl": 2.0}, 429, "queue_timeout", 2)],
)
async def test_one_that_is_refused_is_told_when_to_come_back(hurried, queue, status, code, waits):
    plane = FakePlane(admission={"queue": queue, "ttft_target": None})
    first, free = await occupy(plane)
    for _ in range(2):
        refused = await plane.ask().ended()
        assert (refused.status, error_of(refused)["code"]) == (status, code)
        assert f"Please retry in {refused.headers['retry-after']} s." in error_of(refused)["message"]
    samples = plane.metrics.registry.get_sample_value
    assert samples("kvgate_returns_total", {"model": "m"}) == 1, "the second time it came back"
    free.set()
    await first.ended()
    assert samples("kvgate_queue_wait_seconds_count") == 1 + 2 * (waits == 2), "who is refused at once has not waited"


async def test_a_client_that_leaves_the_queue_leaves_no_place_behind(plane):
    first, free = await occupy(plane)
    second = plane.ask()
    await plane.turns()
    second.leave()
    await second.ended()
    assert plane.lines[-1]["outcome"] == "client_closed"
    free.set()
    await first.ended()
    assert plane.in_flight == 0
    assert len(plane.sent) == 1


async def test_one_that_its_endpoint_has_no_room_for_waits_again(plane):
    plane.replies.extend([Reply(BUSY, status=503), Reply(WHOLE)])
    client = await plane.ask().ended()
    assert client.status == 200
    assert int(client.headers["x-kvgate-queue-ms"]) > 0


async def test_one_that_waits_again_in_vain_is_told_what_its_endpoint_said(hurried):
    plane = FakePlane(admission={"queue": {"ttl": 0.5}, "ttft_target": None})
    plane.replies.append(Reply(BUSY, status=503))
    client = await plane.ask().ended()
    assert (client.status, error_of(client)["code"]) == (429, "queue_timeout")
    assert "we are currently busy" in error_of(client)["message"]


@pytest.mark.parametrize(("kind", "completion_tokens"), [("vllm", 1), ("llama-server", 3)])
async def test_the_usage_of_one_of_several_sequences_stands_for_all(plane, kind, completion_tokens):
    plane.up("a", kind=kind)
    plane.replies.append(Reply(WHOLE))
    await plane.ask(asked(n=3)).ended()
    (line,) = plane.lines
    assert (line["prompt_tokens"], line["completion_tokens"]) == (3, completion_tokens)


async def test_a_prompt_of_which_an_engine_tells_nothing_is_that_which_was_counted(plane):
    """So does a llama-server in some streamed messages. Three of them made its counts estimates."""
    plane.replies += [Reply(WHOLE), Reply(WHOLE.replace(b'"prompt_tokens":3,', b""))]
    for _ in range(2):
        await plane.ask().ended()
    told, untold = plane.lines
    assert (untold["prompt_tokens"], untold["completion_tokens"]) == (told["prompt_tokens"], 1)
    assert plane.counter.settled == [3], "nothing was told with which it could be compared"


SIZE = 4 << 20
LARGE = asked(stream=True, metadata={"p": "x" * SIZE})
REWRITTEN = asked(stream=True, stream_options={}, metadata={"p": "x" * SIZE})


async def sent(plane):
    """The body of the next request to an endpoint, which forgets it."""
    while not plane.sent:  # noqa: ASYNC110  # a large body is read in a thread
        await asyncio.sleep(0.01)
    return plane.sent.pop()[4]


@pytest.mark.parametrize("body", [LARGE, REWRITTEN], ids=["as it came", "rewritten"])
@pytest.mark.parametrize("status", [200, 422])
async def test_a_body_is_kept_once_until_its_answer_begins_and_no_longer(plane, memory, body, status):
    begins = asyncio.Event()
    answer = stream(begins, TOKEN, asyncio.Event()) if status == 200 else Reply(begins, b"{}", status=status)
    plane.replies.append(answer)
    client = plane.ask(body)
    assert json.loads(await sent(plane))["stream_options"] == {"include_usage": True}
    assert memory() > SIZE
    async with asyncio.timeout(PATIENCE):
        while memory() > 1.75 * SIZE:  # noqa: ASYNC110  # the thread that read it is about to forget it
            await asyncio.sleep(0.01)
    assert plane.plane.bodies._shares.held == len(body)
    client.takes = asyncio.Event()
    begins.set()
    await plane.turns()
    assert memory() < SIZE / 8
    assert plane.plane.bodies._shares.held == 0
    client.leave()
    await client.ended()


async def test_a_body_is_there_for_another_try(plane):
    plane.replies.extend([Reply(BUSY, status=503), Reply(WHOLE)])
    client = plane.ask(LARGE)
    assert json.loads(await sent(plane)) == json.loads(await sent(plane))
    assert (await client.ended()).status == 200


@pytest.mark.parametrize("gone", ["left", "answered"])
async def test_bodies_that_were_sent_and_have_no_answer_leave_others_no_room(plane, gone):
    plane.plane.bodies = Room(lambda: 3 * SIZE)
    begins = asyncio.Event()
    plane.replies.append(stream(begins, TOKEN, asyncio.Event()))
    first = plane.ask(LARGE)
    await sent(plane)
    refused = await plane.ask(LARGE).ended()
    assert (refused.status, error_of(refused)["code"]) == (503, "gateway_full")
    first.leave() if gone == "left" else begins.set()
    await plane.turns()
    if gone == "answered":
        plane.up("a", sequences=2)
    plane.replies.append(Reply(WHOLE))
    assert (await plane.ask(LARGE).ended()).status == 200
    first.leave()
    await first.ended()


# Observe mode.


async def test_to_observe_is_to_count_what_would_have_waited(observing):
    first, free = await occupy(observing)
    observing.replies.append(Reply(WHOLE))
    assert (await observing.ask().ended()).status == 200
    free.set()
    await first.ended()
    assert would(observing) == {"queued": 1}
    assert observing.in_flight == 0


async def test_token_ids_go_to_an_endpoint_that_takes_them():
    plane = FakePlane("a")
    plane.counter.ids = b"[5,6,7]"
    plane.counter.takes = {"http://a": IdsField.TRANSFER}
    plane.replies.append(Reply(WHOLE))
    await plane.ask().ended()
    assert json.loads(plane.sent[0][4]) == json.loads(ASKED) | {"kv_transfer_params": {"prompt_token_ids": [5, 6, 7]}}
    assert plane.counter.handed_to == ["http://a"]


async def test_a_request_that_is_sent_again_brings_ids_only_where_they_are_taken():
    plane = FakePlane("a", "b")
    plane.counter.ids = b"[5,6,7]"
    plane.replies += [UpstreamError("gone"), Reply(WHOLE)]
    plane.counter.takes = {"http://a": IdsField.OWN}
    await plane.ask().ended()
    bodies = {url: json.loads(body) for url, _, _, _, body in plane.sent}
    assert "prompt_token_ids" in bodies["http://a"]
    assert bodies["http://b"] == json.loads(ASKED)
    assert plane.counter.handed_to == [None if plane.sent[1][0] == "http://b" else "http://a"]


async def test_ids_of_a_tokenizer_that_the_pool_has_no_more_stay_here_and_prove_nothing():
    """While the second waits, the engine restarts with another model, and the pool follows it to its tokenizer."""
    plane = FakePlane("a")
    plane.counter.ids = b"[5,6,7]"
    plane.counter.takes = {"http://a": IdsField.TRANSFER}
    first, free = await occupy(plane)
    waiting = plane.ask()
    await plane.turns()
    another = Counter()
    another.takes = plane.counter.takes
    plane.pool.counter = another
    plane.replies.append(Reply(WHOLE))
    free.set()
    await first.ended()
    assert (await waiting.ended()).status == 200
    assert json.loads(plane.sent[1][4]) == json.loads(ASKED)
    assert another.settled == plane.counter.settled == []


# Hundreds at once.

MANY = 4 * MOST


async def few_at_once(clients, noted):
    """All clients end; and the list, in which something of each is noted, never grows by many in a turn of the loop."""
    grew, began = [], len(noted)
    while len(grew) < 1000 and not all(client.task.done() for client in clients):
        before = len(noted)
        await asyncio.sleep(0)
        grew.append(len(noted) - before)
    assert all(client.task.done() for client in clients)
    assert len(noted) - began == len(clients)
    return max(grew) <= 2 * MOST


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASKED), ("/tokenize", b'{"model":"m","prompt":"x"}')])
async def test_what_a_dying_engine_had_is_sent_again_a_few_a_turn_of_the_loop(hurried, path, body):
    plane, died = FakePlane("a", "b", ready=False), asyncio.Event()
    plane.up("a", sequences=MANY)
    plane.replies += [Reply(died, ConnectionLostError("lost")) for _ in range(MANY)]
    clients = [plane.ask(body, path=path) for _ in range(MANY)]
    await plane.turns()
    plane.up("b", sequences=MANY)
    plane.replies += [Reply(WHOLE) for _ in range(MANY)]
    died.set()
    assert await few_at_once(clients, plane.sent)
    assert [client.status for client in clients] == [200] * MANY


async def test_the_streams_of_a_dying_engine_end_a_few_a_turn_of_the_loop(plane):
    died = asyncio.Event()
    plane.up("a", sequences=MANY)
    plane.replies += [stream(TOKEN, died, ConnectionLostError("lost")) for _ in range(MANY)]
    clients = [plane.ask(asked(stream=True)) for _ in range(MANY)]
    await plane.turns()
    died.set()
    assert await few_at_once(clients, plane.lines)
    assert all(b'"error"' in client.body for client in clients)


@pytest.mark.parametrize("ready", [True, False], ids=["in the queue", "outside, while nothing is known of the model"])
async def test_what_waited_for_an_endpoint_goes_on_a_few_a_turn_of_the_loop(hurried, ready):
    plane = FakePlane("a", ready=ready)
    if ready:
        await occupy(plane)
    clients = [plane.ask() for _ in range(MANY)]
    await plane.turns()
    plane.replies += [Reply(WHOLE) for _ in range(MANY)]
    plane.up("a", sequences=2 * MANY)
    assert await few_at_once(clients, plane.sent)
    assert [client.status for client in clients] == [200] * MANY


async def test_what_waits_in_vain_is_refused_a_few_a_turn_of_the_loop(plane):
    await occupy(plane)
    clients = [plane.ask() for _ in range(MANY)]
    await plane.turns()
    (driver,) = plane.cores.drivers.values()
    driver.handle(ShutdownStarted())
    assert await few_at_once(clients, plane.lines)
    assert {client.status for client in clients} == {503}


@pytest.mark.parametrize(("source", "told"), [(Source.LOCAL, None), (Source.ESTIMATE, 3), (Source.BOUND, 3)])
async def test_an_estimated_prompt_is_corrected_by_what_its_engine_says(plane, source, told):
    plane.counter.source, ended = source, []
    plane.admissions["m"].finish = lambda *event: ended.append(event)
    plane.replies.append(Reply(WHOLE))
    await plane.ask().ended()
    assert [event[2:] for event in ended] == [(1, told)]


async def test_an_estimate_whose_answer_breaks_off_costs_nothing_but_its_tokens(plane):
    """It may be many times the prompt: of twenty streams that broke a key was over its limit for minutes."""
    plane.counter.source, ended = Source.BOUND, []
    plane.admissions["m"].finish = lambda *event: ended.append(event)
    plane.replies.append(stream(TOKEN, ConnectionLostError("it was reset")))
    await plane.ask(asked(stream=True)).ended()
    assert [event[2:] for event in ended] == [(None, 0)]


async def test_no_engine_has_more_of_an_estimated_prompt_than_its_model_takes(plane):
    plane.counter.source, ended = Source.ESTIMATE, []
    plane.admissions["m"].finish = lambda *event: ended.append(event)
    plane.replies.append(Reply(WHOLE.replace(b'"prompt_tokens":3', b'"prompt_tokens":2147483647')))
    await plane.ask().ended()
    assert [event[3] for event in ended] == [plane.pool.max_model_len]


async def test_what_an_answer_has_beyond_what_a_bound_left_to_it_is_charged_too(plane):
    plane.counter.source, plane.counter.prompts, ended = Source.BOUND, (10**6,), []
    plane.admissions["m"].finish = lambda *event: ended.append(event)
    plane.replies.append(Reply(WHOLE.replace(b'"completion_tokens":1', b'"completion_tokens":50')))
    await plane.ask().ended()
    assert [event[2:] for event in ended] == [(1, 3 + 49)]


TOO_LONG = b'{"error":{"message":"This model\'s maximum context length is 5 tokens.","code":400}}'


@pytest.mark.parametrize(("source", "told"), [(Source.LOCAL, None), (Source.ESTIMATE, 0)])
@pytest.mark.parametrize("refused", ["not found", "too long", "too long in a stream"])
async def test_an_estimate_that_its_engine_refuses_costs_nothing(plane, refused, source, told):
    reply, status, streams = {
        "not found": (Reply(b'{"error":{"message":"no such response"}}', status=404), 404, False),
        "too long": (Reply(TOO_LONG, status=400), 400, False),
        "too long in a stream": (stream(b"data: " + TOO_LONG + b"\n\n", DONE), 400, True),
    }[refused]
    plane.counter.source, ended = source, []
    plane.admissions["m"].finish = lambda *event: ended.append(event)
    plane.replies.append(reply)
    assert (await plane.ask(asked(stream=streams)).ended()).status == status
    assert [event[2:] for event in ended] == [(0, told)]


ONE = b'"completion_tokens":1'
LIE = b'"completion_tokens":2147483647'


@pytest.mark.parametrize(
    ("reply", "streams", "finished"),
    [
        (Reply(WHOLE.replace(ONE, b'"completion_tokens":0')), False, 1),
        (Reply(WHOLE.replace(ONE, LIE)), False, 8),
        (stream(TOKEN, LAST, USED.replace(ONE, LIE), DONE), True, 8),
        (stream(TOKEN.replace(b"}]}", b'}],"usage":{"prompt_tokens":3,%b}}' % LIE), 60.0), True, None),
        (stream(TOKEN * 50, 60.0), True, None),
    ],
    ids=["none", "whole", "streamed", "beside a token", "more tokens than asked for"],
)
async def test_whatever_an_engine_says_no_completed_request_generated_nothing_or_more_than_it_may(
    plane, reply, streams, finished
):
    decider, told = plane.admissions["m"].decider, []
    handle = decider.handle
    decider.handle = lambda event: (told.append(event), handle(event))
    plane.replies.append(reply)
    client = plane.ask(asked(n=2, max_tokens=4, stream=streams))
    await asyncio.sleep(1)
    client.leave()
    await client.ended()
    assert told[-1].completion_tokens == finished
    assert all(count <= 8 for event in told if isinstance(event, Progress) for _, count in event.generated)


@pytest.mark.parametrize(("pause", "finished"), [(0.0, 1), (60.0, 8)], ids=["read to its end", "left"])
async def test_an_answer_too_large_to_hold_is_charged_too(plane, monkeypatch, pause, finished):
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", 10)
    decider, told = plane.admissions["m"].decider, []
    handle = decider.handle
    decider.handle = lambda event: (told.append(event), handle(event))
    plane.replies.append(Reply(WHOLE[:30], pause, WHOLE[30:]))
    client = plane.ask(asked(n=2, max_tokens=4))
    await asyncio.sleep(1)
    client.leave()
    await client.ended()
    assert told[-1].completion_tokens == finished
    assert plane.lines[-1]["completion_tokens"] == (None if pause else 1)
