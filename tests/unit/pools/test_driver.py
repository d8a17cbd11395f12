import asyncio
from dataclasses import replace
from math import inf

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    NOWHERE,
    Arrived,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointId,
    EndpointUp,
    Finished,
    Owed,
    Progress,
    RequestId,
    ShutdownStarted,
    Tick,
    Verdict,
)
from gateway.admission.limits.limit import Exceeded, Limit, Limits, Quota, Standing
from gateway.admission.limits.tenants import Tenants
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.pools.driver import Driver

HERE = EndpointId("here")
UP = EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=1))
ROOMY = EndpointUp(HERE, Capacity(max_model_len=1000, kv_blocks=100))


class Asker:
    """Keeps what the driver says, and where the core was in it."""

    def __init__(self):
        self.told = []
        self.gone = set()
        """Requests that nobody waits for any more."""

    def decided(self, command):
        self.told.append(command)
        return command.request not in self.gone

    def want(self, next_reports, *, everything):
        self.told.append((next_reports, everything))

    def renew(self):
        self.told.append("renew")


class World:
    """A driver, and what it heard and said in one list: events as the core has handled them, and decisions."""

    def __init__(self, *events, clock=None, **policy):
        self.asker = Asker()
        clock = clock or asyncio.get_running_loop().time
        self.driver = Driver(AdmissionController(Policy(**policy)), clock, self.asker, self._record)
        self.handle(*events)

    def _record(self, event, at, commands):
        self.asker.told.append(event)

    def handle(self, *events):
        """What it heard and said of these events."""
        self.asker.told.clear()
        for event in events:
            self.driver.handle(event)
        return list(self.asker.told)

    @property
    def in_flight(self):
        return [f.endpoint.id for f in self.driver.controller._flights.values()]


def arrived(request, tokens=10):
    return Arrived(RequestId(request), Demand((10,), tokens))


async def test_it_gives_each_decision_to_its_asker():
    world = World(UP)
    assert world.handle(arrived(1)) == [arrived(1), Dispatch(1, HERE, None)]
    assert world.handle(arrived(2)) == [arrived(2)]
    over, sent = Finished(RequestId(1), Verdict.DONE, 3), Dispatch(2, HERE, None)
    assert world.handle(over) == [over, sent]
    *_, refusal = world.handle(arrived(3), ShutdownStarted())
    assert (type(refusal), refusal.request, refusal.outcome) == (Reject, 3, Outcome.DRAINING)
    world.driver.close()


async def test_what_nobody_waits_for_any_more_is_at_its_end_and_its_place_is_free():
    world = World(UP, arrived(1), arrived(2), arrived(3), arrived(4))
    world.asker.gone = {2, 3}
    told = world.handle(Finished(RequestId(1), Verdict.DONE, 3))
    assert told[1:] == [
        Dispatch(2, HERE, None),
        Finished(2, Verdict.UNSERVED, 0),
        Dispatch(3, HERE, None),
        Finished(3, Verdict.UNSERVED, 0),
        Dispatch(4, HERE, None),
    ]
    assert world.in_flight == [HERE]
    world.driver.close()


async def test_a_refusal_that_nobody_waits_for_changes_nothing():
    world = World(UP, arrived(1), arrived(2))
    world.asker.gone = {2}
    over, refusal = world.handle(ShutdownStarted())
    assert (over, type(refusal), refusal.request) == (ShutdownStarted(), Reject, 2)
    assert world.in_flight == [HERE]
    world.driver.close()


async def test_the_record_gets_every_event_with_its_time_and_what_came_of_it():
    recorded, times = [], iter(range(100))
    driver = Driver(AdmissionController(Policy()), lambda: next(times), Asker(), lambda *entry: recorded.append(entry))
    driver.handle(ROOMY)
    driver.handle(arrived(1))
    (up, first, _), (came, second, commands) = recorded
    assert (up, came, first < second) == (ROOMY, arrived(1), True)
    assert [command for command in commands if isinstance(command, Dispatch)] == [Dispatch(1, HERE, None)]
    driver.close()


async def test_without_a_record_it_decides_all_the_same():
    asker = Asker()
    driver = Driver(AdmissionController(Policy()), lambda: 1.0, asker)
    driver.handle(ROOMY)
    driver.handle(arrived(1))
    assert asker.told == ["renew", Dispatch(1, HERE, None)]
    driver.close()


