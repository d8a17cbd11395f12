import asyncio
import json
from itertools import pairwise

import pytest

from gateway.admission.events import EndpointId
from gateway.admission.tuning import TUNING
from gateway.pools.stored_responses import StoredResponse
from gateway.relay.client_identity import Client, Clients
from gateway.relay.destination import NOTICED
from gateway.upstream.interface import ConnectFailedError, ConnectionLostError
from gateway.wire.request import INLINE_BYTES
from tests.fakes.plane import TOKEN, FakePlane, Reply, stream
from tests.fakes.vllm.shapes import BUSY

pytestmark = pytest.mark.usefixtures("hurried")

LOST = ConnectionLostError("the connection was lost")
EMBED = "/v1/embeddings"
ASKED = b'{"model":"m","prompt":"x"}'
LARGE = b'{"model":"m","prompt":"%b"}' % (b"x" * 500_000)
PIECES = [b"x" * 1000] * 10


@pytest.fixture
async def plane(hurried):
    return FakePlane("a", "b", server={"body_timeout": 10.0, "body_min_rate": 10_000})


def ask(plane, body=ASKED, path="/tokenize", **more):
    return plane.ask(body, path=path, **more)


async def ended(client):
    await client.ended()
    return client


def error(client):
    return json.loads(client.body)["error"]


@pytest.mark.parametrize("status", [200, 422])
async def test_an_answer_is_passed_on_as_it_is(plane, status):
    reply = Reply(b"ab", b"c", status=status, content_length="3")
    plane.replies.append(reply)
    client = await ended(ask(plane))
    assert (client.status, client.body, client.complete) == (status, b"abc", True)
    assert client.headers["content-length"] == "3"
    assert not any(name.startswith("x-kvgate") for name in client.headers)
    assert reply.closed
    assert plane.sent[0][4] == ASKED
    (line,) = plane.lines
    assert (line["model"], line["endpoint"]) == ("m", plane.sent[0][0].removeprefix("http://"))
    assert line["outcome"] == ("completed" if status == 200 else "endpoint_refused")


@pytest.mark.parametrize(("model", "status"), [("m", 200), ("n", 404)])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"model":"%s"}'),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%s\r\n--b--\r\n',
        ),
    ],
)
async def test_the_model_is_read_from_a_form_too(plane, kind, body, model, status):
    plane.replies.append(Reply(b"{}"))
    body %= model.encode()
    client = await ended(ask(plane, body, "/v1/audio/transcriptions", **{"content-type": kind}))
    assert client.status == status


async def test_a_question_without_a_body_goes_to_the_only_model(plane):
    plane.replies.append(Reply(b"{}"))
    assert (await ended(ask(plane, b"", "/tokenizer_info", method="GET"))).status == 200


async def test_a_large_body_is_read_off_the_loop(plane, monkeypatch):
    sizes = []
    run = plane.run

    async def noted(flow, size, work, *args):
        sizes.append((flow, size))
        return await run(flow, size, work, *args)

    monkeypatch.setattr(plane, "run", noted)
    plane.replies.append(Reply(b"{}"))
    body = ASKED + b" " * INLINE_BYTES
    assert (await ended(ask(plane, body))).status == 200
    assert sizes == [("peer", len(body))]


# Endpoints that fail.


async def test_one_that_fails_is_tried_elsewhere_once(plane):
    plane.replies.extend([LOST, Reply(b"{}")])
    assert (await ended(ask(plane))).status == 200
    assert {base_url for base_url, *_ in plane.sent} == {"http://a", "http://b"}
    assert plane.alone == [False, True], "an idle connection may be lost as the first was"
    plane.replies.extend([LOST, LOST])
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"]) == (502, "upstream_error")
    failures = [reason for name in "ab" for reason, _ in plane.watch(name).failures]
    assert failures == [str(LOST)] * 3


NO_ROUTE = b'{"detail":"Not Found"}'
MISSING = b'{"error":{"message":"The model does not exist."}}'


async def test_what_an_endpoint_lacks_is_asked_of_another_that_has_it(plane):
    plane.up("a", loras=("sql",))
    plane.replies += [Reply(MISSING, status=404), Reply(b"{}")]
    assert (await ended(ask(plane, b'{"model":"sql"}'))).status == 200
    assert [url for url, *_ in plane.sent] == ["http://b", "http://a"]
    plane.replies.append(Reply(MISSING, status=404))
    assert (await ended(ask(plane, b'{"model":"sql"}'))).status == 404, "one that has it says so"


