import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.events import EndpointId, RequestId
from gateway.config import UpstreamSettings
from gateway.relay.attempt import Again, Attempt, Outgoing
from gateway.relay.flights import Flights, Interruption
from gateway.wire.request import Api

OUTGOING = Outgoing(RequestId(1), "/v1/chat/completions", b"{}", prompt_tokens=5, strip_usage=False)


class Silent:
    """An upstream that never answers; `closed` says whether the request was given up."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.closed = False

    async def send(self, *request):
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.closed = True


class Monitor:
    def dispatched(self, request, prompt_tokens, *, streams):
        pass

    def finished(self, request):
        pass


@pytest.fixture
async def trying():
    """A try that waits for its endpoint: its task, its flight, its upstream, and all flights."""
    flights, upstream = Flights(lambda: 0.0, UpstreamSettings), Silent()
    endpoint = SimpleNamespace(id=EndpointId("a"), base_url="http://a", monitor=Monitor(), healthy=True)
    exchange = SimpleNamespace(stream=True, committed=False, api=Api.CHAT, usage=None)
    attempt = Attempt(exchange, None, flights, upstream, endpoint, made=None)
    task = asyncio.create_task(attempt.run(OUTGOING, []))
    await upstream.asked.wait()
    (flight,) = flights._flights.values()
    return SimpleNamespace(task=task, flight=flight, upstream=upstream, flights=flights)


@pytest.mark.parametrize("why", Interruption)
async def test_an_interrupted_try_may_be_made_again(trying, why):
    trying.flight.interrupt(why)
    result = await trying.task
    assert isinstance(result, Again)
    assert (result.busy, result.overdue) == (False, why is Interruption.OVERDUE)
    assert trying.upstream.closed
    assert len(trying.flights) == 0


async def test_a_client_that_leaves_ends_the_try(trying):
    trying.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying.task
    assert trying.upstream.closed
    assert len(trying.flights) == 0


@pytest.mark.parametrize("client_first", [True, False])
async def test_a_client_that_leaves_in_the_instant_of_an_interruption_has_left(trying, client_first):
    leave = trying.task.cancel
    steps = [leave, lambda: trying.flight.interrupt(Interruption.EVACUATED)]
    for step in steps if client_first else reversed(steps):
        step()
    with pytest.raises(asyncio.CancelledError):
        await trying.task
    assert len(trying.flights) == 0
