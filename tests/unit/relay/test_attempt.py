import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.events import EndpointId, RequestId, Verdict
from gateway.admission.outcomes import Outcome
from gateway.config.settings import UpstreamSettings
from gateway.relay.attempt import Again, Attempt, Outgoing, Settled
from gateway.relay.flights import Flights, Interruption
from gateway.wire.request import Api

EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
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
    """Keeps whether the last request was brought from another endpoint."""

    brought = None

    def dispatched(self, request, prompt_tokens, *, streams, brought):
        self.brought = brought

    def progressed(self, requests):
        pass

    def finished(self, request, *, delivering=False):
        pass


@pytest.fixture
async def trying():
    """A try that waits for its endpoint: its task, its flight, its upstream, and all flights."""
    flights, upstream = Flights(lambda: 0.0, UpstreamSettings), Silent()
    endpoint = SimpleNamespace(id=EndpointId("a"), base_url="http://a", monitor=Monitor(), healthy=True)
    refused = []

    async def refuse(outcome, message):
        refused.append(outcome)
        return outcome

    exchange = SimpleNamespace(
        stream=True, committed=False, evacuated=False, api=Api.CHAT, usage=None, refuse=refuse, refused=refused
    )
    attempt = Attempt(exchange, None, flights, upstream, endpoint, made=None)
    task = asyncio.create_task(attempt.run(OUTGOING, []))
    await upstream.asked.wait()
    (flight,) = flights._flights.values()
    return SimpleNamespace(
        task=task, flight=flight, upstream=upstream, flights=flights, exchange=exchange, attempt=attempt
    )


async def test_one_that_is_taken_off_its_endpoint_may_go_elsewhere_and_is_known_there(trying):
    trying.flight.interrupt(Interruption.EVACUATED)
    result = await trying.task
    assert isinstance(result, Again)
    assert not result.busy
    assert trying.upstream.closed
    assert len(trying.flights) == 0
    assert trying.flight.endpoint.monitor.brought is False
    trying.upstream.asked.clear()
    again = asyncio.create_task(trying.attempt.run(OUTGOING, []))
    await trying.upstream.asked.wait()
    assert trying.flight.endpoint.monitor.brought is True
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again


async def test_one_that_is_silent_for_too_long_ends_and_goes_nowhere_else(trying):
    trying.flight.interrupt(Interruption.OVERDUE)
    assert await trying.task == Settled(Outcome.UPSTREAM_TIMEOUT, Verdict.ABORTED)
    assert trying.exchange.refused == [Outcome.UPSTREAM_TIMEOUT]
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


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_cannot_begin_waits_for_its_client_and_not_for_the_endpoint(streamed, failed):
    """Its client sent requests ahead, and takes none of the answers: the endpoint has done its work."""
    flights, reached = Flights(lambda: 0.0, UpstreamSettings), asyncio.Event()
    endpoint = SimpleNamespace(id=EndpointId("a"), base_url="http://a", api_key=None, monitor=Monitor(), healthy=True)
    pieces = [b'{"error":{"message":"no","code":400}}' if failed else EVENT]
    if streamed and failed:
        pieces = [b"data: " + pieces[0] + b"\n\n"]

    async def read_some():
        return pieces.pop(0) if pieces else b""

    async def send(base_url, *request):
        kind = b"text/event-stream" if streamed else b"application/json"
        status = 400 if failed and not streamed else 200
        headers = [(b"content-type", kind)]
        return SimpleNamespace(status=status, headers=headers, read_some=read_some, close=lambda: None)

    async def never(*message):
        reached.set()
        await asyncio.Event().wait()

    exchange = SimpleNamespace(
        stream=True, committed=False, opened=False, evacuated=False, api=Api.CHAT, usage=None, identifier=b"x",
        clock=lambda: 0.0, facts=list, send=never, refuse=never, body=SimpleNamespace(write=None),
    )  # fmt: skip
    driver = SimpleNamespace(progress=None)
    attempt = Attempt(exchange, driver, flights, SimpleNamespace(send=send), endpoint, made=None)
    task = asyncio.create_task(attempt.run(OUTGOING, []))
    await asyncio.wait_for(reached.wait(), 5)
    (flight,) = flights._flights.values()
    assert flight.delivering
    flight.interrupt(Interruption.OVERDUE)
    assert await task == Settled(Outcome.CLIENT_CLOSED, Verdict.ABORTED)