async def test_what_endpoints_lack_is_asked_of_one_that_has_it_and_spares_none(plane):
    for name in ("c", "d"):
        plane.add(name)
        plane.up(name)
    plane.up("a", loras=("sql",))
    for _ in range(2 * TUNING.failing_after):
        plane.replies += [Reply(MISSING, status=404), Reply(b"{}")]
        await ended(ask(plane, b'{"model":"sql"}'))
        plane.replies.clear()
    urls = [url for url, *_ in plane.sent]
    assert "http://a" in urls
    assert all(after == "http://a" for url, after in pairwise(urls) if url != "http://a")
    assert not any(endpoint.fails(plane.now()) for endpoint in plane.directory.endpoints.values())


async def test_a_route_that_an_endpoint_lacks_is_asked_of_another(plane):
    for body in (b'{"model":"m"}', b"{}"):
        plane.replies += [Reply(NO_ROUTE, status=404), Reply(b"{}")]
        assert (await ended(ask(plane, body))).status == 200
    assert {tuple(url for url, *_ in plane.sent[at : at + 2]) for at in (0, 2)} <= {
        ("http://a", "http://b"),
        ("http://b", "http://a"),
    }
    plane.replies += [Reply(NO_ROUTE, status=404) for _ in range(2)]
    assert (await ended(ask(plane))).status == 404
    assert plane.watch("a").failures + plane.watch("b").failures == []


@pytest.mark.parametrize("absent", [MISSING, NO_ROUTE])
async def test_what_another_lacks_is_not_the_answer_of_one_that_failed(plane, absent):
    plane.up("b", loras=("sql",))
    plane.replies += [LOST, Reply(absent, status=404), Reply(absent, status=404), Reply(b"{}")]
    client = await ended(ask(plane, b'{"model":"sql"}'))
    assert [url for url, *_ in plane.sent] == ["http://b", "http://a", "http://a", "http://b"]
    assert client.status == 200


async def test_one_that_lacks_the_route_takes_no_try_from_what_fails_elsewhere(plane):
    """It answers at once, so it has the fewest and is asked first, each time."""
    plane.add("c")
    plane.up("c")
    plane.replies += [Reply(NO_ROUTE, status=404), Reply(BROKEN, status=500), Reply(b"{}")]
    assert (await ended(ask(plane))).status == 200
    assert len({url for url, *_ in plane.sent}) == 3
    plane.sent.clear()
    plane.replies += [Reply(NO_ROUTE, status=404), Reply(NO_ROUTE, status=404)]
    assert (await ended(ask(plane))).status == 404
    assert len(plane.sent) == 2, "not asked of all for each request"


async def test_what_all_lack_is_soon_said_whatever_failed_before(plane):
    plane.replies += [ConnectFailedError("refused"), *(Reply(NO_ROUTE, status=404) for _ in range(3))]
    assert (await ended(ask(plane))).status == 404
    assert len(plane.sent) == 4


async def test_where_one_lacks_it_another_that_fails_is_asked_twice_at_most(plane):
    for _ in range(4):
        plane.replies += [Reply(BROKEN, status=500), Reply(NO_ROUTE, status=404)]
    client = await ended(ask(plane))
    assert (client.status, error(client)["message"]) == (502, "The endpoint did not answer: it answered 500.")
    assert len(plane.sent) == 3


async def test_a_key_of_ours_that_an_endpoint_does_not_accept_is_not_the_clients_fault(plane):
    plane.replies.append(Reply(b"{}", status=401))
    assert (await ended(ask(plane))).status == 401, "the client's own key is its own business"
    for endpoint in plane.directory.endpoints.values():
        endpoint.api_key = "ours"
    plane.replies += [Reply(b"{}", status=401), Reply(b"{}")]
    assert (await ended(ask(plane))).status == 200
    plane.cores.down(EndpointId("b"), "down: gone")
    plane.replies += [*(Reply(b"{}", status=401) for _ in range(4)), Reply(b"{}")]
    assert (await ended(ask(plane))).status == 200, "it is soon known to be down, and what comes waits"


async def test_where_a_clients_key_is_for_kvgate_an_endpoint_that_wants_one_has_failed():
    plane = FakePlane("a", "b", auth={"keys": [{"name": "n", "key": "k"}]})
    plane.replies += [Reply(b"{}", status=401), Reply(b"{}")]
    assert (await ended(ask(plane, authorization="Bearer k"))).status == 200
    plane.replies += [Reply(b"{}", status=401)] * 2
    assert (await ended(ask(plane, authorization="Bearer k"))).status == 401
    failed = plane.watch("a").failures + plane.watch("b").failures
    assert failed == [("it wants a key, and kvgate has none for it", {})] * 3


async def test_a_model_that_an_engine_does_not_know_has_it_asked_who_it_is_and_a_route_does_not(plane):
    plane.replies += [Reply(NO_ROUTE, status=404) for _ in range(2)] + [Reply(MISSING, status=404)]
    for _ in range(2):
        assert (await ended(ask(plane))).status == 404
    failed = plane.watch("a").failures + plane.watch("b").failures
    assert failed == [("it answered 404", {"dead": False})]


