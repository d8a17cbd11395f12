import asyncio
import itertools
import json

import pytest

from gateway.admission.events import EndpointId, Observed
from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.relay import attempt
from gateway.relay.flights import SWEEP_INTERVAL, Interruption
from gateway.relay.heartbeat import comment
from gateway.upstream.interface import ConnectFailedError, ConnectionLostError
from gateway.wire.passing_usage import PassingUsage
from tests.fakes.plane import ASKED, DONE, LAST, STREAM, STREAMED, TOKEN, USED, WHOLE, FakePlane, Reply, stream
from tests.fakes.vllm.shapes import BUSY, DEAD
from tests.until import until

pytestmark = pytest.mark.usefixtures("hurried")

LOST = ConnectionLostError("the connection was lost")
UNFINISHED = "the engine's stream ended without a finish reason"


def error(message, code=500):
    return json.dumps({"error": {"message": message, "code": code}}).encode()


def event(payload):
    return b"data: " + payload + b"\n\n"


@pytest.fixture
async def plane(hurried):
    return FakePlane("a", "b")


@pytest.fixture
async def lone(hurried):
    """A plane with one endpoint that takes one request at a time, and clients who hear that they wait."""
    return FakePlane("a", admission={"queue": {"heartbeat": 1.0}})


async def opened(plane, *replies):
    """A client that heard that it waits, before these were the answers to it."""
    free = asyncio.Event()
    plane.replies.extend([Reply(free, WHOLE), *replies])
    first = plane.ask()
    await plane.turns()
    waiting = plane.ask(STREAMED)
    await asyncio.sleep(1.5)
    free.set()
    await first.ended()
    return await waiting.ended()


async def flying(plane, body=STREAMED):
    """A client's request, and its flight, once it is with its endpoint."""
    client = plane.ask(body)
    await plane.turns()
    (flight,) = plane.flights._flights.values()
    return client, flight


async def outcome(plane, client):
    """How a client's request ended, once nothing is left of it."""
    await client.ended()
    assert len(plane.flights) == plane.in_flight == 0
    return plane.lines[-1]["outcome"]


# An answer.


@pytest.mark.parametrize(
    ("body", "reply", "got"),
    [
        (ASKED, Reply(WHOLE), WHOLE),
        (STREAMED, stream(), TOKEN + LAST + DONE),
        (STREAMED, Reply(*STREAM, content_type="Text/Event-Stream"), TOKEN + LAST + DONE),
    ],
    ids=["whole", "streamed", "streamed, in capitals"],
)
async def test_an_answer_is_passed_on_and_accounted_for(plane, body, reply, got):
    plane.replies.append(reply)
    client = plane.ask(body)
    assert await outcome(plane, client) == "completed"
    assert (client.status, client.body, client.complete) == (200, got, True)
    assert client.headers["x-kvgate-endpoint"] == plane.lines[-1]["endpoint"]
    assert plane.lines[-1]["completion_tokens"] == 1
    assert plane.counter.settled == [3]
    assert reply.closed


async def test_an_answer_of_an_engine_that_says_no_usage_is_passed_on(plane):
    plane.replies.append(Reply(b"not JSON"))
    client = plane.ask()
    assert await outcome(plane, client) == "completed"
    assert client.body == b"not JSON"
    assert plane.counter.settled == []


