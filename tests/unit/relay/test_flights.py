import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from gateway.admission.events import EndpointId, RequestId
from gateway.config import UpstreamSettings
from gateway.endpoints.health import State
from gateway.relay.flights import ABANDONED_AFTER, SWEEP_INTERVAL, Flights, Interruption

FIRST_BYTE, IDLE = 600.0, 300.0
TIMEOUTS = UpstreamSettings(first_byte_timeout=FIRST_BYTE, idle_timeout=IDLE)
ONE = RequestId(1)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Monitor:
    """Keeps what it is told, in order."""

    def __init__(self):
        self.told = []
        self.status = SimpleNamespace(state=State.UP)

    def dispatched(self, request, prompt_tokens, *, streams):
        self.told.append(("dispatched", request))

    def progressed(self, requests):
        self.told.append(("progressed", *requests))

    def finished(self, request):
        self.told.append(("finished", request))


def endpoint_of(name="a"):
    return SimpleNamespace(id=EndpointId(name), monitor=Monitor(), healthy=True)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def flights(clock):
    return Flights(clock, lambda: TIMEOUTS)


@contextlib.asynccontextmanager
async def flying(flights, endpoint, request=ONE):
    """A request in flight; yields its flight and what interrupted it, if anything."""
    opened = asyncio.get_running_loop().create_future()

    async def fly():
        flight = flights.open(request, endpoint, 10, streams=True)
        opened.set_result(flight)
        try:
            await asyncio.Event().wait()
        finally:
            flights.close(flight)

    task = asyncio.create_task(fly())
    yield await opened
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_flight_is_known_from_its_start_to_its_end(flights):
    endpoint = endpoint_of()
    async with flying(flights, endpoint):
        assert len(flights) == 1
    assert len(flights) == 0
    assert endpoint.monitor.told == [("dispatched", ONE), ("finished", ONE)]


@pytest.mark.parametrize(("answering", "limit"), [(False, FIRST_BYTE), (True, IDLE)])
async def test_silence_is_bounded(flights, clock, answering, limit):
    async with flying(flights, endpoint_of()) as flight:
        flight.answering = answering
        clock.now = limit
        flights.sweep()
        assert flight.interruption is None
        clock.now = limit + 0.1
        flights.sweep()
        assert flight.interruption is Interruption.OVERDUE


async def test_tokens_break_the_silence(flights, clock):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.answering = True
        clock.now = IDLE - 1
        flights.progressed([ONE, RequestId(99)])
        clock.now = IDLE + 1
        flights.sweep()
        assert flight.interruption is None
        assert ("progressed", ONE) in endpoint.monitor.told


@pytest.mark.parametrize(
    ("state", "given_up"), [(State.DOWN, True), (State.HUNG, True), (State.ASLEEP, True), (State.DRAINING, False)]
)
async def test_an_endpoint_that_takes_no_traffic_is_waited_for_only_when_it_drains(flights, clock, state, given_up):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        endpoint.healthy, endpoint.monitor.status.state = False, state
        clock.now = ABANDONED_AFTER + 1
        flights.sweep()
        assert (flight.interruption is Interruption.OVERDUE) is given_up


async def test_an_endpoint_that_went_down_loses_only_what_it_has_not_answered(flights):
    down, up = endpoint_of("down"), endpoint_of("up")
    async with (
        flying(flights, down, RequestId(1)) as unanswered,
        flying(flights, down, RequestId(2)) as answering,
        flying(flights, up, RequestId(3)) as elsewhere,
    ):
        answering.answering = True
        flights.evacuate(down.id)
        assert unanswered.interruption is Interruption.EVACUATED
        assert answering.interruption is elsewhere.interruption is None


async def test_the_request_that_found_its_endpoint_down_is_not_interrupted(flights):
    down = endpoint_of()
    mine = flights.open(ONE, down, 1, streams=True)
    flights.evacuate(down.id)
    assert mine.interruption is None
    flights.close(mine)


async def test_a_client_that_does_not_read_is_not_held_against_the_endpoint(flights, clock):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.answering = flight.delivering = True
        endpoint.healthy, endpoint.monitor.status.state = False, State.DOWN
        clock.now = SWEEP_INTERVAL + ABANDONED_AFTER + 1
        flights.sweep()
        flights.sweep()
        assert endpoint.monitor.told == [("dispatched", ONE), ("finished", ONE)]
        assert flight.interruption is None
        flight.delivering = False
        flight.moved_at = clock.now
        flights.sweep()
        assert endpoint.monitor.told[2:] == [("dispatched", ONE)]
        flight.delivering = True
        clock.now += IDLE + 1
        flights.sweep()
        assert flight.interruption is Interruption.OVERDUE, "nor kept for ever"


async def test_the_first_reason_stays(flights):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.interrupt(Interruption.EVACUATED)
        flight.interrupt(Interruption.OVERDUE)
        assert flight.interruption is Interruption.EVACUATED
        assert flight.task.cancelling() == 1