BROKEN = b'{"error":{"message":"it broke"}}'
BUSY_NOW = json.dumps({"error": {"message": BUSY.message, "code": 503}}).encode()


async def test_an_endpoints_error_is_tried_elsewhere_and_the_last_one_is_passed_on(plane):
    first, last = Reply(BROKEN, status=500), Reply(b"no", status=502)
    plane.replies.extend([first, last])
    client = await ended(ask(plane))
    assert (client.status, client.body, plane.lines[0]["outcome"]) == (502, b"no", "endpoint_refused")
    assert (first.closed, last.closed) == (True, True)
    assert {base_url for base_url, *_ in plane.sent} == {"http://a", "http://b"}
    told = [failure for name in "ab" for failure in plane.watch(name).failures]
    assert sorted(told) == [("it answered 500", {"dead": False}), ("it answered 502", {"dead": False})]


@pytest.mark.parametrize(("status", "body"), [(400, BROKEN), (501, BROKEN), (503, BUSY_NOW)])
async def test_an_error_of_the_request_or_of_a_busy_engine_is_passed_on_at_once(plane, status, body):
    plane.replies.append(Reply(body, status=status))
    client = await ended(ask(plane))
    assert (client.status, client.body) == (status, body)
    assert plane.watch("a").failures == plane.watch("b").failures == []


@pytest.mark.parametrize("broken", [Reply(BROKEN, status=500), LOST])
@pytest.mark.parametrize("older", [0, 1])
async def test_one_that_fails_on_all_is_spared_and_tried_again(plane, monkeypatch, older, broken):
    """It answers at once, so it has the fewest: it got all that came. What it is still at from before says nothing."""
    plane.directory.endpoints["a"].relayed += older
    fails, asked = {"http://a"}, []

    async def send(base_url, *_request, **_more):
        asked.append(base_url)
        if base_url not in fails:
            return Reply(0.1, b"{}")
        if broken is LOST:
            raise LOST
        return Reply(BROKEN, status=500)

    monkeypatch.setattr(plane, "send", send)
    for _ in range(30):
        assert {client.status for client in await asyncio.gather(*[ended(ask(plane)) for _ in range(4)])} == {200}
    assert asked.count("http://a") <= TUNING.failing_after + 3
    fails.clear()
    asked.clear()
    await asyncio.sleep(TUNING.failing_span)
    for _ in range(30):
        await asyncio.gather(*[ended(ask(plane)) for _ in range(4)])
    assert asked.count("http://a") >= 50 - 20 * older, "it has its part of 120 again"


async def test_one_bad_request_after_the_other_keeps_no_endpoint_out(plane, monkeypatch):
    """Its second try goes to the one that is spared, and is not the one that tries that."""
    asked, bad, good = [], b'{"input":"bad"}', b'{"input":"good"}'

    async def send(base_url, _method, _path, _headers, body, **_more):
        asked.append((base_url, body))
        return Reply(BROKEN, status=500) if body == bad else Reply(b"{}")

    monkeypatch.setattr(plane, "send", send)
    for _ in range(TUNING.failing_after):
        plane.directory.endpoints["b"].note_answer(plane.now(), failed=True)
    for _ in range(2):
        await asyncio.sleep(TUNING.failing_span / 2)
        assert (await ended(ask(plane, bad))).status == 500
    assert asked == 2 * [("http://a", bad), ("http://b", bad)]
    assert {(await ended(ask(plane, good))).status for _ in range(2)} == {200}
    assert ("http://b", good) in asked


async def test_errors_that_are_tried_elsewhere_are_some_of_all(hurried):
    plane = FakePlane("a", "b", upstream={"retry_share": 0.0})
    plane.replies.append(Reply(BROKEN, status=500))
    assert (await ended(ask(plane))).status == 500


async def test_one_that_does_not_answer_in_time_is_tried_nowhere_else(plane, monkeypatch):
    async def send(*_request, **_more):
        await asyncio.Event().wait()

    monkeypatch.setattr(plane, "send", send)
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"]) == (504, "upstream_timeout")
    assert plane.lines[0]["duration_ms"] == plane.settings.upstream.first_byte_timeout * 1000


@pytest.mark.parametrize(("fails", "outcome"), [(LOST, "upstream_error"), (10_000.0, "upstream_timeout")])
async def test_an_answer_that_breaks_off_is_left_without_an_end(plane, fails, outcome):
    reply = Reply(b"ab", fails)
    plane.replies.append(reply)
    client = await ended(ask(plane))
    assert (client.body, client.complete, plane.lines[0]["outcome"]) == (b"ab", False, outcome)
    assert reply.closed