async def test_an_answer_too_large_to_hold_is_passed_on_as_it_comes(plane, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", 10)
    plane.replies.append(Reply(b"x" * 11, b"y" * 5, b"z" * 5, content_length="21"))
    client = plane.ask()
    assert await outcome(plane, client) == "completed"
    assert client.headers["content-length"] == "21"
    assert [len(message["body"]) for message in client.messages[1:]] == [11, 5, 5, 0]


async def test_the_counts_of_a_large_answer_are_looked_for_while_others_have_their_turn(plane, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", 2 * attempt.LARGE_PIECE)
    turn, looked = itertools.count(), []

    async def other():
        while True:
            next(turn)
            await asyncio.sleep(0)

    class Looking(PassingUsage):
        def feed(self, piece):
            looked.append((next(turn), len(piece)))
            super().feed(piece)

    monkeypatch.setattr(attempt, "PassingUsage", Looking)
    large = WHOLE.replace(b"{", b'{"metadata":"%b",' % (b"x" * 3 * attempt.LARGE_PIECE), 1)
    plane.replies.append(Reply(large, content_length=str(len(large))))
    task = asyncio.create_task(other())
    client = plane.ask()
    assert await outcome(plane, client) == "completed"
    task.cancel()
    assert (client.body, plane.lines[-1]["completion_tokens"]) == (large, 1)
    turns, sizes = zip(*looked, strict=True)
    assert (sum(sizes), max(sizes)) == (len(large), attempt.LARGE_PIECE)
    assert all(after > before + 1 for before, after in itertools.pairwise(turns))


async def test_one_that_breaks_off_is_cut_off_for_its_client_too(plane, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", 10)
    plane.replies.append(Reply(b"x" * 11, LOST))
    client = plane.ask()
    assert await outcome(plane, client) == "upstream_error"
    assert (client.body, client.complete) == (b"x" * 11, False)


@pytest.mark.parametrize("most", [attempt.MAX_HELD_BYTES, 10], ids=["held", "too large to hold"])
async def test_a_stored_response_is_asked_for_where_it_was_made(plane, monkeypatch, most):
    body = b'{"id":"resp_1","object":"response","status":"completed"}'
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", most)
    plane.replies.extend([Reply(body), Reply(b"{}")])
    await plane.ask(b'{"model":"m","input":"x"}', path="/v1/responses").ended()
    await plane.ask(b"", path="/v1/responses/resp_1", method="GET").ended()
    assert plane.sent[1][:3] == (plane.sent[0][0], "GET", "/v1/responses/resp_1")


@pytest.mark.parametrize(("status", "unanswered"), [(400, 0), (500, 0), (504, 2)])
async def test_one_that_an_engine_refused_was_not_left_unanswered(plane, status, unanswered):
    plane.replies.extend([Reply(error("no"), status=status)] * 2)
    await plane.ask(STREAMED).ended()
    assert sum(plane.watch(name).unanswered for name in "ab") == unanswered


async def test_a_client_that_reads_slowly_is_waited_for(plane):
    plane.replies.append(stream(*STREAM))
    client = plane.ask(STREAMED)
    client.takes = asyncio.Event()
    await plane.turns()
    (flight,) = plane.flights._flights.values()
    assert flight.delivering
    client.takes.set()
    assert await outcome(plane, client) == "completed"


async def test_a_client_that_reads_slowly_keeps_nobody_out_once_the_engine_is_done(plane):
    plane.replies.append(stream(*STREAM))
    client = plane.ask(STREAMED)
    client.takes = asyncio.Event()
    await asyncio.sleep(2 * SWEEP_INTERVAL)
    plane.flights.sweep()
    (driver,) = plane.cores.drivers.values()
    for sequences in (1, 0):
        await asyncio.sleep(2)
        for name in "ab":
            plane.cores.observed(Observed(EndpointId(name), plane.now(), 0.0, 0, 0, None))
        assert driver.controller.load(plane.now()).sequences == sequences
    assert plane.in_flight == 1
    client.takes.set()
    assert await outcome(plane, client) == "completed"
    assert plane.in_flight == 0


@pytest.mark.parametrize("comment", [b": keep-alive\n\n", b":\n\n"])
async def test_an_engine_that_sends_only_comments_is_silent(plane, comment):
    """Those go on while it hangs. They reach the client, but are no sign of life."""
    quiet = [piece for _ in range(40) for piece in (comment, 1.0)]
    plane.replies.append(stream(TOKEN, 1.0, *quiet, TOKEN, 1.0, LAST, DONE))
    client, flight = await flying(plane)
    await asyncio.sleep(2)
    began, heard = flight.moved_at, plane.watch(flight.endpoint.id).progress
    await asyncio.sleep(37)
    assert (flight.moved_at, plane.watch(flight.endpoint.id).progress) == (began, heard)
    await asyncio.sleep(3)
    assert plane.watch(flight.endpoint.id).progress > heard
    assert await outcome(plane, client) == "completed"
    assert client.body == TOKEN + comment * 40 + TOKEN + LAST + DONE


@pytest.mark.parametrize("size", [0, 100_000, 1_500_000])
async def test_a_stream_begins_with_its_first_event_of_any_worth(plane, monkeypatch, size):
    """However much of its request the Responses API repeats in those before: 1.5 MB of tools are too large to hold."""
    created = b'event: response.created\ndata: {"tools":"%b","type":"response.created"}\n\n' % (b"t" * size)
    body = b'{"model":"m","input":"x","stream":true}'
    pieces = [(created + created)[start : start + 200_000] for start in range(0, 2 * len(created), 200_000)]
    plane.replies.extend([stream(created, LOST), stream(*pieces, LOST)])
    client = plane.ask(body, path="/v1/responses")
    assert await outcome(plane, client) == "upstream_error"
    assert client.status == 502, "nothing has left"
    monkeypatch.setattr(attempt, "MAX_HELD_BYTES", 10)
    plane.replies.append(stream(created, created, LOST))
    client = plane.ask(body, path="/v1/responses")
    assert await outcome(plane, client) == "upstream_error"
    assert client.body.startswith(created * 2), "as much of it is an answer, too"


# Failures before an answer.


FAILURES = {
    "nobody listens": (ConnectFailedError("nobody listens"), [("nobody listens", {})]),
    "lost": (LOST, [(str(LOST), {})]),
    "lost in its body": (Reply(LOST), [(str(LOST), {})]),
    "lost in its stream": (stream(LOST), [(str(LOST), {})]),
    "nothing": (stream(b""), [(UNFINISHED, {"aborted": False, "dead": False})]),
    "500": (Reply(error("it broke"), status=500), [("it answered 500", {"dead": False})]),
    "dead": (Reply(error(DEAD.message), status=500), [("it answered 500", {"dead": True})]),
    "dead in a 200": (Reply(error(DEAD.message)), [(DEAD.message, {"aborted": False, "dead": True})]),
    "busy": (Reply(error(BUSY.message, 503), status=503), []),
    "busy in a 200": (Reply(error(BUSY.message, 503)), []),
    "busy in a stream": (stream(event(error(BUSY.message, 503))), []),
    "an error in a stream": (stream(event(error("it broke"))), [("it broke", {"aborted": False, "dead": False})]),
    "aborted": (
        Reply(b'{"choices":[{"finish_reason":"abort"}]}'),
        [("the engine gave the request up", {"aborted": True, "dead": False})],
    ),
}
"""How an endpoint fails before an answer, and what its monitor hears of it."""


@pytest.mark.parametrize(("failure", "failed"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_before_an_answer_is_tried_elsewhere(plane, failure, failed):
    plane.replies.extend([failure, Reply(WHOLE)])
    client = plane.ask()
    assert await outcome(plane, client) == "completed"
    assert (client.status, client.body) == (200, WHOLE)
    first, second = (base_url.removeprefix("http://") for base_url, *_ in plane.sent)
    assert {first, second} == {"a", "b"}
    assert plane.watch(first).failures == failed
    assert plane.watch(second).evacuated == [False]


async def test_a_stream_that_is_answered_with_nothing_is_asked_for_once_more(plane):
    nothing = Reply(content_length="0")
    plane.replies.extend([nothing, stream()])
    assert await outcome(plane, client := plane.ask(STREAMED)) == "completed"
    assert client.status == 200
    assert client.body.endswith(DONE)
    plane.replies.extend([Reply(), Reply()])
    assert await outcome(plane, client := plane.ask(STREAMED)) == "upstream_error"
    assert client.status == 502
    assert "its answer to a request for a stream is empty." in json.loads(client.body)["error"]["message"]
    said = ("its answer to a request for a stream is empty", {"aborted": False, "dead": False})
    assert [failure for name in "ab" for failure in plane.watch(name).failures] == [said] * 3


async def test_an_endpoint_beside_shorter_ones_has_time_to_be_found_dead(plane):
    plane.up("b", longest=2)
    plane.replies += [LOST, Reply(WHOLE)]
    client = plane.ask()
    await until(lambda: plane.watch("a").failures)
    assert len(plane.sent) == 1, "it would fail on it again"
    plane.cores.down("a", "killed")
    plane.up("a")
    assert await outcome(plane, client) == "completed"


async def test_one_that_fails_twice_ends_with_the_last_reason(plane):
    plane.replies.extend([LOST, Reply(error("it broke"), status=500)])
    client = plane.ask()
    assert await outcome(plane, client) == "upstream_error"
    assert client.status == 502
    assert "The endpoint answered 500: it broke" in json.loads(client.body)["error"]["message"]


@pytest.fixture
def of_kind(plane):
    """Makes both endpoints engines of a kind."""

    def make(kind):
        for name in ("a", "b"):
            plane.up(name, kind=kind)

    return make


ABORT = event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}')
OVERLOADED = b'{"error":"Model is overloaded","error_type":"overloaded"}'
BROKEN = b'{"error":"Request failed during generation: oops","error_type":"generation"}'


@pytest.mark.parametrize(
    ("kind", "failure", "failed"),
    [
        ("sglang", stream(ABORT), [("the engine gave the request up", {"aborted": False, "dead": False})]),
        ("tgi", Reply(OVERLOADED, status=429), []),
        ("tgi", stream(b'data:{"error":{"message":"Model is overloaded","http_status_code":422}}\n\n'), []),
        ("tgi", Reply(BROKEN, status=424), [("it answered 424", {"dead": False})]),
        (
            "tgi",
            stream(b'data:{"error":{"message":"Request failed during generation: oops","http_status_code":422}}\n\n'),
            [("Request failed during generation: oops", {"aborted": False, "dead": False})],
        ),
    ],
)
async def test_another_engine_fails_in_its_own_words(plane, of_kind, kind, failure, failed):
    of_kind(kind)
    plane.replies.extend([failure, stream()])
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "completed"
    first, second = (base_url.removeprefix("http://") for base_url, *_ in plane.sent)
    assert first != second
    assert plane.watch(first).failures == failed


async def test_an_abort_of_an_engine_that_is_well_says_nothing_about_it(plane, of_kind):
    """SGLang 0.5.6 and 0.5.9 end so what they cannot do, once or after the first event."""
    of_kind("sglang")
    plane.replies.extend([stream(ABORT), stream(ABORT), stream(TOKEN, ABORT)])
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "upstream_error"
    assert (client.status, len(plane.sent)) == (502, 2), "queued again, it would be sent for as long as it may wait"
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "upstream_error"
    assert {told["aborted"] for name in "ab" for _, told in plane.watch(name).failures} == {False}


TOO_LONG = "Input validation error: `inputs` must have less than 9 tokens. Given: 10"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(json.dumps({"error": TOO_LONG, "error_type": "validation"}).encode(), status=422),
        stream(b"data:" + json.dumps({"error": {"message": TOO_LONG, "http_status_code": 422}}).encode() + b"\n\n"),
    ],
    ids=["422", "in a stream"],
)
async def test_a_refusal_of_what_is_too_long_reads_as_ours(plane, of_kind, reply):
    of_kind("tgi")
    plane.replies.append(reply)
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "context_length_exceeded"
    refused = json.loads(client.body)["error"]
    assert (client.status, refused["code"], refused["message"]) == (400, "context_length_exceeded", TOO_LONG)
    assert plane.watch().failures == []


async def test_what_is_the_requests_fault_reads_so_whatever_the_engines_status(plane, of_kind):
    of_kind("llama-server")
    message = "Failed to parse tools: Missing tool type: {}; tools = [{}]"
    plane.replies.append(Reply(error(message), status=500))
    client = plane.ask()
    assert await outcome(plane, client) == "invalid_request"
    refused = json.loads(client.body)["error"]
    assert (client.status, refused["code"], refused["message"]) == (400, "invalid_request", message)
    assert (len(plane.sent), plane.watch().failures) == (1, [])


async def test_a_refusal_in_words_that_are_no_engines_has_the_endpoint_probed_at_once(plane):
    plane.cores.down("b", "killed")
    plane.replies.append(Reply(b"404 page not found", status=404))
    client = plane.ask()
    assert await outcome(plane, client) == "endpoint_refused"
    assert (client.status, plane.watch().failures) == (404, [("it answered 404", {})])


@pytest.mark.parametrize("body", [error("not so", 422), b"not JSON"])
async def test_an_engines_refusal_is_passed_on(plane, body):
    plane.replies.append(Reply(body, status=422))
    client = plane.ask()
    assert await outcome(plane, client) == "endpoint_refused"
    assert (client.status, client.body) == (422, body)
    assert client.headers["x-kvgate-prompt-tokens"] == "3"


async def test_a_refusal_too_large_to_hold_is_passed_on_as_it_comes(plane, monkeypatch):
    monkeypatch.setattr(attempt, "MAX_ERROR_BYTES", 10)
    plane.replies.append(Reply(b"x" * 11, b"y", status=400))
    client = plane.ask()
    assert await outcome(plane, client) == "endpoint_refused"
    assert (client.status, client.body, client.complete) == (400, b"x" * 11 + b"y", True)


async def test_a_refusal_in_a_stream_is_told_with_its_status(plane):
    plane.replies.append(stream(event(error("not so", 400))))
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "invalid_request"
    assert (client.status, json.loads(client.body)["error"]["message"]) == (400, "not so")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_can_have_no_body_has_no_length_either(plane, status):
    plane.replies.append(Reply(status=status))
    client = await plane.ask().ended()
    assert (client.status, client.body) == (status, b"")
    assert "content-length" not in client.headers


async def test_a_key_of_ours_that_an_endpoint_does_not_accept_is_not_the_clients_fault(plane):
    for endpoint in plane.directory.endpoints.values():
        endpoint.api_key = "ours"
    plane.replies += [Reply(b"{}", status=401), Reply(WHOLE)]
    assert (await plane.ask().ended()).status == 200, "another endpoint accepts its own"
    plane.replies += [Reply(b"{}", status=401)] * 2
    client = plane.ask()
    assert await outcome(plane, client) == "upstream_error"
    assert client.status == 502
    assert b"does not accept the key" in client.body
    failed = plane.watch("a").failures + plane.watch("b").failures
    denial = "it does not accept the key that kvgate has for it"
    assert failed == [(denial, {})] * 3, "it is asked at once"


async def test_where_a_clients_key_is_for_kvgate_an_endpoint_that_wants_one_has_failed(hurried):
    """It answers at once, and would get nearly all that come."""
    plane = FakePlane("a", "b", auth={"keys": [{"name": "n", "key": "k"}]})
    plane.replies += [Reply(b"{}", status=401), Reply(WHOLE)]
    assert (await plane.ask(authorization="Bearer k").ended()).status == 200
    plane.replies += [Reply(b"{}", status=401)] * 2
    client = await plane.ask(authorization="Bearer k").ended()
    assert client.status == 502
    assert b"it wants a key, and kvgate has none for it" in client.body


async def test_a_clients_own_key_is_its_own_business(plane):
    plane.replies.append(Reply(b"{}", status=401))
    client = plane.ask()
    assert await outcome(plane, client) == "endpoint_refused"
    assert client.status == 401


ADAPTED = b'{"model":"sql","messages":[],"max_tokens":4}'
NO_ROUTE = b'{"detail":"Not Found"}'
MISSING = b'{"error":{"message":"The model `sql` does not exist.","code":404}}'


async def test_what_an_endpoint_lacks_is_asked_of_another_that_has_it(plane):
    """It answers at once, so that it is the emptiest: it would get all that come."""
    plane.up("b", loras=("sql",))
    plane.replies += [Reply(MISSING, status=404), Reply(WHOLE)] * 4 + [Reply(WHOLE)]
    for _ in range(4):
        assert (await plane.ask(ADAPTED).ended()).status == 200
    await plane.ask().ended()
    assert [url for url, *_ in plane.sent] == ["http://a", "http://b"] * 4 + ["http://a"], "it is well for all else"


@pytest.mark.parametrize(
    "message",
    [
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        'tool_choice="required" requires --tool-call-parser to be set',
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template",
    ],
)
async def test_what_an_endpoint_was_started_without_is_asked_of_another(plane, message):
    refused = Reply(error(message, 400), status=400)
    plane.replies += [refused, Reply(WHOLE)]
    assert (await plane.ask().ended()).status == 200
    plane.replies += [Reply(error(message, 400), status=400) for _ in range(2)]
    client = plane.ask()
    assert await outcome(plane, client) == "endpoint_refused"
    assert (client.status, client.body) == (400, error(message, 400))
    assert len(plane.sent) == 4
    assert not plane.watch("a").failures + plane.watch("b").failures


async def test_what_only_an_endpoint_has_that_cannot_be_reached_is_not_asked_for_again_and_again(plane):
    plane.up("b", loras=("sql",))
    plane.replies += [Reply(MISSING, status=404), ConnectFailedError("refused"), Reply(MISSING, status=404)]
    assert (await plane.ask(ADAPTED).ended()).status == 503
    assert [url for url, *_ in plane.sent] == ["http://a", "http://b", "http://a"]


async def test_what_only_an_endpoint_has_that_is_away_is_not_there_now(hurried):
    """As an adapter that this one still loads. Its tenant pays nothing."""
    plane = FakePlane("a", "b", auth={"keys": [{"name": "n", "key": "k", "limits": {"tokens_per_minute": 1000}}]})
    plane.up("b", loras=("sql",))
    plane.cores.down("b", "killed")
    plane.replies.append(Reply(MISSING, status=404))
    client = plane.ask(ADAPTED, authorization="Bearer k")
    assert await outcome(plane, client) == "no_endpoint"
    assert (client.status, client.headers["retry-after"]) == (503, "1")
    assert not plane.in_flight
    assert plane.tenants.standing("n", plane.now()).tokens.remaining == 1000


async def test_what_no_other_endpoint_has_is_not_found(plane):
    plane.up("a", loras=("sql",))
    plane.replies.append(Reply(MISSING, status=404))
    client = plane.ask(ADAPTED)
    assert await outcome(plane, client) == "endpoint_refused"
    assert (client.status, client.body) == (404, MISSING)
    failed = plane.watch("a").failures + plane.watch("b").failures
    assert failed == [("it answered 404", {})], "it may be another engine by now"


async def test_a_route_that_an_endpoint_lacks_is_asked_of_one_other(hurried):
    """As an older version in a rolling upgrade, or an engine of another kind."""
    plane = FakePlane("a", "b", "c")
    for body in (b'{"model":"m","messages":[]}', b'{"messages":[]}'):
        plane.replies += [Reply(NO_ROUTE, status=404), Reply(WHOLE)]
        assert (await plane.ask(body).ended()).status == 200
    plane.replies += [Reply(NO_ROUTE, status=404) for _ in range(2)]
    client = await plane.ask().ended()
    assert (client.status, client.body) == (404, NO_ROUTE)
    urls = [url for url, *_ in plane.sent]
    assert [len(set(urls[at : at + 2])) for at in (0, 2, 4)] == [2, 2, 2]
    assert not plane.in_flight


@pytest.mark.parametrize("absent", [MISSING, NO_ROUTE])
async def test_what_failed_where_another_lacks_it_is_tried_there_again(plane, absent):
    plane.up("b", loras=("sql",))
    plane.replies += [Reply(absent, status=404), Reply(b"{}", status=500), Reply(WHOLE)]
    assert (await plane.ask(ADAPTED if absent is MISSING else b'{"messages":[]}').ended()).status == 200
    assert [url for url, *_ in plane.sent] == ["http://a", "http://b", "http://b"]


@pytest.mark.parametrize("status", [403, 429, 302])
async def test_an_endpoint_that_turns_all_away_is_spared_while_another_serves(plane, status):
    """It answers at once, so that it is the emptiest: it would get all that come, and answer them so."""
    plane.replies += [Reply(error("not here", status), status=status)] * 3 + [Reply(WHOLE)] * 5
    answers = [(await plane.ask().ended()).status for _ in range(8)]
    assert answers == [status] * 3 + [200] * 5
    away, *others = dict.fromkeys(url for url, *_ in plane.sent)
    assert [url for url, *_ in plane.sent] == [away] * 3 + others * 5
    assert plane.lines[0]["outcome"] == "endpoint_refused"


# Behind a heartbeat.

FIRST = comment(Turn(1, None))


async def test_an_answer_goes_on_in_the_stream_that_was_opened(lone):
    client = await opened(lone, stream())
    assert client.body == FIRST + TOKEN + LAST + DONE
    assert client.complete
    assert lone.lines[-1]["outcome"] == "completed"


@pytest.mark.parametrize(
    ("replies", "ended", "says"),
    [
        ([Reply(error("not so", 422), status=422)], "endpoint_refused", "not so"),
        ([stream(event(error("not so", 400)))], "invalid_request", "not so"),
        ([Reply(WHOLE), Reply(WHOLE)], "upstream_error", "The endpoint did not stream its answer."),
        ([LOST, LOST], "upstream_error", "The endpoint did not answer"),
    ],
)
async def test_a_refusal_is_told_in_the_stream_that_was_opened(lone, replies, ended, says):
    client = await opened(lone, *replies)
    assert lone.lines[-1]["outcome"] == ended
    assert (client.status, client.complete) == (200, True)
    head, _, last = client.body.partition(b"data: ")
    assert set(head.split(b"\n\n")) == {FIRST.strip(), b""}
    assert says in json.loads(last)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(422, "invalid_request"), (429, "rate_limit_exceeded"), (307, "upstream_error"), (204, "upstream_error")],
)
async def test_the_code_of_that_says_whether_another_try_may_help(lone, status, code):
    client = await opened(lone, Reply(error("not now"), status=status))
    assert json.loads(client.body.partition(b"data: ")[2])["error"]["code"] == code
    assert lone.lines[-1]["outcome"] == "endpoint_refused"


