import asyncio
import contextlib
import errno
import functools
import itertools
import json
import re
import socket

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.admission.events import Capacity, EndpointId, Observed, RequestId
from gateway.config.endpoint import EndpointSettings
from gateway.config.settings import HealthSettings
from gateway.endpoints import monitor as monitoring
from gateway.endpoints.adapters import IN_USE
from gateway.endpoints.health import REST, SERVING, State
from gateway.endpoints.monitor import IDENTITY_INTERVAL, MOST_HELD, EndpointMonitor
from gateway.endpoints.replies import Reply

ID = EndpointId("127.0.0.1:8001")
URL = "http://127.0.0.1:8001"
A, B = RequestId(1), RequestId(2)


class Told:
    """A listener that keeps what it is told."""

    def __init__(self):
        self.changes = []
        self.samples = []
        self.expired = []
        self.anything = asyncio.Event()

    def up(self, endpoint, identity, capacity):
        assert endpoint == ID
        self.changes.append(("up", identity, capacity))
        self.anything.set()

    def down(self, endpoint, reason):
        assert endpoint == ID
        self.changes.append(("down", reason))
        self.anything.set()

    def evacuate(self, endpoint):
        assert endpoint == ID
        self.changes.append(("evacuate",))

    def expire(self, requests):
        self.expired += requests

    def observed(self, sample):
        self.samples.append(sample)

    def take(self):
        changes, self.changes = self.changes, []
        return changes


@pytest.fixture
def told():
    return Told()


class Looked:
    """What a look at the engine's processes finds, and how often that was asked."""

    def __init__(self, clock):
        self.busy = None
        self.times = 0
        self.seconds = 0.0
        self._clock = clock

    async def __call__(self):
        self.times += 1
        self._clock.now += self.seconds
        return self.busy


@pytest.fixture
def look(clock):
    return Looked(clock)


@pytest.fixture
def make(client, clock, told, look):
    def make(health=None, adapters=None, alone=lambda: True, **settings):
        return EndpointMonitor(
            ID,
            EndpointSettings(url=URL, **settings),
            health or HealthSettings(),
            client=client,
            listener=told,
            clock=clock,
            look=look,
            adapters=adapters or {},
            alone=alone,
        )

    return make


@pytest.fixture
def monitor(make):
    return make()


@pytest.fixture
async def up(monitor, told):
    await monitor.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]
    return monitor


async def pass_time(monitor, clock, seconds):
    for _ in range(seconds):
        clock.now += 1
        await monitor.probe()


async def test_a_healthy_endpoint_is_up_with_what_it_says_of_itself(monitor, told, vllm):
    vllm.loras = ("sql",)
    await monitor.probe()
    ((kind, identity, capacity),) = told.changes
    assert kind == "up"
    assert (identity.names, identity.loras, identity.version) == (("smol", "demo"), ("sql",), "0.32.0")
    assert capacity == Capacity(1024, kv_blocks=255, block_size=32, max_num_seqs=None, shares_prefix=True)


async def test_what_is_configured_goes_before_what_the_engine_says(make, told):
    await make(kv_tokens=320, max_num_seqs=4).probe()
    capacity = told.changes[0][2]
    assert (capacity.kv_blocks, capacity.max_num_seqs) == (10, 4)


async def test_before_the_first_probe_nothing_is_known(monitor, told):
    status = monitor.status
    assert (status.state, status.healthy, status.was_healthy) == (State.STARTING, False, False)
    assert (status.identity, status.capacity, status.scraped_at) == (None, None, None)
    assert told.changes == []


async def test_the_status_tells_it_all(up, clock):
    status = up.status
    assert (status.id, status.url, status.state, status.since) == (ID, f"{URL}/", State.UP, clock.now)
    assert (status.healthy, status.was_healthy, status.in_flight) == (True, True, 0)
    assert (status.scraped_at, status.missing_metrics) == (clock.now, ())
    assert status.capacity.kv_blocks == 255


async def test_each_scrape_is_passed_on_with_the_time_it_was_answered(up, told, vllm, clock):
    clock.now += 1
    await up.probe()
    (sample,) = told.samples
    assert sample == Observed(
        endpoint=ID,
        sampled_at=clock.now,
        kv_usage=pytest.approx(0.0235, abs=1e-3),
        running=3,
        waiting=0,
        generation_tokens=94.0,
        preemptions=0.0,
    )


async def test_what_the_engine_did_is_counted_from_the_first_scrape_on(up, vllm):
    assert up.status.totals.generated == 0
    vllm.metrics = vllm.metrics.replace(b"} 94.0", b"} 99.0")
    await up.probe()
    assert up.status.totals.generated == 5


async def works(monitor, vllm, clock, seconds, *, each):
    """The engine completes so many more requests each second, with three in flight."""
    names = ("generation_tokens_count", "generation_tokens_sum", "prompt_tokens_sum")
    for _ in range(seconds):
        vllm.completed += each
        counted = zip(names, (vllm.completed, 20 * vllm.completed, 50 * vllm.completed), strict=True)
        vllm.metrics = vllm.busy + "".join(f"vllm:request_{name} {value}\n" for name, value in counted).encode()
        await pass_time(monitor, clock, 1)


async def test_its_pace_is_that_since_it_serves_without_a_break(up, vllm, clock):
    vllm.completed, vllm.busy = 0, vllm.metrics
    await works(up, vllm, clock, 200, each=10)
    await works(up, vllm, clock, 200, each=2)
    assert up.pace.kept == pytest.approx(0.2)
    assert (up.pace.first.in_flight, up.pace.first.prompt, up.pace.first.output) == (3, 50, 20)
    up.drain()
    assert up.pace is None
    await works(up, vllm, clock, 400, each=2)
    assert up.pace is None
    up.undrain()
    await works(up, vllm, clock, 400, each=2)
    assert up.pace.kept == pytest.approx(1)


async def test_an_engine_without_stats_is_up_with_unknown_capacity_and_that_is_said(monitor, told, vllm):
    vllm.metrics = b"# nothing of vLLM\n"
    with capture_logs() as logs:
        await monitor.probe()
        await monitor.probe()
    assert told.changes[0][2].kv_blocks is None
    (warning,) = [line for line in logs if "missing" in line]
    assert "vllm:kv_cache_usage_perc" in warning["missing"]
    assert len(monitor.status.missing_metrics) == 7
    assert told.samples[-1].kv_usage is None


@pytest.mark.parametrize(("answer", "held"), [(404, 0), (501, 0), (500, MOST_HELD), (httpx.ReadError(""), MOST_HELD)])
async def test_no_metrics_at_all_is_no_ill_health(monitor, told, vllm, answer, held):
    vllm.answers["/metrics"] = answer
    for _ in range(held):
        await monitor.probe()
        assert (monitor.state, "/metrics" in monitor.status.reason) == (State.STARTING, True)
    await monitor.probe()
    assert told.changes[0][2].kv_blocks is None
    assert len(monitor.status.missing_metrics) == 7


@pytest.mark.parametrize("route", ["/metrics", "/version", "/is_sleeping"])
async def test_an_engine_that_comes_up_without_one_answer_takes_traffic_with_the_next_probe(monitor, told, vllm, route):
    answers = vllm.answers
    vllm.answers = answers | {route: httpx.ReadError("reset")}
    with capture_logs() as logs:
        await monitor.probe()
        assert told.take() == []
        vllm.answers = answers
        await monitor.probe()
    ((kind, identity, capacity),) = told.take()
    assert (kind, identity.version, capacity.kv_blocks) == ("up", "0.32.0", 255)
    assert not [line for line in logs if "missing" in line], "it only did not answer once"


async def test_metrics_that_are_not_implemented_just_now_are_read_again(up, told, vllm):
    vllm.answers["/metrics"] = 501
    await up.probe()
    del vllm.answers["/metrics"]
    await up.probe()
    assert len(told.samples) == 1