@pytest.mark.usefixtures("hurried")
async def test_the_core_is_woken_when_it_wants_to_be():
    world = World(UP, arrived(1), arrived(2), ttl=0.05)
    await asyncio.sleep(0.049)
    assert not any(isinstance(one, Reject) for one in world.asker.told)
    await asyncio.sleep(0.002)
    *_, tick, refusal = world.asker.told
    assert (tick, refusal.request, refusal.outcome) == (Tick(), 2, Outcome.QUEUE_TIMEOUT)
    world.driver.close()


@pytest.mark.usefixtures("hurried")
async def test_who_wants_to_be_woken_earlier_is_woken_once():
    world = World(no_endpoint_ttl=0.5)
    world.handle(arrived(1))
    late = world.driver._wake_timer
    await asyncio.sleep(0.1)
    world.handle(Arrived(RequestId(2), Demand((10,), 10), waited=0.35))
    assert late is not None
    assert late.cancelled()
    await asyncio.sleep(0.2)
    assert [one.request for one in world.asker.told if isinstance(one, Reject)] == [2]
    world.driver.close()


@pytest.mark.usefixtures("hurried")
async def test_once_it_is_closed_it_wakes_nobody():
    world = World(UP, arrived(1), arrived(2), ttl=0.05)
    world.driver.close()
    told = len(world.asker.told)
    await asyncio.sleep(1)
    assert len(world.asker.told) == told


async def test_with_a_report_it_says_what_the_core_wants_to_hear_next():
    world = World(ROOMY, arrived(1, 100), arrived(2, 100), arrived(3, 100), clock=lambda: 1.0)
    told = world.handle(Progress(((1, 1), (3, 8), (9, 5))))
    assert told[-1] == ({1: 7, 3: 23}, False)  # 10 tokens of prompt in blocks of 16; it knows of no number 9


async def test_a_batch_without_counts_is_passed_on_only_while_time_alone_may_let_a_waiting_request_go():
    world = World(ROOMY, *[Arrived(RequestId(number), Demand((800,), 100)) for number in (1, 2)], clock=lambda: 1.0)
    assert world.in_flight == [HERE], "the other waits for room in the cache"
    assert world.handle(Progress(())) == [Progress(())], "and asks for nothing"
    world.handle(Cancelled(RequestId(2)))
    assert world.handle(Progress(())) == [], "nobody waits"
    world.driver.close()
    world = World(UP, arrived(1), arrived(2))
    assert world.handle(Progress(())) == [], "it waits for another's end"
    world.driver.close()


async def test_after_an_abort_every_count_is_wanted_until_the_engine_has_taken_a_step():
    now = 1.0
    world = World(ROOMY, arrived(1, 100), arrived(2, 100), Progress(((1, 1), (2, 1))), clock=lambda: now)
    aborted = Finished(RequestId(1), Verdict.ABORTED)
    assert world.handle(aborted) == [aborted, ({}, True)]
    assert world.handle(Progress(((2, 2),)))[-1] == ({2: 7}, True), "that step may have been before the abort"
    now = 2.0
    assert world.handle(Progress(((2, 3),)))[-1] == ({2: 7}, False)


@pytest.mark.parametrize("end", [Finished(RequestId(1), Verdict.DONE, 3), Finished(RequestId(1), Verdict.FAILED)])
async def test_after_any_other_end_nothing_more_is_wanted(end):
    world = World(ROOMY, arrived(1, 100), clock=lambda: 1.0)
    assert world.handle(end) == [end]


async def test_who_asks_is_to_tell_all_counts_before_an_endpoint_comes_up():
    world = World(clock=lambda: 1.0)
    assert world.handle(ROOMY) == ["renew", ROOMY]


async def test_a_count_told_as_an_endpoint_comes_up_is_heard_before_that():
    world = World(ROOMY, arrived(1, 100), clock=lambda: 1.0)
    progress = Progress(((1, 5),))
    world.asker.renew = lambda: world.driver.handle(progress)
    assert world.handle(ROOMY) == [progress, ({1: 7}, False), ROOMY]


async def test_what_would_become_of_a_request_is_asked_of_the_core_as_it_is_now_and_changes_nothing():
    world = World(UP, arrived(1))
    world.handle()
    explanation = await world.driver.explained(arrived(2))
    assert (explanation.verdict, explanation.endpoint) == ("queue", HERE)
    assert world.asker.told == [Tick()]
    snapshot = world.driver.controller.snapshot(asyncio.get_running_loop().time())
    assert (world.in_flight, snapshot.queue.depth) == ([HERE], 0)
    world.driver.close()


async def test_who_left_the_queue_gets_no_decision():
    world = World(UP, arrived(1), arrived(2))
    told = world.handle(Cancelled(RequestId(2)), Finished(RequestId(1), Verdict.DONE, 3))
    assert not any(isinstance(one, Dispatch | Reject) for one in told)
    assert world.driver.controller.load(inf).waiting == 0
    world.driver.close()