# Failures after an answer has begun.


@pytest.mark.parametrize(
    ("pieces", "ends", "told"),
    [
        ([TOKEN, LOST], b"The endpoint failed: the connection was lost.", (str(LOST), {})),
        ([TOKEN, event(error("it broke"))], event(error("it broke")), ("it broke", {"aborted": False, "dead": False})),
        ([TOKEN], b"without a finish reason", (UNFINISHED, {"aborted": False, "dead": False})),
    ],
    ids=["lost", "an error", "unfinished"],
)
async def test_a_stream_that_fails_ends_with_an_error_and_is_tried_nowhere_else(plane, pieces, ends, told):
    plane.replies.append(stream(*pieces))
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "upstream_error"
    assert (client.status, client.complete) == (200, True)
    *events, last, nothing = client.body.split(b"\n\n")
    assert events[0] + b"\n\n" == TOKEN
    assert nothing == b""
    assert b'"error"' in last
    assert DONE not in client.body
    assert len(plane.sent) == 1
    failed = [failure for name in "ab" for failure in plane.watch(name).failures]
    assert ends in client.body
    assert failed == [told]


@pytest.mark.parametrize("interruption", [None, *Interruption])
async def test_after_its_last_event_a_stream_is_whole_whatever_becomes_of_its_connection(plane, interruption):
    later = LOST if interruption is None else asyncio.Event()
    plane.replies.append(stream(TOKEN, LAST, USED, DONE, later))
    client = plane.ask(STREAMED)
    await plane.turns()
    for flight in plane.flights._flights.values():
        flight.interrupt(interruption)
    assert await outcome(plane, client) == "completed"
    assert (client.body, client.complete) == (TOKEN + LAST + DONE, True)
    assert plane.lines[-1]["completion_tokens"] == 1
    assert plane.counter.settled == [3]


