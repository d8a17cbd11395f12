import asyncio
import contextlib
import random
from itertools import count

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Back,
    Capacity,
    Demand,
    EndpointDown,
    EndpointId,
    EndpointUp,
    Finished,
    Progress,
    RequestId,
    ShutdownStarted,
    Tick,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.pools.admission import FULL_BATCH, LONGEST_INTERVAL, PROGRESS_INTERVAL, RejectedError
from tests.clock import Clock
from tests.fakes.paired import paired

HERE = EndpointId("here")
SMALL = Demand((10,), 10)
IDS = count(1)


def new_request():
    return RequestId(next(IDS))


def pair_of(clock=None, progressed=lambda requests: None, *, sequences=1, **policy):
    admission, driver = paired(
        AdmissionController(Policy(**policy)), clock or asyncio.get_running_loop().time, progressed=progressed
    )
    driver.handle(EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=sequences)))
    return admission, driver


def close(admission):
    admission.close()
    admission.decider.close()


def snapshot(admission):
    return admission.decider.controller.snapshot(asyncio.get_running_loop().time())


def in_flight(admission):
    return sum(endpoint.in_flight for endpoint in snapshot(admission).endpoints)


async def admitted(admission, band=0):
    arrival = Arrived(new_request(), SMALL, band=band, flow="f", body_bytes=10)
    return arrival.request, await admission.admit(arrival)


def admit(admission):
    return asyncio.create_task(admitted(admission))


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_request_that_fits_is_dispatched_at_once():
    admission, _ = pair_of()
    request, dispatch = await admitted(admission)
    assert dispatch.endpoint == HERE
    assert in_flight(admission) == 1
    admission.finish(request, Verdict.DONE, 3)
    assert in_flight(admission) == 0
    close(admission)


async def test_who_waits_is_told_when_its_turn_comes():
    admission, _ = pair_of()
    first, _ = await admitted(admission)
    second = admit(admission)
    await turns()
    assert not second.done()
    assert snapshot(admission).queue.depth == 1
    admission.finish(first, Verdict.DONE, 3)
    request, _ = await second
    assert request != first
    admission.finish(request, Verdict.DONE, 3)
    close(admission)


async def test_time_alone_ends_a_wait():
    admission, _ = pair_of(ttl=0.05)
    await admitted(admission)
    with pytest.raises(RejectedError) as refused:
        await admitted(admission)
    assert refused.value.command.outcome is Outcome.QUEUE_TIMEOUT
    assert snapshot(admission).queue.depth == 0
    close(admission)


async def test_a_request_that_came_back_busy_is_dispatched_again():
    admission, _ = pair_of()
    request, _ = await admitted(admission)
    again = await admission.readmit(request, Back.BUSY)
    assert again.request == request
    admission.finish(request, Verdict.DONE, 3)
    assert in_flight(admission) == 0
    close(admission)


async def test_shutdown_refuses_who_waits():
    admission, driver = pair_of()
    await admitted(admission)
    second = admit(admission)
    await turns()
    driver.handle(ShutdownStarted())
    with pytest.raises(RejectedError) as refused:
        await second
    assert refused.value.command.outcome is Outcome.DRAINING
    close(admission)


@pytest.mark.usefixtures("hurried")
async def test_progress_reaches_the_core_in_batches():
    batches = []
    admission, _ = pair_of(progressed=lambda requests: batches.append(list(requests)), sequences=3)
    requests = [(await admitted(admission))[0] for _ in range(2)]
    for request in requests:
        admission.first_tokens(request, 1)
    for generated in range(2, 8):
        for request in requests:
            admission.progress(request, generated)
    assert batches == []
    await asyncio.sleep(PROGRESS_INTERVAL * 2)
    assert batches == [requests]
    held = snapshot(admission).endpoints[0].held_blocks
    assert held == 4, "two sequences of 10 + 7 tokens in blocks of 16"
    admission.progress(requests[0], 9)
    for request in requests:
        admission.finish(request, Verdict.DONE, 9)
    await asyncio.sleep(PROGRESS_INTERVAL * 2)
    assert batches == [requests], "who has left is heard of no more"
    close(admission)


