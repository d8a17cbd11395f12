import contextlib

import pytest

from gateway.admission.events import Back, EndpointId
from gateway.admission.outcomes import Outcome
from gateway.relay.charge import charged
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, RefusedError
from gateway.server.asgi import ClientGoneError
from gateway.wire.usage import Usage
from tests.fakes.plane import FakePlane

A = EndpointId("a")

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
async def plane(hurried):
    limits = {"concurrent": 1, "tokens_per_minute": 1000}
    return FakePlane(auth={"keys": [{"name": "n", "key": "k", "limits": limits}]})


def exchange(plane):
    async def send(_message): ...

    scope = {"path": "/", "headers": []}
    return Exchange.begin(scope, send, plane.now, None)


async def remaining(plane):
    return plane.tenants.standing("n", plane.now()).tokens.remaining


async def test_it_holds_one_of_its_tenants_requests_until_its_end_and_pays_by_usage(plane):
    one, other = exchange(plane), exchange(plane)
    one.client = other.client = Client("n", limited=True)
    async with charged(plane.plane, one, plane.pool, 500, lambda: 7):
        with pytest.raises(RefusedError) as raised:
            async with charged(plane.plane, other, plane.pool, 500, lambda: 7):
                pass
        assert raised.value.outcome is Outcome.RATE_LIMIT_EXCEEDED
        one.sent_to(A)
        one.usage = Usage(30, 12)
    assert await remaining(plane) == 1000 - 42
    async with charged(plane.plane, other, plane.pool, 500, lambda: 7):
        other.sent_to(A)
        other.usage = Usage(10**9, 10**9)
    assert await remaining(plane) == 1000 - 42 - 500, "no more than it can have used"


async def test_what_reached_nobody_costs_nothing_and_who_left_pays_for_its_prompt(plane):
    one = exchange(plane)
    one.client = Client("n", limited=True)
    async with charged(plane.plane, one, plane.pool, 500, lambda: 7):
        pass
    assert await remaining(plane) == 1000
    with contextlib.suppress(ClientGoneError):
        async with charged(plane.plane, one, plane.pool, 500, lambda: 7):
            one.sent_to(A)
            raise ClientGoneError
    assert await remaining(plane) == 1000 - 7


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (False, RefusedError(Outcome.NO_ENDPOINT, "No endpoint is ready.")),
        (True, RefusedError(Outcome.DRAINING, "It shuts down.")),
        (False, ClientGoneError()),
    ],
)
async def test_what_no_engine_has_answered_costs_nothing(plane, answered, error):
    one = exchange(plane)
    one.client = Client("n", limited=True)
    with contextlib.suppress(RefusedError, ClientGoneError):
        async with charged(plane.plane, one, plane.pool, 500, lambda: 7):
            one.sent_to(A)
            if not answered:
                one.unanswered(Back.FAILED)
            raise error
    assert await remaining(plane) == 1000