async def test_a_response_is_whole_after_its_last_event_though_that_is_too_large_to_hold(plane):
    said = json.dumps({"id": "r", "tools": "t" * 1_500_000, "usage": {"input_tokens": 3, "output_tokens": 1}})
    last = b'event: response.completed\ndata: {"response":%b,"type":"response.completed"}\n\n' % said.encode()
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    plane.replies.append(stream(delta, last[:1_400_000], last[1_400_000:], LOST))
    client = plane.ask(b'{"model":"m","input":"x","stream":true}', path="/v1/responses")
    assert await outcome(plane, client) == "completed"
    assert (client.body, plane.lines[-1]["completion_tokens"]) == (delta + last, 1)


async def test_an_event_that_breaks_off_is_ended_before_the_error(plane, monkeypatch):
    monkeypatch.setattr("gateway.wire.stream.MAX_EVENT_BYTES", 10)
    part = b'data: {"choices":[{"index":0'
    plane.replies.append(stream(TOKEN, part, LOST))
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "upstream_error"
    assert client.body.startswith(TOKEN + part + b'\n\ndata: {"error"')


async def test_a_large_piece_is_passed_on_and_lets_others_have_their_turn(plane):
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * attempt.LARGE_PIECE)
    plane.replies.append(stream(TOKEN, text, LAST, USED, DONE))
    client = plane.ask(STREAMED)
    assert await outcome(plane, client) == "completed"
    assert client.body == TOKEN + text + LAST + DONE