@pytest.mark.parametrize("answer", [b"<html>", 502, httpx.ReadError("")])
async def test_a_broken_scrape_does_not_change_the_capacity(up, told, vllm, answer):
    vllm.answers["/metrics"] = answer
    await up.probe()
    assert told.changes == []
    assert up.status.capacity.kv_blocks == 255


async def test_a_longer_length_and_a_new_adapter_are_seen_while_it_serves(up, told, vllm, clock):
    vllm.loras, vllm.max_model_len = ("sql",), 2048
    await up.probe()
    assert told.take() == []
    clock.now += IDENTITY_INTERVAL
    await up.probe()
    ((kind, identity, capacity),) = told.changes
    assert (kind, identity.loras, identity.max_model_len, capacity.max_model_len) == ("up", ("sql",), 2048, 2048)


async def test_an_engine_whose_counters_fall_is_asked_who_it_is_at_once(up, told, vllm, clock):
    """Another one answers at its address by now."""
    vllm.max_model_len = 2048
    await pass_time(up, clock, 2)
    assert told.take() == []
    vllm.metrics = vllm.metrics.replace(b'model_name="smol"} 94.0', b'model_name="smol"} 3.0')
    await pass_time(up, clock, 1)
    ((kind, identity, _),) = told.changes
    assert (kind, identity.max_model_len, identity.replaced) == ("up", 2048, 1)


async def test_an_engine_whose_counters_fall_is_another_one_though_it_says_the_same_of_itself(up, told, vllm, clock):
    """Its template may be another. Where several share one address, they fall all the time: that is told seldom."""

    async def has_generated(tokens):
        _, before, after = (part for part in re.split(rb'(generation_tokens_total.*"smol"} )', vllm.metrics))
        vllm.metrics = vllm.metrics.replace(before + after.split(b"\n")[0], before + tokens)
        await pass_time(up, clock, 1)
        return [identity.replaced for _, identity, _ in told.take()]

    assert [await has_generated(tokens) for tokens in (b"3.0", b"94.0", b"3.0")] == [[1], [], []]
    clock.now += IDENTITY_INTERVAL
    assert await has_generated(b"4.0") == [2], "the one that came meanwhile"
    clock.now += IDENTITY_INTERVAL
    assert await has_generated(b"5.0") == []


async def test_what_did_not_change_is_told_once(up, told, clock):
    await pass_time(up, clock, 65)
    assert told.changes == []


async def test_a_model_list_that_fails_later_does_not_take_it_out(up, told, vllm, clock):
    vllm.answers["/v1/models"] = 500
    clock.now += IDENTITY_INTERVAL
    await up.probe()
    assert up.status.healthy
    assert told.changes == []


async def test_an_endpoint_that_answers_everything_with_web_pages_is_no_engine_any_more(up, told, vllm, clock):
    vllm.answers["/health"] = b"<html>Welcome"
    await pass_time(up, clock, 5)
    assert up.status.healthy, "it still says who it is"
    vllm.answers["/v1/models"] = b"<html>Welcome"
    await pass_time(up, clock, 2)
    assert up.status.healthy
    await pass_time(up, clock, 1)
    out = "down: this is no vLLM: /v1/models answered no list of models"
    assert told.take() == [("down", out), ("evacuate",)]
    del vllm.answers["/health"], vllm.answers["/v1/models"]
    await pass_time(up, clock, 1)
    assert up.status.healthy


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (401, "GET /v1/models answered 401"),
        (b"[]", "this is no vLLM: /v1/models answered no list of models"),
        (httpx.ReadError("gone"), "GET /v1/models: gone"),
    ],
)
async def test_an_endpoint_that_does_not_say_who_it_is_takes_no_traffic_and_says_why(monitor, vllm, answer, reason):
    vllm.answers["/v1/models"] = answer
    await monitor.probe()
    assert not monitor.status.healthy
    assert monitor.status.reason.startswith(reason)


@pytest.mark.parametrize("keyed", [True, False], ids=["a key of ours", "the clients' own keys"])
async def test_one_that_no_longer_accepts_our_key_takes_no_traffic_until_it_does(make, told, vllm, clock, keyed):
    up = make(api_key="ours" if keyed else None)
    await up.probe()
    vllm.answers["/v1/models"] = 401
    await pass_time(up, clock, 3)
    assert up.status.healthy, "it has yet to be noticed"
    up.failed("it does not accept the key")
    await pass_time(up, clock, 3)
    assert up.status.healthy is not keyed
    if keyed:
        assert (up.status.state, up.status.reason) == (State.DOWN, "GET /v1/models answered 401")
    del vllm.answers["/v1/models"]
    await pass_time(up, clock, 1)
    assert up.status.healthy


async def test_one_on_which_requests_fail_is_asked_who_it_is_at_most_once_a_second(up, told, vllm, clock):
    told.take()
    vllm.max_model_len = 512
    for _ in range(4):
        clock.now += 0.3
        up.failed("it answered 404")
        await up.probe()
    ((kind, identity, _),) = told.changes
    assert (kind, identity.max_model_len) == ("up", 512)
    assert vllm.asked.count("/v1/models") == 2


async def test_a_version_that_is_not_told_is_no_obstacle(monitor, vllm, told):
    vllm.answers["/version"] = 404
    await monitor.probe()
    assert told.changes[0][1].version is None


async def test_a_killed_engine_is_out_with_the_next_probe_and_back_with_its_new_self(up, told, vllm, clock):
    vllm.listening = False
    await up.probe()
    assert told.take() == [("down", "down: cannot connect: All connection attempts failed"), ("evacuate",)]
    await pass_time(up, clock, 20)
    assert told.take() == []
    vllm.listening, vllm.max_model_len = True, 512
    await up.probe()
    ((kind, identity, _),) = told.changes
    assert (kind, identity.max_model_len) == ("up", 512)


@pytest.mark.parametrize("here", [True, False], ids=["tokens here", "tokens in the metrics"])
async def test_what_moves_keeps_its_requests_although_nobody_listens_any_more(up, told, vllm, clock, here):
    """A proxy in front of it takes no new connections; the open ones go on."""
    vllm.listening = not here
    if not here:
        vllm.answers["/health"] = 503
    up.dispatched(A, 10)
    for number in range(10):
        clock.now += 1
        if here:
            up.progressed([A])
        else:
            vllm.metrics = vllm.metrics.replace(b"} %d.0" % (94 + number), b"} %d.0" % (95 + number))
        await up.probe()
        assert up.moves
        assert up.keeps
    assert [kind for kind, *_ in told.take()] == ["down"], "it gets nothing new"
    await pass_time(up, clock, 1)
    assert told.take() == []
    await pass_time(up, clock, 1)
    assert not up.keeps
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"], "fronts elsewhere go by what they are told"
    await pass_time(up, clock, 5)
    assert told.take() == [], "once"


KEPT = {State.DRAINING, State.STOPPED, State.BLOCKED, State.SUSPECT, State.SCALING}


@pytest.mark.parametrize("state", [state for state in State if state not in SERVING])
async def test_one_that_takes_no_traffic_may_still_answer_where_its_state_says_so(up, state):
    up._health.state = state
    assert up.keeps is (state in KEPT)


async def test_one_that_is_back_meanwhile_keeps_its_requests(up, told, vllm, clock):
    up.dispatched(A, 10)
    up.progressed([A])
    vllm.listening = False
    await up.probe()
    vllm.listening = True
    await pass_time(up, clock, 5)
    assert [kind for kind, *_ in told.take()] == ["down", "up"]


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_AGAIN, "no answer"), OSError(errno.EHOSTUNREACH, "no")])
async def test_a_name_that_is_not_found_and_a_missing_route_must_be_seen_three_times(up, told, vllm, clock, error):
    failed = httpx.ConnectError("no connection")
    failed.__cause__ = error
    vllm.answers = dict.fromkeys(["/health", "/metrics", "/v1/models", "/version"], failed)
    for _ in range(10):
        up.progressed([A])
        await pass_time(up, clock, 1)
    assert told.take() == [], "tokens outweigh it"
    await pass_time(up, clock, 2)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_an_engine_that_says_it_is_dead_is_out_at_once(up, told, vllm):
    vllm.answers["/health"] = 503
    await up.probe()
    assert told.take() == [("down", "down: GET /health answered 503: the engine is dead"), ("evacuate",)]