async def test_a_timer_that_fires_too_early_is_set_again():
    now = 0.0
    world = World(UP, clock=lambda: now, ttl=0.02, no_endpoint_ttl=0.02)
    world.handle(*[Arrived(RequestId(number), Demand((10,), 10)) for number in (1, 2)])
    now = 0.02 - 1e-12  # the loop's clock goes on by itself, and its timer fires
    await asyncio.sleep(0.05)
    assert not any(isinstance(told, Reject) for told in world.asker.told), "it is not time yet"
    now = 0.02
    await asyncio.sleep(0.01)
    assert any(isinstance(told, Reject) for told in world.asker.told)
    world.driver.close()


def limited(**limits):
    """A driver whose only flow, that without a name, has limits; and its asker."""
    asker = Asker()
    tenants = Tenants({"": Limits(**limits)})
    driver = Driver(AdmissionController(Policy()), lambda: 100.0, asker, tenants=tenants)
    driver.handle(UP)
    asker.told.clear()
    return driver, asker


async def test_what_a_limit_refuses_never_reaches_the_core():
    driver, asker = limited(concurrent=2)
    for request in (1, 2, 3):
        driver.handle(arrived(request))
    (sent, refused) = asker.told
    assert sent == Dispatch(1, HERE)
    assert refused == Reject(3, Outcome.RATE_LIMIT_EXCEEDED, None, Exceeded(Limit.CONCURRENT, 2, 3, None))
    driver.handle(Cancelled(RequestId(2)))
    driver.handle(arrived(4))
    driver.handle(Finished(RequestId(1), Verdict.DONE, 3))
    assert asker.told[2:] == [Dispatch(4, HERE)]
    driver.close()


async def test_decisions_tell_where_the_tenant_stands_and_what_the_core_refuses_is_given_back():
    driver, asker = limited(requests_per_minute=10, tokens_per_minute=100)
    driver.handle(arrived(1))
    driver.handle(arrived(2))
    assert asker.told == [Dispatch(1, HERE, standing=Standing(Quota(10, 9, 6.0), Quota(100, 90, 6.0)))]
    driver.handle(Progress(((RequestId(1), 4),)))
    driver.handle(Finished(RequestId(1), Verdict.DONE))
    (second,) = [told for told in asker.told if isinstance(told, Dispatch) and told.request == 2]
    assert second.standing.tokens.remaining == 76, "two prompts, and the tokens seen"
    driver.handle(ShutdownStarted())
    for request in range(3, 30):
        driver.handle(arrived(request))
    refusals = [told.outcome for told in asker.told if isinstance(told, Reject)]
    assert refusals == [Outcome.DRAINING] * 27
    driver.close()


async def test_what_no_engine_worked_on_costs_its_tenant_nothing():
    driver, asker = limited(requests_per_minute=10, tokens_per_minute=100)
    driver.handle(arrived(1))
    driver.handle(Finished(RequestId(1), Verdict.UNSERVED, 0))
    driver.handle(arrived(2))
    asker.gone.add(3)
    driver.handle(arrived(3))
    driver.handle(Finished(RequestId(2), Verdict.UNSERVED, 0))
    driver.handle(arrived(4))
    standings = [told.standing for told in asker.told]
    assert standings == [Standing(Quota(10, 9, 6.0), Quota(100, 90, 6.0))] * 4
    driver.close()


@pytest.mark.parametrize(
    ("ended", "left"), [((Verdict.FAILED,), 100), ((Verdict.DONE,), 90), ((Verdict.DONE, 2, 3), 95)]
)
async def test_of_an_estimated_prompt_that_its_engine_failed_on_nothing_is_charged(ended, left):
    """The estimate may be many times the prompt, and nobody knows by how much."""
    driver, asker = limited(tokens_per_minute=100)
    driver.handle(replace(arrived(1), estimated=True))
    driver.handle(Finished(RequestId(1), *ended))
    driver.handle(replace(arrived(2), estimated=True))
    (second,) = [told for told in asker.told if isinstance(told, Dispatch) and told.request == 2]
    assert second.standing.tokens.remaining == left
    driver.close()


async def test_a_request_that_an_earlier_owner_charged_is_not_charged_again():
    driver, asker = limited(requests_per_minute=1, concurrent=2)
    driver.handle(Declared(arrived(1), HERE, 3))
    driver.handle(replace(arrived(2), waited=1.0, charged=True))
    driver.handle(Finished(RequestId(1), Verdict.DONE, 3))
    assert asker.told[-1] == Dispatch(2, HERE, standing=Standing(Quota(1, 1, 0.0), None))
    driver.close()