# Interruptions.


async def test_one_that_is_taken_off_its_endpoint_goes_elsewhere_and_is_known_there(plane):
    silent = Reply(asyncio.Event())
    plane.replies.extend([silent, LOST, Reply(WHOLE)])
    client, flight = await flying(plane)
    plane.flights.evacuate(flight.endpoint.id)
    await plane.turns()
    assert silent.closed
    assert await outcome(plane, client) == "upstream_error", "it failed on two"
    first, second = (base_url.removeprefix("http://") for base_url, *_ in plane.sent)
    assert (plane.watch(first).evacuated, plane.watch(second).evacuated) == ([False], [True])


async def test_one_that_was_taken_off_an_endpoint_is_known_wherever_it_goes_after(plane):
    plane.replies.extend([Reply(asyncio.Event()), Reply(error(BUSY.message, 503), status=503), Reply(WHOLE)])
    client, flight = await flying(plane)
    plane.flights.evacuate(flight.endpoint.id)
    assert await outcome(plane, client) == "completed"
    evacuated = [evacuated for name in "ab" for evacuated in plane.watch(name).evacuated]
    assert sorted(evacuated) == [False, True, True]


async def test_one_whose_endpoint_went_down_before_its_connection_was_there_has_not_failed(hurried):
    plane = FakePlane("a", "b", "c", "d")
    never = asyncio.Event()
    plane.replies.extend([never, never, LOST, Reply(WHOLE)])
    client = plane.ask()
    for _ in range(2):
        await plane.turns()
        (flight,) = plane.flights._flights.values()
        plane.flights.evacuate(flight.endpoint.id)
    assert await outcome(plane, client) == "completed"
    assert len({base_url for base_url, *_ in plane.sent}) == 4
    assert plane.alone == [False, False, False, True]
    assert [plane.watch(name).evacuated for name in "abcd"] == [[False]] * 4, "no engine has seen it and hung"