async def test_an_engine_that_changes_its_ranks_gets_nothing_new_and_keeps_what_it_has(up, told, vllm, clock):
    up.dispatched(A, 10)
    up.dispatched(B, 10)
    scaling = b'{"error":"The model is currently scaling. Please try again later."}'
    vllm.answers = dict.fromkeys(["/health", "/metrics", "/v1/models", "/version"], (503, scaling))
    await pass_time(up, clock, 200)
    assert told.take() == [("down", "scaling: the engine changes its ranks")]
    vllm.answers = {"/version": b'{"version":"0.32.0"}'}
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]


@pytest.mark.parametrize("answer", [500, 404, httpx.ReadError("reset")])
async def test_other_failures_must_be_seen_three_times(up, told, vllm, answer):
    vllm.answers["/health"] = answer
    await up.probe()
    await up.probe()
    assert told.take() == []
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_a_hung_engine_gets_no_traffic_and_is_back_with_the_first_token(up, told, clock):
    up.dispatched(A, 100)
    up.dispatched(B, 100)
    await pass_time(up, clock, 29)
    assert told.take() == []
    await pass_time(up, clock, 1)
    assert told.take() == [("down", "hung: no progress for 30 s with 2 requests in flight"), ("evacuate",)]
    assert told.expired == []
    await pass_time(up, clock, 10)
    up.progressed([A])
    assert [kind for kind, *_ in told.take()] == ["up"]
    assert up.status.state is State.UP


async def test_tokens_that_only_the_engine_counts_keep_it_up(up, told, vllm, clock):
    up.dispatched(A, 100, streams=False)
    for second in range(90):
        clock.now += 1
        vllm.metrics = vllm.metrics.replace(b"94.0", f"{95 + second // 20}.0".encode(), 1)
        vllm.metrics = (
            b'vllm:generation_tokens_total{engine="0",model_name="smol"} %d.0\n' % (95 + second // 20)
            + b'vllm:kv_cache_usage_perc{engine="0",model_name="smol"} 0.02\n'
        )
        await up.probe()
    assert up.status.state is State.UP


async def test_one_silent_request_alone_ends_and_costs_its_engine_a_rest(up, told, clock, look):
    look.busy = False
    up.dispatched(A, 100)
    await pass_time(up, clock, 29)
    assert (told.take(), told.expired) == ([], [])
    await pass_time(up, clock, 1)
    assert told.take() == [("down", "suspect: the only request on it has had no token for 30 s")]
    assert told.expired == [A]


@pytest.mark.parametrize("busy", [True, None])
async def test_an_engine_at_work_or_out_of_sight_has_four_times_as_long(up, told, clock, look, busy):
    look.busy = busy
    up.dispatched(A, 100)
    await pass_time(up, clock, 119)
    assert (told.take(), told.expired) == ([], [])
    await pass_time(up, clock, 1)
    assert told.expired == [A]


async def test_processes_are_looked_at_only_while_nothing_moves(up, clock, look):
    up.dispatched(A, 100)
    for _ in range(60):
        await pass_time(up, clock, 1)
        up.progressed([A])
    assert look.times == 0
    await pass_time(up, clock, 20)
    assert look.times == 6


async def test_the_time_that_a_look_takes_is_nobodys_silence(up, told, clock, look):
    look.busy, look.seconds = False, 20.0
    up.dispatched(A, 100)
    up.dispatched(B, 100)
    clock.now += 15
    await up.probe()
    assert told.take() == [], "35 s have passed, and it was asked after 15"
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_one_that_was_silent_elsewhere_ends_and_its_second_endpoint_stays(up, told, clock, look):
    look.busy = False
    up.dispatched(A, 100, evacuated=True)
    await pass_time(up, clock, 30)
    assert (told.take(), told.expired) == ([], [A])
    assert up.status.state is State.UP


async def test_one_that_is_silent_while_others_go_on_ends_alone(up, told, clock, vllm):
    up.dispatched(A, 100)
    up.dispatched(B, 100)
    for _ in range(119):
        up.progressed([B])
        await pass_time(up, clock, 1)
    assert told.expired == []
    up.progressed([B])
    await pass_time(up, clock, 1)
    assert (told.take(), told.expired, up.status.state) == ([], [A], State.UP)


@pytest.fixture
def impatient(make):
    """One whose probes time out at once."""
    return make(HealthSettings(timeout=0.01))


async def block(monitor, vllm, clock, probes):
    """Its loop stands still for so many probes, of five seconds each."""
    vllm.silent.clear()
    for _ in range(probes):
        clock.now += 5
        await monitor.probe()


async def test_a_blocked_loop_keeps_what_it_has_and_gets_nothing_new(impatient, told, clock, vllm, look):
    look.busy = True
    await impatient.probe()
    impatient.dispatched(A, 100, streams=False)
    impatient.dispatched(B, 100)
    told.take()
    await block(impatient, vllm, clock, 9)
    assert told.take() == [("down", "blocked: GET /health: no answer within 0.01 s")]
    assert told.expired == []
    vllm.silent.set()
    await pass_time(impatient, clock, 1)
    assert [kind for kind, *_ in told.take()] == ["up"]


async def test_a_blocked_loop_that_goes_on_longer_than_it_may_has_hung(impatient, told, clock, vllm, look):
    look.busy = False
    await impatient.probe()
    impatient.dispatched(A, 100)
    impatient.dispatched(B, 100)
    told.take()
    await block(impatient, vllm, clock, 11)
    assert [kind for kind, *_ in told.take()] == ["down"]
    await block(impatient, vllm, clock, 1)
    hung = "hung: no progress for 60 s with 2 requests in flight"
    assert told.take() == [("evacuate",), ("down", hung)], "after 60 s: what takes connections has twice the time"
    assert impatient.status.state is State.HUNG


async def test_the_only_request_of_a_blocked_loop_ends_and_the_endpoint_is_down_after_that(
    impatient, told, clock, vllm, look
):
    look.busy = False
    await impatient.probe()
    impatient.dispatched(A, 100, streams=False)
    told.take()
    await block(impatient, vllm, clock, 12)
    assert ([kind for kind, *_ in told.take()], told.expired) == (["down"], [A])
    impatient.finished(A)
    await block(impatient, vllm, clock, 3)
    reason = "it takes connections, and has answered nothing for 60 s more"
    assert told.take() == [("evacuate",), ("down", f"down: {reason}")]
    assert (impatient.status.state, impatient.status.reason) == (State.DOWN, reason)


@pytest.mark.parametrize("launched", [True, False])
async def test_a_launched_engine_that_answers_nothing_from_the_first_probe_on_is_down_in_the_same_time(
    impatient, clock, vllm, look, launched
):
    """It ran before this process began: before it is ready nobody takes connections there."""
    look.busy = False
    impatient.launched = launched
    await block(impatient, vllm, clock, 14)
    assert impatient.status.state is (State.BLOCKED if launched else State.STARTING)
    await block(impatient, vllm, clock, 1)
    assert impatient.status.state is (State.DOWN if launched else State.STARTING)
    vllm.silent.set()
    await impatient.probe()
    assert impatient.status.state is State.UP


@pytest.mark.parametrize("last", ["/metrics", "/is_sleeping"])
async def test_a_loop_that_stops_in_the_middle_of_a_probe_is_blocked_too(make, told, clock, vllm, last):
    impatient = make(HealthSettings(timeout=0.01))
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":false}'
    await impatient.probe()
    impatient.dispatched(A, 100)
    impatient.dispatched(B, 100)
    told.take()
    vllm.answers_yet.update({"/health", "/metrics"} - {last})
    await block(impatient, vllm, clock, 11)
    assert told.take() == [], "one that answers `/health` takes work, and has its time"
    await block(impatient, vllm, clock, 1)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_tokens_prove_life_whatever_probes_say(impatient, told, clock, vllm):
    await impatient.probe()
    impatient.dispatched(A, 100)
    told.take()
    for _ in range(20):
        await block(impatient, vllm, clock, 1)
        impatient.progressed([A])
    assert told.take() == []
    assert impatient.status.state is State.UP


async def test_a_host_that_takes_no_connection_is_down_as_ever(impatient, told, clock, vllm):
    await impatient.probe()
    impatient.dispatched(A, 100)
    told.take()
    vllm.listening = False
    await block(impatient, vllm, clock, 3)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_an_empty_hung_engine_is_tried_with_one_sequence_at_a_time(up, told, clock, look):
    look.busy = False
    up.dispatched(A, 100)
    await pass_time(up, clock, 30)
    up.finished(A)
    told.take()
    await pass_time(up, clock, int(REST) + 1)
    ((kind, _, capacity),) = told.take()
    assert (kind, capacity.max_num_seqs, up.status.state) == ("up", 1, State.TRIAL)
    up.dispatched(B, 100)
    await pass_time(up, clock, 29)
    assert up.status.state is State.TRIAL
    up.progressed([B])
    ((kind, _, capacity),) = told.take()
    assert (kind, capacity.max_num_seqs, up.status.state) == ("up", None, State.UP)


async def test_a_trial_that_hangs_too_is_over(up, told, clock, look):
    look.busy = False
    up.dispatched(A, 100)
    await pass_time(up, clock, 30)
    up.finished(A)
    await pass_time(up, clock, int(REST) + 1)
    up.dispatched(B, 100)
    told.take()
    await pass_time(up, clock, 30)
    assert told.take()[0][0] == "down"
    assert up.status.state is State.HUNG


async def test_an_engine_whose_gauge_says_it_sleeps_is_out(up, told, vllm):
    awake = b'sleep_state="awake"} '
    vllm.metrics = vllm.metrics.replace(awake + b"1.0", awake + b"0.0")
    await up.probe()
    assert told.take() == [("down", "asleep: the engine sleeps or is paused")]


async def test_a_question_about_sleep_that_is_lost_changes_nothing(make, told, vllm, clock):
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":false}'
    monitor = make(adapters={"sql": "/sql"})
    await monitor.probe()
    awake, lost = vllm.answers["/is_sleeping"], httpx.ReadError("reset")
    vllm.answers["/is_sleeping"] = lost
    await monitor.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]
    for answer in (b'{"is_sleeping":true}', lost):
        vllm.loras, vllm.answers["/is_sleeping"] = (), answer
        vllm.asked.clear()
        clock.now += IDENTITY_INTERVAL
        await monitor.probe()
        assert monitor.state is State.ASLEEP
        assert "/v1/models" in vllm.asked
        assert "/v1/load_lora_adapter" not in vllm.asked, "it would write to memory that it gave back"
    vllm.answers["/is_sleeping"] = awake
    await monitor.probe()
    assert monitor.serving