async def test_an_endpoint_that_is_not_there_is_waited_for(plane):
    for name in "ab":
        plane.cores.down(EndpointId(name), "down: gone")
    plane.replies.append(Reply(b"{}"))
    client = ask(plane)
    await asyncio.sleep(5)
    plane.up("b")
    await ended(client)
    assert (client.status, plane.lines[0]["queue_ms"]) == (200, 5000)
    plane.cores.down(EndpointId("b"), "down: gone")
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"]) == (503, "no_endpoint")


REFUSED = ConnectFailedError("connection refused")


@pytest.mark.parametrize("sent", [[REFUSED], [REFUSED] * 10, [LOST], [REFUSED, LOST, REFUSED]])
async def test_one_that_its_only_endpoint_did_not_answer_waits_for_it_though_it_was_not_known_to_be_down(plane, sent):
    """As in the moment after an engine's end, which no probe has seen yet."""
    plane.cores.down(EndpointId("b"), "down: gone")
    plane.replies += [*sent, Reply(b"{}")]
    client = ask(plane)
    await asyncio.sleep((len(sent) - 1) * NOTICED + 0.1)
    plane.cores.down(EndpointId("a"), "down: connection refused")
    await asyncio.sleep(5)
    plane.up("a")
    await ended(client)
    assert [url for url, *_ in plane.sent] == ["http://a"] * (len(sent) + 1)
    assert client.status == 200


async def test_one_that_is_taken_off_its_only_endpoint_waits_for_it(plane):
    plane.cores.down(EndpointId("b"), "down: gone")
    client, name = await silent(plane)
    plane.cores.down(EndpointId(name), "down: no connection within 5 s")
    plane.flights.evacuate(EndpointId(name))
    await asyncio.sleep(5)
    assert client.status is None
    plane.replies.append(Reply(b"{}"))
    plane.up(name)
    assert (await ended(client)).status == 200
    assert plane.watch(name).evacuated == [False, True]


async def test_no_endpoint_gets_one_that_two_have_dropped(plane):
    plane.cores.down(EndpointId("b"), "down: gone")
    plane.replies += [LOST, REFUSED, LOST]
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"], len(plane.sent)) == (502, "upstream_error", 3)


async def test_one_that_its_endpoint_never_takes_is_not_sent_for_ever(plane):
    plane.cores.down(EndpointId("b"), "down: gone")
    plane.replies += [REFUSED] * 1000
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"]) == (502, "upstream_error")
    assert len(plane.sent) == pytest.approx(plane.settings.admission.queue.no_endpoint_ttl / NOTICED, abs=2)


async def test_an_endpoint_in_the_place_of_all_that_have_gone_is_waited_for(plane):
    for name in "ab":
        plane.cores.down(EndpointId(name), "draining: drained by the operator")
    plane.add("c")
    plane.replies.append(Reply(b"{}"))
    client = ask(plane)
    await asyncio.sleep(5)
    for name in "ab":
        plane.cores.remove(EndpointId(name))
    await asyncio.sleep(5)
    plane.up("c")
    await ended(client)
    assert (client.status, plane.sent[0][0], plane.lines[0]["queue_ms"]) == (200, "http://c", 10_000)


# Engines that say nothing.


async def silent(plane, path=EMBED):
    """A request that an endpoint has and does not answer; then that endpoint's name."""
    plane.replies.append(Reply(asyncio.Event()))
    client = ask(plane, path=path)
    await plane.turns()
    return client, plane.sent[-1][0].removeprefix("http://")


async def test_work_for_an_engine_is_told_its_monitor_from_its_start_to_its_first_byte(plane):
    free = asyncio.Event()
    plane.replies.append(Reply(free, b"ab", 1.0, b"c"))
    client = ask(plane, path=EMBED)
    await plane.turns()
    watch = plane.watch(plane.sent[0][0].removeprefix("http://"))
    assert (len(watch.on_it), watch.progress, watch.evacuated) == (1, 0, [False])
    free.set()
    await plane.turns()
    assert (len(watch.on_it), watch.progress) == (0, 1)
    assert (await ended(client)).body == b"abc"


async def test_an_error_is_no_progress(plane):
    plane.replies.append(Reply(b"{}", status=400))
    await ended(ask(plane, path=EMBED))
    assert [(plane.watch(name).on_it, plane.watch(name).progress) for name in "ab"] == [(set(), 0)] * 2


@pytest.mark.parametrize(("status", "unanswered"), [(400, 0), (422, 0), (500, 0), (504, 2)])
async def test_one_that_an_engine_refused_was_not_left_unanswered(plane, status, unanswered):
    plane.replies.extend([Reply(b"{}", status=status)] * 2)
    await ended(ask(plane, path=EMBED))
    assert sum(plane.watch(name).unanswered for name in "ab") == unanswered


