from random import Random

import pytest

from gateway.admission.commands import Dispatch, Reject, WakeAt
from gateway.admission.events import Arrived, EndpointUp, Finished, Observed, Progress, Tick
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.simulation.contenders import ENDPOINT, Contender, direct, kvgate, oracle, scraped
from gateway.simulation.machine import Machine
from gateway.simulation.simulate import REPORT, simulate
from gateway.simulation.workload import Request, sharing

MACHINE = Machine(kv_tokens=4000, block_size=16)
EVERYBODY = [direct(), direct(0.05), direct(0.05, 20), scraped(), kvgate(Policy()), oracle(5.0)]


def crowd(requests=300, interval=0.03, seed=1):
    random = Random(seed)  # noqa: S311 - the same load every time
    return tuple(
        Request(number * interval, random.randint(50, 400), random.randint(10, 300)) for number in range(requests)
    )


class Listener:
    """Writes down what it is told, lets everybody go a second after arrival, and refuses number 3."""

    def __init__(self):
        self.heard = []
        self.waiting = []

    def handle(self, event, now):
        assert not self.heard or now >= self.heard[-1][1]
        self.heard.append((event, now))
        if isinstance(event, Arrived):
            if event.request == 3:
                return [Reject(3, Outcome.QUEUE_FULL)]
            self.waiting.append(event.request)
            return [WakeAt(now + 1.0)]
        if isinstance(event, Tick):
            commands = [Dispatch(request, ENDPOINT) for request in self.waiting]
            self.waiting.clear()
            return commands
        return []

    def of(self, kind):
        return [(event, now) for event, now in self.heard if isinstance(event, kind)]


def listen(offered, delay=0.0):
    listener = Listener()
    return listener, simulate(offered, MACHINE, Contender("listener", lambda *_: listener, delay=delay))


def test_the_core_is_told_all_that_a_gateway_would_tell_it():
    offered = (Request(0.0, 100, 50), Request(0.2, 100, 1), Request(0.5, 200, 80), Request(0.6, 10, 10))
    listener, result = listen(offered)
    ((up, _),) = listener.of(EndpointUp)
    assert (up.capacity.kv_blocks, up.capacity.block_size) == (250, 16)
    assert [(event.request, now) for event, now in listener.of(Arrived)] == [(0, 0.0), (1, 0.2), (2, 0.5), (3, 0.6)]
    assert sorted((event.request, event.completion_tokens) for event, _ in listener.of(Finished)) == [
        (0, 50),
        (1, 1),
        (2, 80),
    ]
    polls = [now for _, now in listener.of(Observed)]
    assert polls == [float(second) for second in range(1, len(polls) + 1)]
    assert result.jobs[3].refused == "queue_full"
    assert result.jobs[0].dispatched_at == 1.5  # each `WakeAt` replaces the one before


def test_behind_a_socket_it_hears_of_requests_later_and_they_of_it():
    (first, second), polled = (0.0, 0.5), 1.0
    offered = (Request(first, 100, 50), Request(second, 100, 90))
    listener, result = listen(offered, delay=0.125)
    assert [now for _, now in listener.of(Arrived)] == [first + 0.125, second + 0.125]
    (tick,) = (now for _, now in listener.of(Tick))  # a second after the last that it heard
    assert [job.dispatched_at for job in result.jobs] == [tick + 0.125] * 2
    assert [now for _, now in listener.of(Finished)][:1] == [result.jobs[0].ended_at + 0.125]
    assert [now for _, now in listener.of(Observed)][:1] == [polled], "it scrapes by itself"


def test_progress_comes_in_batches_and_only_grows():
    listener, _ = listen((Request(0.0, 100, 200), Request(0.0, 100, 100)))
    batches = listener.of(Progress)
    times = [now for _, now in batches]
    assert all(abs(now / REPORT - round(now / REPORT)) < 1e-6 for now in times)
    for number, length in ((0, 200), (1, 100)):
        seen = [generated for event, _ in batches for request, generated in event.generated if request == number]
        assert seen == sorted(seen)
        assert length - 4 < seen[-1] <= length


@pytest.mark.parametrize("contender", EVERYBODY, ids=[contender.name for contender in EVERYBODY])
@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_every_request_ends_once(contender, shared):
    offered = sharing(crowd(), shared, groups=3) if shared else crowd()
    result = simulate(offered, MACHINE, contender)
    ended = [job for job in result.jobs if job.ended_at is not None]
    assert all((job.ended_at is None) != (job.refused is None) for job in result.jobs)
    assert len(ended) + result.refused == len(offered)
    assert result.tokens == sum(job.output for job in ended)
    assert all(0 <= sample.kv_usage <= 1 for sample in result.samples)
    assert result.preemptions == sum(job.preemptions for job in result.jobs)
    assert all(job.request.arrival <= job.dispatched_at < job.first_token_at <= job.ended_at for job in ended)


@pytest.mark.parametrize("contender", EVERYBODY, ids=[contender.name for contender in EVERYBODY])
def test_the_same_call_gives_the_same_result(contender):
    one, other = simulate(crowd(), MACHINE, contender), simulate(crowd(), MACHINE, contender)
    assert [(job.ended_at, job.refused) for job in one.jobs] == [(job.ended_at, job.refused) for job in other.jobs]
    assert one.samples == other.samples


def test_the_core_prevents_what_vllm_alone_suffers():
    alone, gated = (simulate(crowd(), MACHINE, contender) for contender in (direct(), kvgate(Policy())))
    assert alone.preemptions > 50
    assert gated.preemptions < alone.preemptions / 5


def test_a_contenders_watermark_is_the_engines():
    assert simulate(crowd(), MACHINE, direct(0.1)).preemptions < simulate(crowd(), MACHINE, direct()).preemptions / 4


def test_samples_show_who_waits_where():
    bounded = simulate(crowd(), MACHINE, direct(max_queued=30))
    assert bounded.refused > 50
    assert {sample.queued for sample in bounded.samples} == {0}
    assert max(sample.waiting for sample in bounded.samples) > 5
    gated = simulate(crowd(), MACHINE, kvgate(Policy(ttft_target=None)))
    assert max(sample.queued for sample in gated.samples) > 50