async def test_where_nothing_ever_says_whether_it_sleeps_it_gets_its_adapters(make, vllm):
    """What is between answers 503 for a route that it does not know."""
    vllm.answers |= {"/is_sleeping": 503, "/v1/load_lora_adapter": b""}
    monitor = make(adapters={"sql": "/sql"})
    for _ in range(1 + MOST_HELD):
        assert not vllm.loras
        await monitor.probe()
    assert (monitor.serving, vllm.loras) == (True, ("sql",))


async def test_a_paused_engine_is_out_where_it_can_be_asked(make, told, vllm):
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":false}'
    monitor = make()
    await monitor.probe()
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":true}'
    await monitor.probe()
    assert [kind for kind, *_ in told.take()] == ["up", "down"]
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":false}'
    await monitor.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]


async def test_a_production_engine_is_not_asked_for_its_sleep_at_every_probe(up, vllm, clock):
    vllm.asked.clear()
    await pass_time(up, clock, 10)
    assert "/is_sleeping" not in vllm.asked
    assert vllm.asked.count("/health") == vllm.asked.count("/metrics") == 10


async def test_an_engine_that_aborts_requests_rests(up, told, clock):
    up.failed("the engine aborted the request", aborted=True)
    assert told.take() == [("down", "refusing: it aborts requests: shutting down or paused")]
    await pass_time(up, clock, int(REST) + 1)
    assert [kind for kind, *_ in told.take()] == ["up"]


async def test_an_engine_that_says_it_is_dead_gets_nothing_more_until_a_probe_finds_it_well(up, told):
    up.failed("EngineCore encountered an issue.", dead=True)
    assert told.take() == [("down", "down: EngineCore encountered an issue."), ("evacuate",)]
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]


async def test_the_operator_drains_and_undrains(up, told, clock):
    up.drain()
    assert told.take() == [("down", "draining: drained by the operator")]
    await pass_time(up, clock, 5)
    assert told.take() == []
    up.undrain()
    assert told.take() == [("down", "starting: undrained by the operator, to be probed")]
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]


async def test_an_endpoint_that_takes_no_traffic_is_drained_and_undrained_too(up, told, vllm, clock):
    """Fronts keep what they were told for the next owner: it would let back what is to stay out, or keep it out."""
    vllm.listening = False
    await pass_time(up, clock, 1)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]
    up.drain()
    assert told.take() == [("down", "draining: drained by the operator")]
    up.undrain()
    assert told.take() == [("down", "starting: undrained by the operator, to be probed")]


@pytest.mark.parametrize("take_out", ["drain", "retire"])
async def test_what_hangs_while_it_is_drained_lets_go_of_its_requests(up, told, clock, take_out):
    """A drain waits for its requests, and they would wait for a token until their own timeouts."""
    up.dispatched(A, 10)
    up.dispatched(B, 10)
    up.progressed([B])
    getattr(up, take_out)()
    state = up.state
    told.take()
    await pass_time(up, clock, 29)
    assert (told.take(), told.expired) == ([], [])
    await pass_time(up, clock, 1)
    assert (told.take(), told.expired) == ([("evacuate",)], [A, B]), "those without an answer have left before they end"
    assert up.state is state


@pytest.mark.parametrize(
    "way", [("drain", True), ("drain", False), ("retire", True), ("retire", False)], ids="{0[0]}, streams {0[1]}".format
)
async def test_what_dies_while_it_is_drained_lets_go_of_its_requests(up, told, vllm, clock, way):
    """A host that is gone closes no connection: they would wait for their own timeouts, and the drain with them."""
    take_out, streams = way
    up.dispatched(A, 10, streams=streams)
    await pass_time(up, clock, 5)
    getattr(up, take_out)()
    state = up.state
    told.take()
    vllm.answers["/health"] = httpx.ConnectError("[Errno 113] No route to host")
    await pass_time(up, clock, 2)
    assert (told.take(), up.keeps) == ([], True)
    await pass_time(up, clock, 1)
    assert (told.take(), up.keeps) == ([("evacuate",), ("down", f"{state.value}: {up.status.reason}")], False)
    assert up.state is state
    del vllm.answers["/health"]
    await pass_time(up, clock, 1)
    assert up.keeps, "what is dispatched to one that came back is not lost"


async def test_what_moves_on_a_drained_endpoint_stays_although_nobody_is_there(up, told, vllm, clock):
    """As behind a proxy: it takes no new connections, and keeps the open ones."""
    up.dispatched(A, 10)
    up.drain()
    told.take()
    vllm.listening = False
    for _ in range(10):
        up.progressed([A])
        await pass_time(up, clock, 1)
    assert (told.take(), up.keeps) == ([], True)
    await pass_time(up, clock, 3)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


