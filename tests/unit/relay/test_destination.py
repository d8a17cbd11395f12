import asyncio
import json

import pytest

from gateway.admission.events import EndpointId
from gateway.relay.destination import retry_after
from tests.fakes.plane import ASKED, STREAMED, WHOLE, FakePlane, Reply

pytestmark = pytest.mark.usefixtures("hurried")


def error(client):
    return json.loads(client.body)["error"]


@pytest.fixture
async def plane(hurried):
    """A plane whose endpoint has not said yet what it serves."""
    return FakePlane(ready=False)


async def test_a_model_that_nobody_has_named_yet_is_waited_for(plane):
    plane.replies.append(Reply(WHOLE))
    client = plane.ask()
    await asyncio.sleep(5)
    plane.up("a")
    await client.ended()
    assert (client.status, plane.lines[0]["model"]) == (200, "m")
    assert int(client.headers["x-kvgate-queue-ms"]) >= 5000


async def test_a_model_that_nobody_names_in_time_may_still_exist(plane):
    client = await plane.ask().ended()
    assert (client.status, error(client)["code"]) == (503, "no_endpoint")
    assert plane.lines[0]["queue_ms"] == 60_000
    assert plane.lines[0]["model"] is None


async def test_one_that_nobody_serves_does_not_exist(plane):
    plane.up("a")
    client = await plane.ask(ASKED.replace(b'"m"', b'"other"')).ended()
    assert (client.status, error(client)["code"]) == (404, "model_not_found")
    assert "`other`" in error(client)["message"]


async def test_one_of_several_must_be_named(plane):
    plane.up("a")
    plane.add("b")
    plane.up("b", model="n")
    client = await plane.ask(b'{"messages":[]}').ended()
    assert (client.status, error(client)["param"]) == (400, "model")


async def test_an_endpoint_that_takes_traffic_is_not_waited_for(plane):
    plane.up("a")
    plane.replies.append(Reply(b"{}"))
    await plane.ask(b"{}", path="/tokenize").ended()
    assert plane.lines[0]["queue_ms"] == 0


async def test_an_endpoint_that_does_not_come_back_is_not_waited_for_for_ever(plane):
    plane.up("a")
    plane.cores.down(EndpointId("a"), "down: gone")
    client = await plane.ask(b"{}", path="/tokenize").ended()
    assert (client.status, plane.lines[0]["queue_ms"]) == (503, 60_000)


@pytest.fixture
async def on_demand(hurried):
    """A plane whose engine starts when a request waits for it, and has not run yet."""
    plane = FakePlane(ready=False, admission={"queue": {"heartbeat": 5.0}})
    plane.directory.endpoints.clear()
    plane.add("b", name="m").on_demand = True
    return plane


async def test_who_waits_for_an_engine_to_start_is_heard_of(on_demand):
    on_demand.replies.append(Reply(WHOLE))
    client = on_demand.ask()
    await asyncio.sleep(2)
    assert on_demand.awaits == [{"m": 0.0}]
    on_demand.up("b")
    await client.ended()
    assert client.status == 200
    assert on_demand.awaits[-1] == {}


async def test_who_waits_for_an_engine_is_heard_of_when_a_reload_has_one_start_on_demand(hurried):
    plane = FakePlane(ready=False, admission={"queue": {"heartbeat": 5.0}})
    plane.directory.endpoints.clear()
    plane.add("a", name="m")
    plane.up("a")
    plane.cores.down(EndpointId("a"), "down: gone")
    plane.replies.append(Reply(WHOLE))
    client = plane.ask(path="/tokenize")
    await asyncio.sleep(2)
    plane.add("b", name="m").on_demand = True
    assert plane.awaits == [{"m": 0.0}]
    plane.directory.starts(EndpointId("b"), 99.0, failed=False)
    await asyncio.sleep(70)
    assert client.status is None
    plane.up("b")
    await client.ended()
    assert client.status == 200


async def test_a_name_that_no_engine_has_is_not_waited_for(on_demand):
    client = await on_demand.ask(ASKED.replace(b'"m"', b'"other"')).ended()
    assert (client.status, on_demand.awaits) == (404, [])


async def test_it_waits_twice_as_long_as_the_start_is_expected_to_take_and_hears_so(on_demand):
    client = on_demand.ask(STREAMED)
    await asyncio.sleep(1)
    on_demand.directory.starts(EndpointId("b"), 99.0, failed=False)
    await client.ended()
    assert on_demand.lines[0]["queue_ms"] == 200_000
    assert client.body.startswith(b": kvgate position=1 eta=95.0\n\n")
    assert b'"no_endpoint"' in client.body


async def test_retry_after_is_when_an_engine_is_expected_and_one_that_is_late_is_as_late_again(on_demand):
    endpoint = on_demand.directory.endpoints[EndpointId("b")]
    assert retry_after([endpoint]) == 10
    for ready_in, told in ((30.0, 30), (-20.0, 20), (300.0, 60), (0.1, 1)):
        on_demand.directory.starts(endpoint.id, ready_in, failed=False)
        assert retry_after([endpoint]) == pytest.approx(told, abs=0.01)


async def test_who_waits_for_one_that_does_not_start_is_told(on_demand):
    client = on_demand.ask()
    await asyncio.sleep(1)
    on_demand.directory.starts(EndpointId("b"), None, failed=True)
    await client.ended()
    assert (client.status, error(client)["code"]) == (503, "no_endpoint")
    assert "does not start" in error(client)["message"]
    assert on_demand.lines[0]["queue_ms"] == 1000


async def test_an_engine_does_not_start_for_a_client_that_may_not_use_it(hurried):
    plane = FakePlane(ready=False, auth={"keys": [{"name": "n", "key": "mine", "models": ["m"]}]})
    plane.up("a")
    plane.add("b", name="n").on_demand = True
    for path in ("/v1/chat/completions", "/tokenize"):
        client = plane.ask(ASKED.replace(b'"m"', b'"n"'), path=path, authorization="Bearer mine")
        await asyncio.sleep(1)
        assert client.status == 404
        assert "`n`" in error(client)["message"]
    assert plane.awaits == [], "nobody was told that a request waits for it"


@pytest.mark.parametrize(("models", "starts"), [(["m"], True), (["other"], False)])
async def test_a_request_without_a_name_starts_the_only_model_if_its_key_may_use_that(hurried, models, starts):
    plane = FakePlane(ready=False, auth={"keys": [{"name": "n", "key": "mine", "models": models}]})
    plane.directory.endpoints.clear()
    for replica in "bc":
        plane.add(replica, name="m").on_demand = True
    client = plane.ask(b'{"messages":[]}', authorization="Bearer mine")
    await asyncio.sleep(1)
    assert bool(plane.awaits) == starts
    plane.replies.append(Reply(WHOLE))
    plane.up("b")
    await client.ended()
    assert client.status == (200 if starts else 404)