@pytest.mark.parametrize("after", range(6))
async def test_a_departure_at_any_turn_of_the_loop_leaves_nothing(after):
    """The client of the one who waits leaves just before, while, and just after it is dispatched."""
    admission, _ = pair_of()
    first, _ = await admitted(admission)
    second = admit(admission)
    await turns(2)
    asyncio.get_running_loop().call_soon(admission.finish, first, Verdict.DONE, 3)
    for _ in range(after):
        await asyncio.sleep(0)
    if second.cancel():
        with contextlib.suppress(asyncio.CancelledError):
            await second
    if not second.cancelled():
        admission.finish((await second)[0], Verdict.DONE, 0)
    await turns()
    assert in_flight(admission) == 0
    assert snapshot(admission).queue.depth == 0
    third, _ = await asyncio.wait_for(admit(admission), 1)
    admission.finish(third, Verdict.DONE, 0)
    close(admission)


async def test_a_thousand_clients_that_leave_in_one_turn_keep_nobody_else_from_being_dispatched():
    """Each of them is dispatched in the place of the one before, and gives it up at once."""
    admission, _ = pair_of(sequences=2, max_requests=2000)
    first, second = [(await admitted(admission))[0] for _ in range(2)]
    leaving = [admit(admission) for _ in range(1000)]
    staying = admit(admission)
    await turns(2)
    for task in leaving:
        task.cancel()
    admission.finish(first, Verdict.DONE, 3)
    admission.finish(second, Verdict.DONE, 3)
    third, _ = await asyncio.wait_for(staying, 30)
    admission.finish(third, Verdict.DONE, 3)
    await asyncio.gather(*leaving, return_exceptions=True)
    assert (in_flight(admission), snapshot(admission).queue.depth) == (0, 0)
    close(admission)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_clients_may_leave_at_every_await_and_nothing_leaks(seed):
    """Requests of every fate: cancelled at a random turn, returned busy or failed, with endpoints going up and down."""

    async def run():
        choose = random.Random(seed)  # noqa: S311  # a reproducible choice
        admission, driver = pair_of(sequences=2, ttl=0.02, no_endpoint_ttl=0.02, max_requests=6)
        owed = set()

        async def live():
            request = None
            try:
                request, _ = await admitted(admission, band=choose.randrange(3))
                owed.add(request)
                await turns(choose.randrange(4))
                while choose.random() < 0.4:
                    owed.discard(request)
                    await admission.readmit(request, choose.choice(list(Back)))
                    owed.add(request)
                    admission.first_tokens(request, choose.randrange(10))
                    await turns(choose.randrange(3))
            except RejectedError:
                return
            finally:
                if request in owed:
                    owed.discard(request)
                    admission.finish(request, choose.choice(list(Verdict)), choose.choice((None, 5)))

        tasks = [asyncio.create_task(live()) for _ in range(choose.randrange(2, 12))]
        for _ in range(40):
            await asyncio.sleep(0)
            if choose.random() < 0.3:
                choose.choice(tasks).cancel()
            if choose.random() < 0.05:
                driver.handle(EndpointDown(HERE, "test"))
            if choose.random() < 0.1:
                driver.handle(EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=2)))
        driver.handle(EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=2)))
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert owed == set()
        state = snapshot(admission)
        assert state.queue.depth == 0
        assert state.queue.bytes == 0
        # What was aborted is held until an engine step has passed, and nothing else is.
        assert all(endpoint.in_flight == endpoint.aborting for endpoint in state.endpoints)
        close(admission)

    asyncio.run(run())


def account(controller, now):
    """What it holds on its endpoint, by request: blocks, and tokens that a sequence is taken to have."""
    (endpoint,) = controller._endpoints
    held = {key: (f.reservation.held, f.reservation.generated) for key, f in controller._flights.items()}
    return held, controller.snapshot(now).endpoints[0].held_blocks, endpoint.ledger.aborting