async def test_one_probe_that_is_late_makes_no_hang_of_long_answers_that_nobody_could_see(up, told, vllm, clock):
    vllm.metrics = b"# none\n"
    await pass_time(up, clock, 1)
    up.dispatched(A, 10, streams=False)
    up.dispatched(B, 10, streams=False)
    await pass_time(up, clock, 300)
    up.govern(up._settings, HealthSettings(timeout=0.05), up._prober._client)
    vllm.silent.clear()
    await pass_time(up, clock, 1)
    assert (up.state, told.take(), told.expired) == (State.UP, [], [])


async def test_gauges_that_are_never_answered_make_no_hang_of_long_answers(impatient, told, vllm, clock):
    """As of an engine with several API servers, one of which is busy for long with its metrics."""
    await impatient.probe()
    told.take()
    impatient.dispatched(A, 10, streams=False)
    impatient.dispatched(B, 10, streams=False)
    vllm.answers_yet.add("/health")
    await block(impatient, vllm, clock, 30)
    assert (impatient.state, told.take(), told.expired) == (State.UP, [], [])


GARBAGE = [b"", b"\x00\xff" * 100, b"<html>502</html>", b"[]", b"{}", b"null", b"9" * 5000, 100, 204, 301, 418]


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version", "/is_sleeping"])
@pytest.mark.parametrize("answer", GARBAGE, ids=lambda answer: repr(answer)[:12])
async def test_no_answer_is_so_malformed_that_the_probe_fails(monitor, vllm, path, answer):
    vllm.answers[path] = answer
    await monitor.probe()
    del vllm.answers[path]
    vllm.answers.setdefault("/is_sleeping", 404)
    await monitor.probe()
    assert monitor.status.healthy


@contextlib.asynccontextmanager
async def running(monitor):
    task = asyncio.create_task(monitor.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition):
    while not condition():  # noqa: ASYNC110  # the fakes have no events to wait for
        await asyncio.sleep(0)


async def test_a_report_of_trouble_is_followed_by_a_probe_at_once(make, told, vllm):
    monitor = make(HealthSettings(interval=3600))
    async with running(monitor), asyncio.timeout(60):
        await told.anything.wait()
        told.anything.clear()
        vllm.listening = False
        monitor.failed("connection refused")
        await told.anything.wait()
        assert told.changes[-2][0] == "down"
        vllm.listening = True
        told.anything.clear()
        monitor.failed("connection refused")
        await told.anything.wait()
        assert told.changes[-1][0] == "up"


async def test_many_reports_of_trouble_are_one_probe(make, told, vllm):
    monitor = make(HealthSettings(interval=3600))
    async with running(monitor), asyncio.timeout(60):
        await told.anything.wait()
        told.anything.clear()
        vllm.asked.clear()
        vllm.listening = False
        for _ in range(1000):
            monitor.failed("connection refused")
        await told.anything.wait()
    assert vllm.asked.count("/health") == 1


async def test_reports_that_keep_coming_do_not_make_probes_follow_each_other(make, told, vllm, monkeypatch):
    monkeypatch.setattr(monitoring, "HURRY_GAP", 3600)
    monitor = make(HealthSettings(interval=3600))
    async with running(monitor), asyncio.timeout(60):
        await told.anything.wait()
        for _ in range(100):
            monitor.failed("it answered 500")
            await asyncio.sleep(0)
    assert vllm.asked.count("/health") == 1


async def test_probes_do_not_overlap_and_a_slow_one_does_not_make_others_follow_in_a_burst(make, vllm, clock):
    monitor = make(HealthSettings(interval=1, timeout=60))
    vllm.silent.clear()
    async with running(monitor), asyncio.timeout(60):
        await until(lambda: vllm.asked.count("/health") == 1)
        clock.now += 10.5
        for _ in range(100):
            await asyncio.sleep(0)
        assert vllm.asked.count("/health") == 1
        vllm.silent.set()
        await until(lambda: vllm.asked.count("/v1/models") == 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert vllm.asked.count("/health") == 1


@pytest.mark.usefixtures("hurried")
async def test_each_endpoint_is_probed_at_its_own_place_in_the_interval(client, told, look):
    """Also after a reload, which has all of them probed at once."""
    time, settings, health = asyncio.get_running_loop().time, EndpointSettings(url=URL), HealthSettings(interval=1)
    probed = {name: [] for name in "abcd"}

    async def probe(times):
        times.append(time())
        await asyncio.sleep(0.01)

    async with contextlib.AsyncExitStack() as watched:
        for name, times in probed.items():
            monitor = EndpointMonitor(name, settings, health, client=client, listener=told, clock=time, look=look)
            monitor.probe = functools.partial(probe, times)
            await watched.enter_async_context(running(monitor))
            asyncio.get_running_loop().call_later(2.5, monitor.failed, "it answered 500")
        await asyncio.sleep(4.6)
    assert len({round(times[0], 1) for times in probed.values()}) == 1
    places = sorted(times[-1] % 1 for times in probed.values())
    assert min(later - place for place, later in itertools.pairwise(places)) > 0.05
    for times in probed.values():
        assert [times[-1] - at for at in times[-2:]] == pytest.approx([1, 0])


async def test_the_time_that_this_process_stood_still_is_nobodys_silence(make, told, clock):
    monitor = make(HealthSettings(interval=0.01))

    async def probed():
        monitor.probed.clear()
        await monitor.probed.wait()

    async with running(monitor), asyncio.timeout(60):
        await told.anything.wait()
        monitor.dispatched(A, 100)
        monitor.dispatched(B, 100)
        await probed()
        clock.now += 60
        await probed()
        assert monitor.serving
        await probed()
        clock.now += 14
        await probed()
        await probed()
        clock.now += 14
        await probed()
        await probed()
        clock.now += 14
        await until(lambda: not monitor.serving)


async def test_a_listener_that_fails_does_not_end_the_watch(make, told, vllm):
    monitor = make(HealthSettings(interval=0.001))
    told.observed = None  # not callable
    with capture_logs() as logs:
        async with running(monitor) as task, asyncio.timeout(60):
            await until(lambda: len(logs) >= 4)
            assert not task.done()
    assert [line["event"] for line in logs][-1] == "probe failed"


async def test_an_endpoint_that_does_not_come_up_is_logged_once_for_each_reason(monitor, vllm):
    vllm.listening = False
    with capture_logs() as logs:
        for _ in range(3):
            await monitor.probe()
        vllm.listening = True
        vllm.answers["/health"] = 500
        for _ in range(3):
            await monitor.probe()
    assert [(line["event"], line["state"], line["reason"]) for line in logs] == [
        ("endpoint is still not healthy", "starting", "cannot connect: All connection attempts failed"),
        ("endpoint is still not healthy", "starting", "GET /health answered 500"),
    ]


async def test_what_lasts_is_said_again_every_minute_with_what_would_help(monitor, vllm, clock):
    vllm.listening = False
    with capture_logs() as logs:
        for _ in range(121):
            await monitor.probe()
            clock.now += 1
    assert [line["event"] for line in logs] == ["endpoint is still not healthy"] * 3
    assert all("a vLLM does when its model is loaded" in line["help"] for line in logs)


async def test_what_was_healthy_and_is_not_is_said_again_too(up, vllm, clock):
    vllm.listening = False
    with capture_logs() as logs:
        await pass_time(up, clock, 61)
    assert [line["event"] for line in logs] == ["endpoint changed", "endpoint is still not healthy"]


async def test_another_server_is_named_and_takes_no_traffic(monitor, vllm, told):
    vllm.answers = dict.fromkeys(("/health", "/metrics", "/version", "/v1/models"), 404)
    await monitor.probe()
    assert monitor.status.reason == "this is no vLLM: it knows neither /health nor /v1/models"
    assert told.take() == []


async def test_that_an_engine_which_kvgate_starts_does_not_listen_yet_is_no_news(monitor, vllm):
    monitor.launched = True
    vllm.listening = False
    with capture_logs() as logs:
        for _ in range(3):
            await monitor.probe()
        assert logs == []
        vllm.listening = True
        await monitor.probe()
        vllm.listening = False
        await monitor.probe()
    assert [(line["event"], line["state"]) for line in logs] == [
        ("endpoint changed", "up"),
        ("endpoint changed", "down"),
    ]


async def test_other_settings_are_gone_by_from_the_next_probe_on(up, client, told, clock):
    settings = EndpointSettings(url=URL, max_num_seqs=7, kv_tokens=320)
    up.govern(settings, HealthSettings(failures=1), client)
    await up.probe()
    ((kind, _, capacity),) = [change for change in told.take() if change[0] == "up"]
    assert (kind, capacity.max_num_seqs, capacity.kv_blocks) == ("up", 7, 10)


async def test_one_that_is_for_another_model_is_told_anew(up, told):
    await up.probe()
    assert told.take() == []
    up.retell()
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]


