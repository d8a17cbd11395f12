import asyncio
import json

import pytest

from gateway.admission.events import EndpointId
from tests.fakes.plane import ASKED, WHOLE, FakePlane, Reply

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