DEMANDS = (Demand((10,), 300), Demand((31,), 300), Demand((32,), 40), Demand((5, 40, 77), 200), Demand((20,), 200, n=3))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_the_account_is_as_if_the_core_heard_of_every_token(seed):
    """One admission leaves out reports that change nothing, a second core is told everything, in the same batches."""

    async def run():
        choose, clock, events = random.Random(seed), Clock(), []  # noqa: S311  # a reproducible choice
        admission, driver = paired(AdmissionController(Policy()), clock, record=lambda event, *_: events.append(event))
        told = AdmissionController(Policy())
        # Not both: counts told late, as blocks change, may end the wait for what was aborted a little early.
        changes, verdicts = choose.choice(((0.05, [Verdict.DONE]), (0.0, list(Verdict))))

        def follow(kinds=(Arrived, EndpointUp)):
            for event in events:
                if isinstance(event, kinds):
                    told.handle(event, clock.now)
            events.clear()

        driver.handle(EndpointUp(HERE, Capacity(4000, 1000)))
        arrivals = [Arrived(new_request(), choose.choice(DEMANDS)) for _ in range(5)]
        counts = {(await admission.admit(arrival)).request: 0 for arrival in arrivals}
        most = {a.request: a.demand.max_tokens * a.demand.sequences for a in arrivals}
        follow()
        for _ in range(60):
            clock.now += PROGRESS_INTERVAL
            moved = {key: min(most[key], n + choose.randrange(1, 40)) for key, n in counts.items() if n < most[key]}
            moved = {key: n for key, n in moved.items() if choose.random() < 0.7}
            counts.update(moved)
            for request, generated in moved.items():
                admission.progress(request, generated)
            if choose.random() < changes:  # it comes up with other blocks, once everything is told
                driver.handle(EndpointUp(HERE, Capacity(4000, 1000, choose.choice((16, 32, 48)))))
                told.handle(Progress(tuple(moved.items())), clock.now)
                follow()
            if choose.random() < 0.1 and moved:
                request, generated = choose.choice(list(moved.items()))
                del counts[request]
                admission.finish(request, choose.choice(verdicts), choose.choice((None, generated)))
                follow((Progress, Finished))
            admission._flush()
            follow()
            told.handle(Progress(tuple((key, n) for key, n in moved.items() if key in counts)), clock.now)
            assert account(driver.controller, clock.now) == account(told, clock.now)
        for request in list(counts):
            admission.finish(request, Verdict.DONE, None)
        assert not admission.counts._untold
        assert not admission.counts.next_reports
        close(admission)

    asyncio.run(run())


async def test_the_core_hears_of_a_stream_once_for_each_of_its_blocks():
    heard = []
    admission, driver = pair_of()
    request = new_request()
    await admission.admit(Arrived(request, Demand((10,), 100)))  # 6 tokens more fill its block of 16
    driver._record = lambda event, *_: heard.append(event)
    for generated in range(1, 31):
        admission.progress(request, generated)
        admission._flush()
    admission.progress(request, 31)
    admission.finish(request, Verdict.DONE, None)
    assert [event.generated for event in heard if isinstance(event, Progress) and event.generated] == [
        ((request, 1),), ((request, 7),), ((request, 23),), ((request, 31),)
    ]  # fmt: skip
    close(admission)


async def test_any_token_shows_that_an_engine_has_taken_a_step_since_an_abort():
    clock = Clock()
    admission, driver = pair_of(clock, sequences=2)
    (gone, _), (request, _) = [await admitted(admission) for _ in range(2)]
    for stream in (gone, request):
        admission.progress(stream, 1)
    admission._flush()
    admission.finish(gone, Verdict.ABORTED)
    assert driver.controller.snapshot(clock.now).endpoints[0].aborting == 1
    clock.now += 3 * PROGRESS_INTERVAL
    admission.progress(request, 2)  # in a block that it has begun: not reported otherwise
    admission._flush()
    assert driver.controller.snapshot(clock.now).endpoints[0].aborting == 0
    close(admission)