@pytest.mark.parametrize("key", [{"api_key": "s3cret"}, {"api_key_file": "/run/key"}])
async def test_a_key_that_requests_need_from_now_on_is_told(up, client, told, key):
    assert not up.keyed
    up.govern(EndpointSettings(url=URL, **key), HealthSettings(), client)
    await up.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]
    assert up.keyed


SLOTS = (
    b'[{"id":0,"n_ctx":256,"is_processing":true,"id_task":3,"n_prompt_tokens":20,"n_prompt_tokens_processed":20,'
    b'"next_token":[{"n_remain":100,"n_decoded":8}]},{"id":1,"n_ctx":256,"is_processing":false}]'
)
LLAMA = {
    "/v1/models": b'{"data":[{"id":"m.gguf","owned_by":"llamacpp","meta":{"n_ctx":256}}]}',
    "/props": b'{"default_generation_settings":{"n_ctx":256},"total_slots":2,"build_info":"b7"}',
    "/slots": SLOTS,
    "/metrics": 501,
    "/version": 404,
}


async def test_a_llama_server_is_known_by_its_models_and_watched_by_its_slots(monitor, told, vllm, clock):
    vllm.answers |= LLAMA
    with capture_logs() as logs:
        await monitor.probe()
        ((_, identity, capacity),) = told.take()
        assert (identity.kind, identity.slots, identity.version) == ("llama-server", 2, "b7")
        assert (capacity.kv_blocks, capacity.max_num_seqs, capacity.holds_limit) == (256, 2, True)
        await pass_time(monitor, clock, 1)
    assert (told.samples[-1].kv_usage, told.samples[-1].running) == (128 / 256, 1)
    assert not told.changes
    assert not [line for line in logs if line["log_level"] == "warning"]


async def test_a_llama_server_without_slots_is_not_asked_for_them_again(monitor, vllm, clock):
    """Each question would wake it (measured, `--sleep-idle-seconds`)."""
    vllm.answers |= {**LLAMA, "/slots": 501}
    await pass_time(monitor, clock, 40)
    assert (monitor.serving, vllm.asked.count("/slots")) == (True, 1)
    vllm.answers |= {"/health": 503, "/slots": SLOTS}
    await pass_time(monitor, clock, 1)
    vllm.answers["/health"] = b""
    await pass_time(monitor, clock, 2)
    assert monitor.status.scraped_at == clock.now, "another one may have them"