@pytest.mark.parametrize(
    ("kind", "body", "tokens"),
    [
        ("application/json", ASKED.ljust(40), 10),
        ("application/json", ASKED.ljust(4000), 100),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n',
            0,
        ),
    ],
)
async def test_its_prompts_are_no_longer_than_the_model_takes(plane, kind, body, tokens):
    plane.replies.append(Reply(b"{}"))
    await ended(ask(plane, body, EMBED, **{"content-type": kind}))
    assert plane.watch("a").prompts + plane.watch("b").prompts == [tokens]


async def test_what_a_server_answers_by_itself_says_nothing_of_its_engine(plane):
    for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
        plane.replies.append(Reply(b"{}"))
        await ended(ask(plane, path=path))
    assert plane.watch("a").prompts == plane.watch("b").prompts == []
    assert plane.watch("a").progress == plane.watch("b").progress == 0


async def test_what_waits_for_the_server_of_an_endpoint_that_went_down_goes_to_another_one(plane):
    client, name = await silent(plane, "/tokenize")
    other = "b" if name == "a" else "a"
    plane.replies.append(Reply(b"{}"))
    plane.flights.evacuate(EndpointId(name))
    assert (await ended(client)).status == 200
    assert [base_url for base_url, *_ in plane.sent] == [f"http://{name}", f"http://{other}"]
    assert plane.watch(name).prompts == plane.watch(other).prompts == []
    assert len(plane.flights) == 0


async def test_those_taken_off_a_hung_endpoint_go_to_another_one_once(plane):
    client, name = await silent(plane)
    other = "b" if name == "a" else "a"
    plane.replies.append(Reply(b"{}"))
    plane.flights.evacuate(EndpointId(name))
    assert (await ended(client)).status == 200
    assert [base_url for base_url, *_ in plane.sent] == [f"http://{name}", f"http://{other}"]
    assert plane.watch(other).evacuated == [True]
    assert plane.watch(name).failures == [], "it is out already"
    assert len(plane.flights) == 0
    client, name = await silent(plane)
    plane.replies.append(Reply(asyncio.Event()))
    for _ in range(2):
        plane.flights.evacuate(EndpointId(plane.sent[-1][0].removeprefix("http://")))
        await plane.turns()
    assert (await ended(client)).status == 502


async def test_those_taken_off_endpoints_that_have_not_seen_them_go_on(plane):
    never = asyncio.Event()
    plane.replies += [never] * 4
    client = ask(plane, path=EMBED)
    for _ in range(4):
        await asyncio.sleep(5)
        plane.flights.evacuate(EndpointId(plane.sent[-1][0].removeprefix("http://")))
    plane.replies.append(Reply(b"{}"))
    assert (await ended(client)).status == 200
    assert len(plane.sent) == 5
    assert [evacuated for name in "ab" for evacuated in plane.watch(name).evacuated] == [False] * 5
    assert plane.alone == [False] * 5


async def test_one_that_connects_to_no_endpoint_is_not_sent_for_ever(plane):
    plane.replies += [asyncio.Event()] * 1000
    client = ask(plane, path=EMBED)
    while not client.task.done():
        await asyncio.sleep(5)
        for name in "ab":
            plane.flights.evacuate(EndpointId(name))
    assert (client.status, error(client)["code"]) == (502, "upstream_error")
    assert len(plane.sent) < 20


async def test_what_waits_for_an_endpoint_when_this_gateway_ends_is_refused(plane):
    client, _ = await silent(plane)
    plane.flights.cut()
    assert ((await ended(client)).status, b'"code":"draining"' in client.body, len(plane.sent)) == (503, True, 1)


async def test_the_only_silent_one_ends_and_is_tried_nowhere_else(plane):
    client, name = await silent(plane)
    plane.flights.expire(plane.watch(name).on_it)
    await ended(client)
    assert (client.status, error(client)["code"], len(plane.sent)) == (504, "upstream_timeout", 1)
    assert len(plane.flights) == 0
    assert not plane.pool.relay_places.full()


async def test_one_whose_client_leaves_is_no_more_on_the_endpoint(plane):
    client, name = await silent(plane)
    client.leave()
    await ended(client)
    assert plane.lines[0]["outcome"] == "client_closed"
    assert (len(plane.flights), plane.watch(name).on_it) == (0, set())
    assert plane.directory.endpoints[EndpointId(name)].relayed == 0


async def test_one_that_breaks_off_before_its_first_byte_is_tried_elsewhere(plane):
    broken = Reply(LOST)
    plane.replies.extend([broken, Reply(b"{}")])
    assert (await ended(ask(plane))).status == 200
    assert broken.closed