async def test_an_endpoint_that_comes_up_with_other_blocks_finds_every_count():
    admission, driver = pair_of()
    request = new_request()
    await admission.admit(Arrived(request, Demand((10,), 100)))
    for generated in (1, 6):
        admission.progress(request, generated)
        admission._flush()
    heard = []
    driver._record = lambda event, *_: heard.append(event)
    up = EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100, block_size=4, max_num_seqs=1))
    driver.handle(up)
    assert heard == [Progress(((request, 6),)), up]
    for generated in (7, 8, 9):  # 10 + 6 are four blocks of 4: the fifth has room for three more
        admission.progress(request, generated)
        admission._flush()
    assert [event.generated for event in heard[2:]] == [((request, 7),)]
    assert snapshot(admission).endpoints[0].held_blocks == 5
    close(admission)


@pytest.mark.usefixtures("hurried")
async def test_what_was_generated_before_a_return_is_not_counted_after_it():
    admission, _ = pair_of()
    request, _ = await admitted(admission)
    admission.progress(request, 10)
    await admission.readmit(request, Back.FAILED)
    await asyncio.sleep(PROGRESS_INTERVAL * 2)
    assert snapshot(admission).endpoints[0].held_blocks == 1
    admission.finish(request, Verdict.DONE, 0)
    close(admission)


async def test_what_would_become_of_a_request_is_asked_of_the_core_as_it_is_now_and_changes_nothing():
    (admission, driver), heard = pair_of(ttl=0.05), []
    await admitted(admission)
    waiting = admit(admission)
    await turns()
    driver._record = lambda event, *_: heard.append(event)
    explanation = await admission.explain(Arrived(new_request(), SMALL))
    assert (explanation.verdict, explanation.endpoint) == ("queue", HERE)
    assert heard == [Tick()], "who arrived would find the accounts up to date, too"
    assert (in_flight(admission), snapshot(admission).queue.depth) == (1, 1)
    with pytest.raises(RejectedError):
        await waiting
    close(admission)


def next_batch_in(admission):
    return admission._due - asyncio.get_running_loop().time()


async def in_flight_of(admission, streams):
    """Streams that the core has heard of once."""
    requests = [(await admitted(admission))[0] for _ in range(streams)]
    for request in requests:
        admission.first_tokens(request, 1)
    admission._flush()
    return requests


async def test_a_batch_waits_for_more_counts_while_few_come_but_not_with_a_first_token():
    admission, _ = pair_of(sequences=FULL_BATCH)
    (first,) = await in_flight_of(admission, 1)
    admission.progress(first, 2)
    admission._flush()
    assert PROGRESS_INTERVAL < next_batch_in(admission) <= LONGEST_INTERVAL
    second, _ = await admitted(admission)
    admission.first_tokens(second, 1)
    assert next_batch_in(admission) <= PROGRESS_INTERVAL
    close(admission)


async def test_batches_follow_each_other_closely_where_many_counts_come():
    admission, _ = pair_of(sequences=FULL_BATCH)
    for request in await in_flight_of(admission, FULL_BATCH):
        admission.progress(request, 17)
    admission._flush()
    assert next_batch_in(admission) <= PROGRESS_INTERVAL
    close(admission)


async def test_what_was_counted_before_an_abort_is_told_at_once():
    admission, _ = pair_of(sequences=2)
    gone, stays = await in_flight_of(admission, 2)
    admission._flush()
    assert next_batch_in(admission) > PROGRESS_INTERVAL
    admission.progress(stays, 2)
    admission.finish(gone, Verdict.ABORTED)
    assert next_batch_in(admission) <= 0
    close(admission)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_may_begin_in_the_turn_of_the_loop_in_which_another_client_leaves(loop):
    async def begins():
        admission, _ = pair_of(sequences=2)
        gone, stays = new_request(), new_request()
        for request in (gone, stays):
            await admission.admit(Arrived(request, SMALL))
        admission.first_tokens(gone, 1)
        admission.finish(gone, Verdict.ABORTED)
        admission.first_tokens(stays, 1)
        close(admission)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(begins())