async def test_an_engine_that_loads_its_model_is_not_called_dead(monitor, vllm):
    vllm.answers["/health"] = (503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    await monitor.probe()
    assert monitor.status.reason == "it is loading its model"


async def test_an_engine_of_another_kind_in_the_place_of_one_is_read_as_what_it_is(up, told, vllm, clock):
    vllm.answers |= LLAMA
    await pass_time(up, clock, int(IDENTITY_INTERVAL) + 1)
    _, identity, capacity = told.take()[-1]
    assert (identity.kind, capacity.holds_limit) == ("llama-server", True)


# Other kinds of engines.


@pytest.fixture
def ollama(vllm):
    """The server is an Ollama."""
    vllm.answers |= {
        "/health": 404,
        "/metrics": 404,
        "/version": 404,
        "/": b"Ollama is running",
        "/v1/models": b'{"data":[{"id":"m","owned_by":"library"}]}',
        "/api/ps": b'{"models":[{"name":"m","context_length":512}]}',
    }


SGLANG = {
    "/version": 404,
    "/v1/models": b'{"data":[{"id":"m","owned_by":"sglang","max_model_len":512}]}',
    "/server_info": b'{"max_total_num_tokens":4096,"max_running_requests":8,"version":"0.5"}',
}


@pytest.mark.parametrize("failure", [httpx.ReadError("reset"), 500, 503])
async def test_an_engine_too_busy_to_tell_of_itself_has_the_size_it_had(monitor, told, vllm, clock, failure):
    vllm.answers |= SGLANG
    await monitor.probe()
    ((_, _, capacity),) = told.take()
    assert (capacity.kv_blocks, capacity.max_num_seqs, capacity.shares_prefix) == (4096, 8, True)
    vllm.answers["/server_info"] = failure
    clock.now += IDENTITY_INTERVAL
    vllm.asked.clear()
    await monitor.probe()
    assert ("/server_info" in vllm.asked, told.changes) == (True, [])
    vllm.answers["/health"] = 503
    await monitor.probe()
    vllm.answers["/health"] = b""
    for _ in range(1 + MOST_HELD):
        await monitor.probe()
    assert told.changes[-1][2].kv_blocks is None, "it may be another engine"


async def test_an_engine_back_from_a_busy_time_has_the_size_it_had(impatient, told, vllm, clock):
    vllm.answers |= SGLANG
    await impatient.probe()
    await block(impatient, vllm, clock, 3)
    assert impatient.state is State.BLOCKED
    told.take()
    vllm.silent.set()
    vllm.answers["/server_info"] = 503
    await impatient.probe()
    ((kind, _, capacity),) = told.take()
    assert (kind, capacity.kv_blocks) == ("up", 4096), "it is the same engine"


@pytest.mark.usefixtures("ollama")
async def test_an_engine_with_another_health_route_is_found_by_its_first_probe(monitor, told, vllm):
    await monitor.probe()
    ((kind, identity, capacity),) = told.take()
    assert (kind, identity.kind, capacity.max_model_len) == ("up", "ollama", 512)
    vllm.asked.clear()
    await monitor.probe()
    assert vllm.asked == ["/"], "it has no gauges either"


@pytest.mark.usefixtures("ollama")
async def test_an_ollama_that_loads_its_model_is_not_called_hung(monitor, told, clock):
    """It gives up the load when its clients have left, so that a model that takes long would never be there."""
    await monitor.probe()
    told.take()
    monitor.dispatched(A, 100)
    monitor.dispatched(B, 100)
    await pass_time(monitor, clock, 299)
    assert (told.take(), told.expired) == ([], [])
    monitor.progressed([A, B])
    await pass_time(monitor, clock, 30)
    assert [kind for kind, *_ in told.take()] == ["down", "evacuate"]


@pytest.mark.usefixtures("ollama")
async def test_an_engine_of_another_kind_than_before_is_found_again(monitor, told, vllm):
    await monitor.probe()
    vllm.answers = {"/version": b'{"version":"0.32.0"}', "/is_sleeping": 404, "/": 404}
    for _ in range(HealthSettings().failures + 1):
        await monitor.probe()
    assert [(kind, *(who.kind for who in rest[:1] if kind == "up")) for kind, *rest in told.take()] == [
        ("up", "ollama"),
        ("down",),
        ("evacuate",),
        ("up", "vllm"),
    ]
    assert monitor.status.capacity.kv_blocks == 255, "by its gauges, read at once"


@pytest.mark.parametrize(("configured", "said"), [("sglang", "is it sglang?"), ("vllm", "give the `kind`")])
@pytest.mark.usefixtures("ollama")
async def test_one_that_is_not_what_it_is_configured_as_gets_no_traffic(make, told, configured, said):
    monitor = make(kind=configured)
    await monitor.probe()
    assert told.changes == []
    assert said in monitor.status.reason


async def test_one_that_does_not_fit_gets_no_traffic_until_it_does(client, clock, told, look):
    reasons = ["it counts otherwise", None]
    asked = []

    async def misfit(identity):
        asked.append(identity.names)
        return reasons.pop(0)

    monitor = EndpointMonitor(
        ID,
        EndpointSettings(url=URL),
        HealthSettings(),
        client=client,
        listener=told,
        clock=clock,
        look=look,
        misfit=misfit,
    )
    await monitor.probe()
    assert (monitor.status.state, monitor.status.reason) == (State.STARTING, "it counts otherwise")
    await monitor.probe()
    assert [kind for kind, *_ in told.take()] == ["up"]
    clock.now += IDENTITY_INTERVAL
    await monitor.probe()
    assert len(asked) == 2, "one that serves is not asked"


# LoRA adapters.


async def test_it_takes_traffic_with_the_adapters_that_it_is_to_have(make, told, vllm):
    vllm.answers["/v1/load_lora_adapter"] = b""
    monitor = make(adapters={"sql": "/sql"})
    await monitor.probe()
    ((kind, identity, _),) = told.take()
    assert (kind, identity.loras, dict(monitor.status.adapters)) == ("up", ("sql",), {"sql": "loaded"})
    assert vllm.bodies == [b'{"lora_name":"sql","lora_path":"/sql"}']


@pytest.fixture
def loading(vllm):
    """It takes long to load adapters, until it is not `silent` any more."""
    vllm.answers["/v1/load_lora_adapter"] = b""
    vllm.answers_yet |= {"/health", "/metrics", "/v1/models", "/is_sleeping", "/version", "/info", "/"}
    vllm.silent.clear()
    return vllm


async def test_an_engine_that_has_served_goes_on_while_another_gateway_has_it_load_an_adapter(
    make, told, loading, monkeypatch
):
    monkeypatch.setattr(monitoring, "EQUIPPING", 0.0)
    monitor = make(adapters={"sql": "/sql"})
    await monitor.probe()
    ((kind, identity, _),) = told.take()
    await until(lambda: "/v1/load_lora_adapter" in loading.asked)
    assert (kind, identity.loras, monitor.status.adapters) == ("up", (), {"sql": "loading"})
    settling = monitor._settling
    loading.silent.set()
    await settling
    await monitor.probe()
    ((kind, identity, _),) = told.take()
    assert (kind, identity.loras, loading.loras) == ("up", ("sql",), ("sql",))


@pytest.mark.parametrize("why", ["new", "another serves"])
async def test_an_engine_that_nobody_needs_yet_takes_no_traffic_without_its_adapters(
    make, told, loading, monkeypatch, why
):
    monkeypatch.setattr(monitoring, "EQUIPPING", 0.0)
    monitor = make(adapters={"sql": "/sql"}, alone=lambda: why == "new")
    if why == "new":
        loading.metrics = loading.metrics.replace(b'model_name="smol"} 94.0', b'model_name="smol"} 0.0')
    probing = asyncio.create_task(monitor.probe())
    await until(lambda: "/v1/load_lora_adapter" in loading.asked)
    for _ in range(10):
        await asyncio.sleep(0)
    assert told.take() == []
    loading.silent.set()
    await probing
    ((kind, identity, _),) = told.take()
    assert (kind, identity.loras) == ("up", ("sql",))


async def test_a_process_without_descriptors_asks_for_adapters_again(make, vllm, clock):
    vllm.answers["/v1/load_lora_adapter"] = httpx.ConnectError("none left")
    vllm.answers["/v1/load_lora_adapter"].__cause__ = OSError(errno.EMFILE, "Too many open files")
    monitor = make(adapters={"sql": "/sql"})
    with capture_logs() as logs:
        await monitor.probe()
    assert monitor.serving
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["adapters not asked for"]
    vllm.answers["/v1/load_lora_adapter"] = b""
    await pass_time(monitor, clock, int(IDENTITY_INTERVAL))
    await until(lambda: vllm.loras == ("sql",))


async def test_an_adapter_that_cannot_be_loaded_keeps_nobody_waiting(make, told):
    monitor = make(adapters={"sql": "/sql"})
    await monitor.probe()
    ((kind, identity, _),) = told.take()
    assert (kind, identity.loras) == ("up", ())
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in monitor.status.adapters["sql"]


async def test_an_adapter_that_was_there_from_another_path_is_said_to_be_another(make, vllm, clock):
    """A gateway was started again with other settings: its engine has what the one before loaded."""
    vllm.loras = ("sql", "same")
    monitor = make(adapters={"sql": "/sql-2", "same": "/same"})
    with capture_logs() as logs:
        await monitor.probe()
        await pass_time(monitor, clock, int(IDENTITY_INTERVAL))
    said = "it was there, from /sql: /kvgate/adapters/load replaces it by the one from /sql-2"
    assert monitor.status.adapters == {"sql": said, "same": "loaded"}
    assert [line["adapter"] for line in logs if line.get("help") == said] == ["sql"]
    vllm.answers |= {"/v1/load_lora_adapter": b"", "/v1/unload_lora_adapter": b""}
    monitor.give("sql", "/sql-2")
    assert monitor.status.adapters == {"sql": "loading", "same": "loaded"}


async def test_other_adapters_are_loaded_beside_its_traffic(make, client, told, vllm, clock):
    vllm.answers |= {"/v1/load_lora_adapter": b"", "/v1/unload_lora_adapter": b""}
    monitor = make(adapters={"old": "/old"})
    await monitor.probe()
    monitor.govern(EndpointSettings(url=URL), HealthSettings(), client, {"new": "/new"})
    monitor.give("given", "/given")
    told.take()
    await monitor.probe()
    assert told.take() == [], "they are being loaded"
    await monitor._settling
    await monitor.probe()
    assert told.take()[-1][1].loras == ("new", "given")


async def test_an_adapter_that_is_given_while_one_is_refused_is_loaded_next(make, vllm):
    vllm.answers["/v1/load_lora_adapter"] = 400
    monitor = make()
    await monitor.probe()
    vllm.answers_yet |= set(vllm.asked)
    vllm.silent.clear()
    monitor.give("wrong", "/wrong")
    await monitor.probe()
    await until(lambda: "/v1/load_lora_adapter" in vllm.asked)
    monitor.give("right", "/right")
    await monitor.probe()
    vllm.silent.set()
    await monitor._settling
    vllm.answers["/v1/load_lora_adapter"] = b""
    await monitor.probe()
    await until(lambda: "right" in vllm.loras)


@pytest.mark.parametrize("failure", [httpx.ReadError("reset"), 503])
async def test_an_engine_too_busy_to_tell_its_adapters_is_not_asked_to_load_them_again(make, vllm, clock, failure):
    vllm.answers["/v1/load_lora_adapter"] = b""
    monitor = make(adapters={"mine": "/mine"})
    await monitor.probe()
    vllm.answers["/v1/models"] = failure
    await pass_time(monitor, clock, int(IDENTITY_INTERVAL))
    assert monitor._settling is None
    assert (monitor.status.adapters, len(vllm.bodies)) == ({"mine": "loaded"}, 1)


async def test_an_adapter_that_is_given_while_its_identity_is_read_does_not_wait_for_the_next_reading(make, told, vllm):
    vllm.answers["/v1/load_lora_adapter"] = b""
    monitor = make(adapters={"first": "/first"})
    vllm.answers_yet |= {"/health", "/metrics", "/v1/models", "/is_sleeping", "/version", "/info", "/"}
    vllm.silent.clear()
    probing = asyncio.create_task(monitor.probe())
    await until(lambda: "/v1/load_lora_adapter" in vllm.asked)
    monitor.give("second", "/second")
    vllm.silent.set()
    await probing
    await monitor.probe()
    await monitor._settling
    assert vllm.loras == ("first", "second")


async def test_no_adapter_is_loaded_into_an_engine_that_sleeps_or_is_about_to(make, vllm):
    """It would write to memory that it gave back."""
    vllm.answers |= {"/v1/load_lora_adapter": b"", "/is_sleeping": b'{"is_sleeping":true}'}
    monitor = make()
    await monitor.probe()
    await monitor.probe()
    assert monitor.state is State.ASLEEP
    monitor.give("sql", "/sql")
    await monitor.probe()
    assert monitor.status.adapters == {"sql": "not yet, asleep: the engine sleeps or is paused"}
    monitor.retire()
    vllm.answers["/is_sleeping"] = b'{"is_sleeping":false}'
    await monitor.probe()
    assert vllm.bodies == []
    monitor.rouse()
    await monitor.probe()
    assert (vllm.loras, monitor.status.adapters, monitor.serving) == (("sql",), {"sql": "loaded"}, True)


async def test_an_engine_that_is_to_sleep_gets_the_adapters_that_it_lacks_when_it_is_back(up, vllm):
    vllm.answers["/v1/load_lora_adapter"] = b""
    vllm.answers_yet |= {"/health", "/metrics", "/v1/models", "/is_sleeping", "/version", "/info", "/"}
    vllm.silent.clear()
    for name in ("first", "second"):
        up.give(name, f"/{name}")
    await up.probe()
    await until(lambda: "/v1/load_lora_adapter" in vllm.asked)
    up.retire()
    vllm.silent.set()
    await until(lambda: up._settling is None)
    await up.probe()
    assert vllm.asked.count("/v1/load_lora_adapter") == 1
    up.rouse()
    await up.probe()
    assert vllm.loras == ("first", "second")


async def test_an_engine_that_is_stopped_before_it_is_asked_gets_its_adapters_when_it_is_back(up, vllm):
    vllm.answers["/v1/load_lora_adapter"] = b""
    up.give("sql", "/sql")
    await up.probe()
    up.retire()
    await until(lambda: up._settling is None)
    assert vllm.bodies == []
    up.rouse()
    await up.probe()
    assert vllm.loras == ("sql",)


async def test_an_adapter_for_an_engine_that_cannot_be_asked_is_said_to_wait_for_it(make, vllm):
    vllm.answers["/v1/load_lora_adapter"] = b""
    monitor = make()
    await monitor.probe()
    vllm.listening = False
    await monitor.probe()
    monitor.give("sql", "/sql")
    assert monitor.status.adapters["sql"].startswith("not yet, down: cannot connect")
    vllm.listening = True
    await monitor.probe()
    assert monitor.status.adapters == {"sql": "loaded"}
    monitor.drain()
    vllm.listening = False
    await monitor.probe()
    monitor.give("other", "/other")
    assert monitor.status.adapters["other"] == "not yet, draining: drained by the operator"


async def test_an_engine_that_loads_an_adapter_does_not_hang_until_that_has_failed(up, told, vllm, clock):
    """A vLLM generates nothing meanwhile: its streams all stand still."""
    vllm.answers["/v1/load_lora_adapter"] = 500
    vllm.answers_yet |= set(vllm.asked)
    vllm.silent.clear()
    for request in (A, B):
        up.dispatched(request, 100)
    up.give("slow", "/slow")
    await pass_time(up, clock, 59)
    assert (told.take(), told.expired, up.status.adapters) == ([], [], {"slow": "loading"})
    vllm.silent.set()
    await up._settling
    await pass_time(up, clock, 29)
    assert (told.take(), told.expired) == ([], [])
    vllm.silent.clear()
    await pass_time(up, clock, 1)
    assert told.take()[0] == ("down", "hung: no progress for 30 s with 2 requests in flight")
    vllm.silent.set()


async def test_an_adapter_that_cannot_be_loaded_takes_an_engine_little_of_its_time(make, vllm, client, clock):
    async def refuse(path, body):
        asked.append(json.loads(body)["lora_name"])
        clock.now += 10
        return Reply(500, b"no hub", clock.now)

    asked = []
    monitor = make(adapters={"lost": "owner/lost"})
    monitor._post = refuse
    await monitor.probe()
    await pass_time(monitor, clock, 199)
    assert asked == ["lost"]
    await pass_time(monitor, clock, int(IDENTITY_INTERVAL))
    assert asked == ["lost"] * 2
    monitor.give("other", "/other")
    await pass_time(monitor, clock, 2)
    assert asked[2:] == ["other"], "what is new is asked for at once, and alone"
    monitor.govern(EndpointSettings(url=URL), HealthSettings(), client, {"lost": "owner/found"})
    await pass_time(monitor, clock, 2)
    assert asked[3:] == ["lost"]
    monitor.drain()
    await pass_time(monitor, clock, 199)
    assert asked[4:] == [], "neither while it ends what it has"


async def test_an_engine_asked_again_for_an_adapter_does_not_hang_meanwhile_unless_it_did_before(
    make, told, vllm, clock
):
    vllm.answers["/v1/load_lora_adapter"] = 500
    monitor = make(adapters={"lost": "owner/lost"})
    await monitor.probe()
    told.take()
    vllm.answers_yet |= set(vllm.asked) - {"/v1/load_lora_adapter"}
    vllm.silent.clear()
    for request in (A, B):
        monitor.dispatched(request, 100)
    monitor._identified_at = float("-inf")
    await pass_time(monitor, clock, 1)
    assert monitor._settling is None, "it may hang"
    monitor.progressed([A, B])
    monitor._identified_at = float("-inf")
    await pass_time(monitor, clock, 59)
    assert (told.take(), told.expired) == ([], [])
    assert monitor._settling is not None
    vllm.silent.set()


@pytest.mark.parametrize(("most", "replaced"), [(1, True), (2, False), (3, True)])
async def test_an_adapter_whose_requests_run_is_replaced_only_where_its_engine_survives_that(
    make, vllm, most, replaced
):
    """A vLLM 0.32 dies of two adapters of one name in a batch if only one is ready, and `--max-loras` are at a time."""
    vllm.answers |= {"/v1/load_lora_adapter": b"", "/v1/unload_lora_adapter": b""}
    vllm.loras = ("sql", "other")
    monitor = make()
    await monitor.probe()
    for at, used in ((1, ""), (3, "other,sql"), (2, "")):
        labels = f'max_lora="{most}",running_lora_adapters="{used}",waiting_lora_adapters=""'
        vllm.metrics += f"vllm:lora_requests_info{{{labels}}} {at}\n".encode()
    monitor.give("sql", "/better")
    await monitor.probe()
    await monitor._settling
    assert (len(vllm.bodies) == 2) is replaced
    assert (monitor.status.adapters["sql"] == IN_USE) is not replaced


async def test_an_engine_that_did_not_answer_for_an_adapter_gets_no_minute_for_each_other(up, told, vllm, clock):
    vllm.answers["/v1/load_lora_adapter"] = httpx.ReadTimeout("it hangs")
    vllm.answers_yet |= set(vllm.asked)
    vllm.silent.clear()
    for request in (A, B):
        up.dispatched(request, 100)
    for name in ("one", "two", "three"):
        up.give(name, f"/{name}")
    await pass_time(up, clock, 59)
    assert told.take() == []
    vllm.silent.set()
    vllm.silent.clear()  # only the first ends
    await until(lambda: vllm.asked.count("/v1/load_lora_adapter") == 2)
    await pass_time(up, clock, 30)
    assert told.take()[0] == ("down", "hung: no progress for 30 s with 2 requests in flight")
    vllm.silent.set()