async def test_an_endpoint_that_answers_nothing_gets_no_more_than_its_part(plane):
    stuck = [(await silent(plane))[1] for _ in range(3)]
    assert set(stuck) == {"a", "b"}
    for _ in range(10):
        plane.replies.append(Reply(b"{}"))
        await ended(ask(plane, path=EMBED))
    fewest = min("ab", key=stuck.count)
    assert {base_url for base_url, *_ in plane.sent[3:]} == {f"http://{fewest}"}


# The memory of its body.


async def test_a_body_is_there_for_another_try(plane):
    plane.replies.extend([LOST, Reply(b"{}")])
    assert (await ended(ask(plane, LARGE))).status == 200
    assert [body for *_, body in plane.sent] == [LARGE, LARGE]


async def test_a_body_is_gone_once_its_answer_begins(plane, memory):
    plane.replies.append(Reply(b"{", asyncio.Event()))
    client = ask(plane, LARGE)
    await plane.turns()
    assert plane.sent.pop()[4] == LARGE
    assert client.status == 200
    assert memory() < len(LARGE) / 4
    assert plane.plane.bodies._shares.held == 0
    client.leave()
    await ended(client)


# Places.


async def test_so_many_run_at_once_and_the_others_wait(hurried):
    plane = FakePlane(upstream={"relay_concurrency": 1}, admission={"queue": {"ttl": 30.0}})
    free = asyncio.Event()
    plane.replies.extend([Reply(free, b"first"), Reply(b"second")])
    first = ask(plane)
    await plane.turns()
    second, late = ask(plane), ask(plane, b'{"model":"m"}')
    await asyncio.sleep(10)
    assert len(plane.sent) == 1
    late.leave()
    await ended(late)
    free.set()
    assert (await ended(first)).body == b"first"
    assert (await ended(second)).body == b"second"
    assert plane.lines[-1]["queue_ms"] == pytest.approx(10_000)
    assert not plane.pool.relay_places.full()


async def test_a_stream_holds_its_place_to_its_end(hurried):
    plane = FakePlane(upstream={"relay_concurrency": 1}, admission={"queue": {"ttl": 30.0}})
    more = asyncio.Event()
    plane.replies.extend([stream(TOKEN, more, TOKEN), Reply(b"second")])
    transcription = ask(plane)
    await plane.turns()
    assert TOKEN in transcription.body
    second = ask(plane)
    await asyncio.sleep(10)
    assert len(plane.sent) == 1, "the engine works on"
    more.set()
    assert (await ended(second)).body == b"second"
    await ended(transcription)


async def test_a_client_that_reads_slowly_holds_no_place(hurried):
    plane = FakePlane(upstream={"relay_concurrency": 1}, admission={"queue": {"ttl": 5.0}})
    plane.replies.extend([Reply(*PIECES), Reply(b"second")])
    slow = ask(plane)
    slow.pace = 1.0
    await plane.turns()
    assert (await ended(ask(plane))).body == b"second"
    assert plane.lines[-1]["queue_ms"] == 0
    assert slow.body != b"".join(PIECES)
    assert (await ended(slow)).body == b"".join(PIECES)
    assert not plane.pool.relay_places.full()


async def test_one_that_gets_no_place_in_time_is_refused(hurried):
    plane = FakePlane(upstream={"relay_concurrency": 1}, admission={"queue": {"ttl": 30.0}})
    free = asyncio.Event()
    plane.replies.append(Reply(free, b"first"))
    first = ask(plane)
    await plane.turns()
    client = await ended(ask(plane))
    assert (client.status, error(client)["code"]) == (429, "queue_timeout")
    free.set()
    await ended(first)


async def test_one_whose_endpoint_went_while_it_waited_for_a_place_is_refused(hurried):
    plane = FakePlane(upstream={"relay_concurrency": 1})
    free = asyncio.Event()
    plane.replies.append(Reply(free, b"first"))
    first = ask(plane)
    await plane.turns()
    second = ask(plane)
    await plane.turns()
    plane.cores.down(EndpointId("a"), "down: gone")
    free.set()
    await ended(first)
    assert (await ended(second)).status == 503


# Clients that are slow.


async def test_a_client_that_takes_its_answer_too_slowly_does_not_keep_its_place(plane):
    plane.replies.append(Reply(*PIECES))
    client = ask(plane)
    client.pace = 2.0  # seconds for each of eleven pieces, of which all together may take eleven
    await ended(client)
    assert plane.lines[0]["outcome"] == "client_closed"
    assert not client.complete


async def test_an_answer_comes_as_fast_as_its_engine_gives_it(plane):
    plane.replies.append(Reply(*[part for piece in PIECES for part in (2.0, piece)]))
    client = await ended(ask(plane))
    assert (plane.lines[0]["outcome"], client.body) == ("completed", b"".join(PIECES))