async def test_one_that_can_connect_to_no_endpoint_that_is_up_ends(plane):
    plane.replies.extend([asyncio.Event()] * 1000)
    client = plane.ask()
    began = plane.now()
    while not client.task.done():
        await asyncio.sleep(5)
        for name in "ab":
            plane.flights.evacuate(EndpointId(name))
    assert await outcome(plane, client) == "wait_too_long"
    assert "The endpoint went down, or hangs." in json.loads(client.body)["error"]["message"]
    assert plane.now() - began < 60
    assert len(plane.sent) < 10


async def test_one_that_is_silent_for_too_long_ends_and_goes_nowhere_else(plane):
    plane.replies.append(Reply(asyncio.Event()))
    client, flight = await flying(plane)
    flight.interrupt(Interruption.OVERDUE)
    assert await outcome(plane, client) == "upstream_timeout"
    assert (client.status, len(plane.sent)) == (504, 1)


async def test_a_stream_that_falls_silent_ends_with_an_error(plane):
    plane.replies.append(stream(TOKEN, asyncio.Event()))
    client, flight = await flying(plane)
    flight.interrupt(Interruption.OVERDUE)
    assert await outcome(plane, client) == "upstream_timeout"
    assert (client.status, client.complete) == (200, True)
    assert b'"code":"upstream_timeout"' in client.body


