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