# Limits.


def limited(**limits):
    keys = [{"name": "alice", "key": "1", "limits": limits}, {"name": "bob", "key": "2"}]
    return FakePlane("a", auth={"keys": keys}, upstream={"relay_concurrency": 1})


def embed(plane, key="1"):
    return plane.ask(ASKED, path=EMBED, **{"x-api-key": key})


def used(tokens):
    return Reply(b'{"data":[],"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (tokens, tokens))


async def test_a_relayed_request_is_charged_to_its_key_by_the_usage_of_its_answer(hurried):
    plane = limited(requests_per_minute=3, tokens_per_minute=100)
    plane.replies.extend([used(90), used(30), used(1)])
    first, second, third = [await ended(embed(plane)) for _ in range(3)]
    assert [client.status for client in (first, second, third)] == [200, 200, 429]
    left = [client.headers["x-ratelimit-remaining-requests"] for client in (first, second, third)]
    assert left == ["2", "1", "1"], "what is refused is not charged"
    assert [client.headers["x-ratelimit-remaining-tokens"] for client in (first, second, third)] == ["100", "10", "0"]
    assert error(third)["code"] == "rate_limit_exceeded"
    assert "100 tokens per minute" in error(third)["message"]
    assert (plane.lines[0]["prompt_tokens"], plane.lines[0]["completion_tokens"]) == (90, 0)
    assert (await ended(embed(plane, "2"))).status == 200
    assert "x-ratelimit-limit-requests" not in (await ended(ask(plane, path="/tokenize", **{"x-api-key": "1"}))).headers


async def test_relayed_requests_are_among_those_at_once_until_they_have_ended(hurried):
    plane = limited(concurrent=1)
    free = asyncio.Event()
    plane.replies.extend([Reply(free, b"{}"), LOST, LOST, Reply(b"{}"), Reply(b"{}")])
    running = embed(plane)
    await plane.turns()
    assert (await ended(embed(plane))).status == 429
    free.set()
    assert (await ended(running)).status == 200
    assert (await ended(embed(plane))).status == 502, "its endpoint fails"
    leaving = embed(plane)
    await plane.turns(2)
    leaving.leave()
    await ended(leaving)
    assert (await ended(embed(plane))).status == 200


async def test_what_reaches_no_endpoint_is_charged_nothing(hurried):
    plane = limited(requests_per_minute=2)
    free = asyncio.Event()
    plane.replies.extend([Reply(free, b"{}"), Reply(b"{}")])
    other = embed(plane, "2")  # it has the only place
    await plane.turns()
    assert (await ended(embed(plane))).status == 429
    assert plane.lines[0]["outcome"] == "queue_timeout"
    free.set()
    await ended(other)
    assert (await ended(embed(plane))).headers["x-ratelimit-remaining-requests"] == "1"


async def test_what_no_endpoint_has_answered_is_charged_nothing(hurried):
    """All die with it, and none comes back in time."""
    plane = limited(requests_per_minute=2, tokens_per_minute=1000)
    plane.replies.append(LOST)
    asked = embed(plane)
    await plane.turns()
    plane.cores.down("a", "killed")
    assert (await ended(asked)).status == 503
    plane.up("a")
    plane.replies.append(used(0))
    left = (await ended(embed(plane))).headers
    assert (left["x-ratelimit-remaining-requests"], left["x-ratelimit-remaining-tokens"]) == ("1", "1000")


async def test_who_leaves_before_the_usage_is_charged_its_prompt_as_its_size_tells(hurried):
    plane = limited(tokens_per_minute=1000)
    plane.replies.extend([Reply(b'{"data":[', asyncio.Event()), used(0)])
    body = json.dumps({"model": "m", "input": "x" * 2000}).encode()
    leaving = plane.ask(body, path=EMBED, **{"x-api-key": "1"})
    await plane.turns()
    leaving.leave()
    await ended(leaving)
    left = int((await ended(embed(plane))).headers["x-ratelimit-remaining-tokens"])
    assert 400 < left < 500, "a token for four bytes"


@pytest.mark.parametrize(("status", "charged"), [(200, True), (400, False)])
async def test_an_answer_without_usage_is_charged_its_prompt_as_its_size_tells(hurried, status, charged):
    plane = limited(tokens_per_minute=1000)
    plane.replies.extend([Reply(b"\x00" * 8, status=status), used(0)])
    body = json.dumps({"model": "m", "input": "x" * 2000, "encoding_format": "bytes_only"}).encode()
    assert (await ended(plane.ask(body, path=EMBED, **{"x-api-key": "1"}))).status == status
    left = int((await ended(embed(plane))).headers["x-ratelimit-remaining-tokens"])
    assert 400 < left < 500 if charged else left == 1000


@pytest.mark.parametrize(("priority", "status"), [(-1, 400), (0, 200), (7, 200)])
async def test_nobody_steps_forward(plane, priority, status):
    plane.replies.append(Reply(b"{}"))
    client = await ended(ask(plane, json.dumps({"model": "m", "priority": priority}).encode(), EMBED))
    assert client.status == status
    assert (status == 200) == bool(plane.sent)


async def test_nobody_steps_forward_in_an_engine_that_takes_the_highest_first(plane):
    for name in "ab":
        plane.up(name, kind="sglang")
    plane.replies.append(Reply(b"{}"))
    client = await ended(ask(plane, b'{"model":"m","priority":7}', EMBED))
    assert (client.status, error(client)["param"]) == (400, "priority")
    assert (await ended(ask(plane, b'{"model":"m","priority":0}', EMBED))).status == 200


@pytest.mark.parametrize("field", ["lora_path", "lora"])
async def test_an_adapter_is_refused_to_a_key_that_may_use_only_some_models(plane, field):
    keys = {"1": Client("alice", models=frozenset({"m"})), "2": Client("bob")}
    plane.plane.clients = Clients(keys, None)
    plane.replies.append(Reply(b"{}"))
    body = json.dumps({"model": "m", "input": "x", field: "sql"}).encode()
    client = await ended(plane.ask(body, path=EMBED, **{"x-api-key": "1"}))
    assert (client.status, error(client)["param"]) == (400, field)
    assert plane.sent == []
    assert (await ended(plane.ask(body, path=EMBED, **{"x-api-key": "2"}))).status == 200


# Stored responses.


@pytest.mark.parametrize("status", [200, 500])
async def test_a_response_is_asked_for_where_it_was_made(plane, status):
    plane.directory.remember_response("resp_1", StoredResponse(EndpointId("b"), "m"))
    plane.replies.append(Reply(b"{}", status=status))
    client = await ended(ask(plane, b"", "/v1/responses/resp_1/input_items", method="GET"))
    assert (client.status, plane.sent[0][:3]) == (status, ("http://b", "GET", "/v1/responses/resp_1/input_items"))


async def test_a_response_of_a_model_that_its_key_may_not_use_is_not_known(plane):
    keys = {"1": Client("alice", models=frozenset({"adapter"})), "2": Client("bob", models=frozenset({"m"}))}
    plane.plane.clients = Clients(keys, None)
    plane.replies.extend([Reply(b'{"id":"resp_1","object":"response","status":"completed"}'), Reply(b"{}")])
    bob, path = {"x-api-key": "2"}, "/v1/responses/resp_1"
    await plane.ask(b'{"model":"m","input":"x"}', path="/v1/responses", **bob).ended()
    client = await ended(ask(plane, b"", path, method="GET", **{"x-api-key": "1"}))
    assert (client.status, error(client)["param"]) == (404, "response_id")
    assert (await ended(ask(plane, b"", path, method="GET", **bob))).status == 200
    assert plane.lines[1]["outcome"] == "response_not_found"


async def test_a_response_of_somewhere_else_is_not_known(plane):
    client = await ended(ask(plane, b"", "/v1/responses/resp_1", method="GET"))
    assert (client.status, error(client)["param"]) == (404, "response_id")


async def test_a_response_that_was_made_with_another_key_is_not_known(plane):
    keys = {name: Client(name, keyed=True) for name in ("alice", "bob")}
    plane.plane.clients = Clients(keys, None)
    plane.replies.extend([Reply(b'{"id":"resp_1","object":"response","status":"completed"}'), Reply(b"{}")])
    alice, bob, path = {"x-api-key": "alice"}, {"x-api-key": "bob"}, "/v1/responses/resp_1"
    await plane.ask(b'{"model":"m","input":"x"}', path="/v1/responses", **bob).ended()
    for method, asked in (("GET", path), ("POST", f"{path}/cancel")):
        client = await ended(ask(plane, b"", asked, method=method, **alice))
        assert (client.status, error(client)["param"]) == (404, "response_id")
    assert (await ended(ask(plane, b"", path, method="GET", **bob))).status == 200


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize"])
async def test_what_is_passed_on_is_on_its_endpoint_until_its_end(plane, path):
    first, rest = asyncio.Event(), asyncio.Event()
    plane.replies.append(Reply(first, b"{", rest, b"}"))
    client = ask(plane, b'{"model":"m","input":"x"}', path)
    await plane.turns()
    passing = [plane.watch(name).passing for name in "ab"]
    assert sum(map(len, passing)) == 1
    first.set()
    await plane.turns()
    assert sum(map(len, passing)) == 1, "the answer has begun, and its engine must not end"
    rest.set()
    await ended(client)
    assert passing == [set(), set()]