@pytest.mark.parametrize(("reply", "status"), [(Reply(asyncio.Event()), 503), (stream(TOKEN, asyncio.Event()), 200)])
async def test_what_has_not_ended_when_this_gateway_does_ends_with_an_error(plane, reply, status):
    plane.replies.append(reply)
    client, _ = await flying(plane)
    plane.flights.cut()
    assert await outcome(plane, client) == "draining"
    assert (client.status, client.complete, len(plane.sent)) == (status, True, 1)
    assert b'"code":"draining"' in client.body


async def test_a_client_that_takes_no_error_is_not_waited_for_long(plane):
    plane.replies.append(stream(TOKEN, asyncio.Event()))
    client, flight = await flying(plane)
    client.takes = asyncio.Event()
    flight.interrupt(Interruption.OVERDUE)
    assert await outcome(plane, client) == "upstream_timeout"
    assert (client.body, client.complete) == (TOKEN, False)


async def test_a_client_that_takes_no_refusal_is_not_waited_for_long(plane):
    plane.replies.append(Reply(asyncio.Event()))
    client, flight = await flying(plane)
    client.takes = asyncio.Event()
    flight.interrupt(Interruption.OVERDUE)
    assert await outcome(plane, client) == "upstream_timeout"
    assert client.messages == []


