import json

import pytest

from gateway.relay.client_identity import Client, Clients
from tests.fakes.plane import FakePlane, Reply

pytestmark = pytest.mark.usefixtures("hurried")

RESPONSES = "/v1/responses"
MADE = b'{"id":"resp_1","object":"response","status":"completed"}'


@pytest.fixture
async def plane(hurried):
    return FakePlane()


async def asked(plane, who, **fields):
    body = json.dumps({"model": "m", "input": "x", **fields}).encode()
    plane.replies.append(Reply(MADE))
    client = plane.ask(body, path=RESPONSES, **{"x-api-key": who})
    await client.ended()
    plane.replies.clear()
    return client.status, (json.loads(client.body).get("error") or {}).get("param")


def with_keys(plane):
    plane.plane.clients = Clients({name: Client(name, keyed=True) for name in ("alice", "bob")}, None)


async def test_a_response_is_gone_on_with_only_by_the_key_that_made_it(plane):
    with_keys(plane)
    assert await asked(plane, "bob") == (200, None)
    assert await asked(plane, "alice", previous_response_id="resp_1") == (404, "previous_response_id")
    assert await asked(plane, "bob", previous_response_id="resp_1") == (200, None)


async def test_a_response_that_is_not_to_be_stored_is_not_remembered(plane):
    with_keys(plane)
    assert await asked(plane, "bob", store=False) == (200, None)
    assert await asked(plane, "bob", previous_response_id="resp_1") == (404, "previous_response_id")


@pytest.mark.parametrize("stored", [True, False])
async def test_what_an_earlier_response_brings_along_is_estimated_by_its_usage(plane, stored):
    counted = []
    for number, fields in enumerate(({}, {"previous_response_id": "resp_0"})):
        usage = {"input_tokens": 20 + number, "output_tokens": 5}
        reply = {"id": f"resp_{number}", "object": "response", "status": "completed", "usage": usage}
        plane.replies.append(Reply(json.dumps(reply).encode()))
        body = {"model": "m", "input": "x", "store": stored, **fields}
        client = await plane.ask(json.dumps(body).encode(), path=RESPONSES).ended()
        counted.append((client.headers["x-kvgate-prompt-tokens"], client.headers["x-kvgate-counted"]))
    assert counted == [("3", "local"), ("28", "estimate") if stored else ("3", "local")]


async def test_no_limit_of_an_answer_follows_from_what_an_earlier_response_brings_along(plane):
    """It may bring far less, as without its reasoning."""
    plane.plane.clients = Clients({"alice": Client("alice", keyed=True, max_tokens=50)}, None)
    usage = {"input_tokens": 20, "output_tokens": plane.pool.max_model_len - 30}
    plane.replies.append(Reply(json.dumps({"id": "resp_0", "status": "completed", "usage": usage}).encode()))
    for fields in ({}, {"previous_response_id": "resp_0"}):
        body = {"model": "m", "input": "x", **fields}
        await plane.ask(json.dumps(body).encode(), path=RESPONSES, **{"x-api-key": "alice"}).ended()
        plane.replies.append(Reply(MADE))
    assert [json.loads(sent[4])["max_output_tokens"] for sent in plane.sent] == [50, 50]


async def test_a_response_that_is_not_known_here_may_be_anybodys(plane):
    with_keys(plane)
    assert await asked(plane, "alice", previous_response_id="resp_0") == (404, "previous_response_id")
    assert not plane.sent


async def test_nobody_takes_an_id_that_may_be_another_keys(plane):
    """Also one that is not known here: another worker knows it, or it was forgotten, and its engine still has it."""
    with_keys(plane)
    assert await asked(plane, "alice", request_id="resp_1") == (400, "request_id")
    assert not plane.sent
    assert await asked(plane, "bob") == (200, None)
    for who in ("alice", "bob"):
        assert await asked(plane, who, request_id="resp_1") == (400, "request_id")


async def test_without_keys_everybody_goes_on_with_every_response(plane):
    assert await asked(plane, "bob", previous_response_id="resp_0", request_id="resp_1") == (200, None)
    assert await asked(plane, "alice", previous_response_id="resp_1", request_id="resp_1") == (200, None)


async def test_what_is_no_id_is_for_the_engine_to_refuse(plane):
    with_keys(plane)
    assert await asked(plane, "bob", previous_response_id=None, request_id=5) == (200, None)