async def test_what_came_while_nobody_decided_is_charged_by_the_next_owner():
    driver, asker = limited(requests_per_minute=1)
    driver.handle(replace(arrived(1), waited=2.0))
    driver.handle(replace(arrived(2), waited=1.0))
    sent, refused = asker.told
    assert sent.request == 1
    assert (refused.request, refused.outcome) == (2, Outcome.RATE_LIMIT_EXCEEDED)
    driver.close()


async def test_what_tenants_owe_outlives_the_owner():
    driver, _ = limited(requests_per_minute=10, tokens_per_minute=100)
    driver.handle(arrived(1))
    warmth = driver.warmth()
    assert warmth.owed == (Owed("", 6.0, 6.0),)
    driver.close()
    successor, asker = limited(requests_per_minute=10, tokens_per_minute=100)
    successor.handle(replace(warmth, age=1.5))
    successor.handle(arrived(2))
    assert asker.told[-1].standing == Standing(Quota(10, 8, 10.5), Quota(100, 82, 10.5))
    successor.close()


async def test_before_each_event_its_right_to_decide_is_looked_at():
    looks = []
    asker = Asker()
    clock = asyncio.get_running_loop().time
    driver = Driver(AdmissionController(Policy()), clock, asker, before=lambda: looks.append(len(asker.told)))
    for event in (UP, arrived(1), arrived(2)):
        driver.handle(event)
    assert looks == [0, 1, 2], "before the event, not after what comes of it"
    driver.close()


async def test_an_event_dispatches_nothing_where_the_right_to_decide_is_lost_right_before():
    lost = False

    def look():
        nonlocal lost
        if lost:
            lost = False
            driver.handle(EndpointDown(HERE, "it may decide no more"))

    asker = Asker()
    driver = Driver(AdmissionController(Policy()), asyncio.get_running_loop().time, asker, before=look)
    driver.handle(ROOMY)
    driver.handle(arrived(1))
    lost = True
    driver.handle(arrived(2))
    assert [said for said in asker.told if isinstance(said, Dispatch)] == [Dispatch(1, HERE)]
    driver.close()


async def test_a_timer_too_looks_first_whether_it_may_decide():
    looks = []
    world = World()
    world.driver._before = lambda: looks.append("looked")
    world.handle(arrived(1))
    looks.clear()
    world.driver._wake(0.0)
    assert looks == ["looked"]
    world.driver.close()


RELAYED = Arrived(RequestId(1), Demand((0,), 500), relayed=True)


async def test_of_what_is_relayed_only_the_tenant_is_charged_and_the_core_hears_nothing():
    driver, asker = limited(requests_per_minute=3, tokens_per_minute=100, concurrent=1)
    driver._record = lambda event, *_: asker.told.append(event)
    driver.handle(RELAYED)
    standing = Standing(Quota(3, 2, 20.0), Quota(100, 100, 0.0))
    assert asker.told == [Dispatch(1, NOWHERE, standing=standing)]
    driver.handle(replace(RELAYED, request=RequestId(2)))
    assert asker.told[1].exceeded.which is Limit.CONCURRENT
    driver.handle(Finished(RequestId(1), Verdict.DONE, 40))
    driver.handle(replace(RELAYED, request=RequestId(3)))
    assert asker.told[2].standing == Standing(Quota(3, 1, 40.0), Quota(100, 60, 24.0))
    driver.handle(Cancelled(RequestId(3)))
    driver.handle(replace(RELAYED, request=RequestId(4)))
    assert asker.told[3].standing == asker.told[2].standing, "it was given back"
    assert len(asker.told) == 4, "nothing is recorded"
    driver.close()


async def test_what_is_relayed_goes_where_no_limit_is_known():
    world = World()
    assert world.handle(RELAYED) == [Dispatch(1, NOWHERE)]
    world.asker.gone = {2}
    assert world.handle(replace(RELAYED, request=RequestId(2))) == [Dispatch(2, NOWHERE)]
    assert world.handle(Finished(RequestId(1), Verdict.DONE, 3)) == []
    assert world.driver._relayed == set()


async def test_what_is_relayed_is_held_by_the_next_owner():
    driver, asker = limited(concurrent=1)
    driver.handle(Declared(RELAYED, NOWHERE))
    driver.handle(arrived(2))
    assert [type(told) for told in asker.told] == [Reject]
    driver.handle(Finished(RequestId(1), Verdict.DONE, 3))
    driver.handle(arrived(3))
    assert asker.told[-1].request == 3
    assert driver._relayed == set()
    driver.close()