async def test_a_client_that_leaves_ends_the_try(plane):
    silent = Reply(asyncio.Event())
    plane.replies.append(silent)
    client, _ = await flying(plane)
    client.leave()
    assert await outcome(plane, client) == "client_closed"
    assert silent.closed


@pytest.mark.parametrize("client_first", [True, False])
async def test_a_client_that_leaves_in_the_instant_of_an_interruption_has_left(plane, client_first):
    plane.replies.append(Reply(asyncio.Event()))
    client, flight = await flying(plane)
    steps = [flight.task.cancel, lambda: flight.interrupt(Interruption.EVACUATED)]
    for step in steps if client_first else reversed(steps):
        step()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert plane.lines[-1]["outcome"] == Outcome.CLIENT_CLOSED
    assert len(plane.flights) == plane.in_flight == 0


@pytest.mark.parametrize(
    "reply",
    [
        Reply(WHOLE),
        Reply(error("no", 400), status=400),
        stream(),
        stream(event(error("no", 400))),
    ],
    ids=["whole", "refused", "streamed", "refused in a stream"],
)
async def test_an_answer_that_cannot_begin_waits_for_its_client_and_not_for_the_endpoint(plane, reply):
    """Its client sent requests ahead, and takes none of the answers: the endpoint has done its work."""
    plane.replies.append(reply)
    client = plane.ask(STREAMED)
    client.takes = asyncio.Event()
    await plane.turns()
    (flight,) = plane.flights._flights.values()
    assert flight.delivering
    flight.interrupt(Interruption.OVERDUE)
    assert await outcome(plane, client) == "client_closed"


async def test_a_refusal_that_waits_for_its_client_arrives_although_its_endpoint_went_down(plane):
    plane.replies.append(Reply(error("no", 400), status=400))
    client = plane.ask()
    client.takes = asyncio.Event()
    await plane.turns()
    (flight,) = plane.flights._flights.values()
    plane.flights.evacuate(flight.endpoint.id)
    client.takes.set()
    assert await outcome(plane, client) == "endpoint_refused"
    assert client.complete
