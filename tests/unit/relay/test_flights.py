import asyncio
import contextlib
from types import SimpleNamespace

import pytest

from gateway.admission.events import EndpointId, RequestId
from gateway.config.settings import UpstreamSettings
from gateway.relay.flights import ABANDONED_AFTER, SWEEP_INTERVAL, Flights, Interruption
from tests.clock import Clock

FIRST_BYTE, IDLE = 600.0, 300.0
TIMEOUTS = UpstreamSettings(first_byte_timeout=FIRST_BYTE, idle_timeout=IDLE)
ONE = RequestId(1)


class Watch:
    """Keeps what it is told, in order."""

    def __init__(self):
        self.told = []
        self.keeps = False

    def dispatched(self, request, prompt_tokens, *, streams, evacuated=False, started=False):
        self.told.append(("back" if started else "dispatched", request))

    def progressed(self, requests):
        self.told.append(("progressed", *requests))

    def finished(self, request, *, delivering=False):
        self.told.append(("unread" if delivering else "finished", request))


def endpoint_of(name="a"):
    return SimpleNamespace(id=EndpointId(name), watch=Watch(), healthy=True)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def flights(clock):
    return Flights(clock, lambda: TIMEOUTS)


@contextlib.asynccontextmanager
async def flying(flights, endpoint, request=ONE, behind=None):
    """A request in flight; yields its flight and what interrupted it, if anything."""
    opened = asyncio.get_running_loop().create_future()

    async def fly():
        flight = flights.open(request, endpoint, 10, streams=True, behind=behind)
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
    assert endpoint.watch.told == [("dispatched", ONE), ("finished", ONE)]


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
        assert ("progressed", ONE) in endpoint.watch.told


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("answering", [True, False])
async def test_an_endpoint_that_takes_no_traffic_is_waited_for_only_where_it_may_go_on(
    flights, clock, keeps, answering
):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.answering = answering
        endpoint.healthy, endpoint.watch.keeps = False, keeps
        clock.now = ABANDONED_AFTER + 1
        flights.sweep()
        given_up = Interruption.OVERDUE if answering else Interruption.EVACUATED
        assert flight.interruption is (None if keeps else given_up)


async def test_a_request_stays_on_an_endpoint_for_as_long_as_that_may_go_on(flights, clock):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        endpoint.healthy, endpoint.watch.keeps = False, True
        clock.now = ABANDONED_AFTER + 1
        flights.sweep()
        assert flight.interruption is None
        endpoint.watch.keeps = False
        flights.sweep()
        assert flight.interruption is Interruption.EVACUATED


async def test_requests_whose_time_is_over_end_unless_it_is_their_clients_that_do_not_go_on(flights):
    endpoint = endpoint_of()
    async with (
        flying(flights, endpoint, RequestId(1)) as unanswered,
        flying(flights, endpoint, RequestId(2)) as delivering,
        flying(flights, endpoint, RequestId(3)) as other,
    ):
        delivering.delivering = True
        flights.expire([RequestId(1), RequestId(2), RequestId(99)])
        assert unanswered.interruption is Interruption.OVERDUE
        assert delivering.interruption is other.interruption is None


async def test_the_first_of_an_answer_is_progress(flights):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flights.note_answer(flight)
        assert flight.answering
        assert endpoint.watch.told == [("dispatched", ONE), ("progressed", ONE)]


async def test_an_endpoint_that_went_down_loses_only_what_it_has_not_answered(flights):
    down, up = endpoint_of("down"), endpoint_of("up")
    async with (
        flying(flights, down, RequestId(1)) as unanswered,
        flying(flights, down, RequestId(2)) as answering,
        flying(flights, down, RequestId(3)) as refused,
        flying(flights, up, RequestId(4)) as elsewhere,
    ):
        answering.answering = refused.delivering = True
        flights.evacuate(down.id)
        assert unanswered.interruption is Interruption.EVACUATED
        assert answering.interruption is refused.interruption is elsewhere.interruption is None


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
        endpoint.healthy = False
        clock.now = SWEEP_INTERVAL + ABANDONED_AFTER + 1
        flights.sweep()
        flights.sweep()
        assert endpoint.watch.told == [("dispatched", ONE), ("unread", ONE)]
        assert flight.interruption is None
        flight.delivering = False
        flight.moved_at = clock.now
        flights.sweep()
        assert endpoint.watch.told[2:] == [("back", ONE)]
        flight.delivering = True
        clock.now += IDLE + 1
        flights.sweep()
        assert flight.interruption is Interruption.OVERDUE, "nor kept for ever"
    assert endpoint.watch.told[3:] == [("unread", ONE)]


async def test_the_core_hears_that_a_client_is_behind(flights, clock):
    told = []
    async with flying(flights, endpoint_of(), behind=lambda: told.append(clock.now)) as flight:
        flight.answering = True
        clock.now = SWEEP_INTERVAL + 1
        flights.sweep()
        assert not told, "it is the engine that is silent"
        flight.delivering = True
        flights.sweep()
        flights.sweep()
        assert told == [clock.now]


async def test_what_had_arrived_before_its_client_read_again_is_no_news_of_the_engine(flights, clock):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.answering = flight.delivering = True
        clock.now = SWEEP_INTERVAL + 1
        flights.sweep()
        flights.progressed([ONE])
        assert flight.moved_at == clock.now
        assert endpoint.watch.told == [("dispatched", ONE), ("unread", ONE)]
        flight.delivering = False
        flights.sweep()
        flights.progressed([ONE])
        assert endpoint.watch.told[2:] == [("back", ONE), ("progressed", ONE)]


async def test_an_answer_that_is_only_passed_on_any_more_tells_nothing_of_the_engine(flights, clock):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flights.note_answer(flight, engine_done=True)
        for _ in range(100):  # pieces of a large one, each soon after the one before
            flights.sweep()
            clock.now += SWEEP_INTERVAL
            flight.moved_at = clock.now
        assert endpoint.watch.told == [("dispatched", ONE), ("progressed", ONE), ("finished", ONE)]
        assert flight.interruption is None


async def test_the_first_reason_stays(flights):
    endpoint = endpoint_of()
    async with flying(flights, endpoint) as flight:
        flight.interrupt(Interruption.EVACUATED)
        flight.interrupt(Interruption.OVERDUE)
        assert flight.interruption is Interruption.EVACUATED
        assert flight.task.cancelling() == 1


@pytest.mark.usefixtures("hurried")
async def test_the_overdue_are_looked_for_all_the_time():
    flights = Flights(asyncio.get_running_loop().time, lambda: TIMEOUTS)
    watching = asyncio.create_task(flights.watch())
    async with flying(flights, endpoint_of()) as flight:
        await asyncio.sleep(FIRST_BYTE - 1)
        assert flight.interruption is None
        await asyncio.sleep(1 + 2 * SWEEP_INTERVAL)
        assert flight.interruption is Interruption.OVERDUE
    watching.cancel()
    await asyncio.wait([watching])
