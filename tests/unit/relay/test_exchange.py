import contextlib
import json
from collections import Counter

import pytest

from gateway.admission.events import Demand, EndpointId
from gateway.admission.outcomes import Outcome
from gateway.ops.metrics import Metrics
from gateway.ops.pictures.digest import GAP_EDGES, Digest, Digests
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, Reporter
from gateway.relay.response import State
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.upstream.interface import ConnectionLostError
from gateway.wire.request import Api
from gateway.wire.usage import Usage
from tests.clock import Clock
from tests.fakes.plane import STREAMED, WHOLE, FakePlane, Reply, stream

COUNT = PromptCount((3, 4), Source.LOCAL, Kind(Api.CHAT))
HERE = EndpointId("here:8000")


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def exchange(clock, sent):
    """A request for a chat, and what is sent to its client."""

    async def send(message):
        sent.append(message)

    scope = {"path": "/v1/chat/completions", "headers": [(b"x-request-id", b"r-1")]}
    return Exchange.begin(scope, send, clock, Api.CHAT)


def facts(exchange):
    return {name.decode(): value.decode() for name, value in exchange.facts()}


CHANGING = {"endpoint", "engaged", "failures", "waited"}


async def test_each_fact_of_a_request_is_set_once_whatever_becomes_of_it(monkeypatch):
    made = []

    class Watched(Exchange):
        def __init__(self, *args, **facts):
            super().__init__(*args, **facts)
            self.learned = Counter()
            made.append(self)

        def __setattr__(self, name, value):
            if "learned" in self.__dict__:
                self.learned[name] += 1
            super().__setattr__(name, value)

    monkeypatch.setattr("gateway.relay.gateway.Exchange", Watched)
    plane = FakePlane("a", "b")
    lost = ConnectionLostError("lost")
    for replies, request in [
        ([Reply(WHOLE)], {}),
        ([lost, stream()], {"body": STREAMED}),
        ([lost, lost], {}),
        ([stream(b"data: {}\n\n", lost)], {"body": STREAMED}),
        ([Reply(b"{}", status=422)], {}),
        ([], {"body": b'{"model":"other"}'}),
        ([], {"body": b"["}),
        ([lost, Reply(b"{}")], {"path": "/tokenize", "body": b"{}"}),
        ([], {"path": "/v1/models", "method": "GET", "body": b""}),
    ]:
        plane.replies.extend(replies)
        await plane.ask(**request).ended()
    assert len(made) == 9
    for exchange in made:
        assert {name for name, times in exchange.learned.items() if times > 1} <= CHANGING


def test_it_tells_nothing_of_a_request_that_was_not_counted(exchange):
    exchange.sent_to(HERE)
    assert facts(exchange) == {}


def test_it_tells_what_is_known_of_a_request_that_was(exchange, clock):
    exchange.count = COUNT
    with exchange.waiting():
        clock.now += 1.5
    known = {"x-kvgate-prompt-tokens": "7", "x-kvgate-counted": "local", "x-kvgate-queue-ms": "1500"}
    assert facts(exchange) == known
    exchange.sent_to(HERE)
    assert facts(exchange) == known | {"x-kvgate-endpoint": HERE}


def test_it_tells_the_output_limit_that_kvgate_set(exchange):
    exchange.count, exchange.max_tokens = COUNT, 25
    assert facts(exchange)["x-kvgate-max-tokens"] == "25"


def test_waits_add_up_even_those_that_fail(exchange, clock):
    with exchange.waiting() as since:
        assert since == clock.now
        clock.now += 1
    with contextlib.suppress(TimeoutError), exchange.waiting():
        clock.now += 2
        raise TimeoutError
    assert exchange.waited == 3


def test_the_time_of_ours_ends_where_it_first_goes_to_an_endpoint_and_leaves_out_the_queue(exchange, clock):
    clock.now += 5  # its body arrives
    exchange.received = clock.now
    clock.now += 0.25
    with exchange.waiting():
        clock.now += 3
    exchange.sent_to(HERE)
    clock.now += 1
    exchange.sent_to(EndpointId("there"))
    assert (exchange.overhead, exchange.endpoint) == (0.25, "there")


async def test_a_refusal_is_a_whole_answer_with_its_reason(exchange, sent):
    exchange.count = COUNT
    ended = await exchange.refuse(Outcome.QUEUE_TIMEOUT, "Too late.", param="x", retry_after=2.0)
    assert ended is Outcome.QUEUE_TIMEOUT
    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == exchange.response.status == 429
    assert (headers[b"x-kvgate-reason"], headers[b"x-request-id"]) == (b"queue_timeout", b"r-1")
    assert headers[b"x-llm-d-request-dropped-reason"] == b"rejected-ttl-expired"
    assert (headers[b"retry-after"], headers[b"x-kvgate-prompt-tokens"]) == (b"2", b"7")
    error = json.loads(sent[1]["body"])["error"]
    assert (error["code"], error["message"], error["param"]) == ("queue_timeout", "Too late.", "x")
    assert exchange.response.state is State.ENDED


async def test_a_refusal_behind_a_head_is_the_last_event_of_the_stream(exchange, sent):
    exchange.count = COUNT
    await exchange.open()
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert (headers[b"x-kvgate-counted"], headers[b"x-request-id"]) == (b"local", b"r-1")
    await exchange.refuse(Outcome.QUEUE_TIMEOUT, "Too late.")
    (event,) = sent[1:]
    assert event["body"].startswith(b'data: {"error":')
    assert event["more_body"] is False
    assert (exchange.response.status, exchange.response.state) == (200, State.ENDED)


async def test_a_refusal_after_an_answer_has_begun_is_a_defect(exchange):
    await exchange.response.begin(200, [])
    with pytest.raises(RuntimeError):
        await exchange.refuse(Outcome.INTERNAL_ERROR, "no")


def counted(metrics):
    """The samples that are not 0, by name and by outcome or kind."""
    found = [sample for family in metrics.registry.collect() for sample in family.samples if sample.value]
    return {(sample.name, sample.labels.get("outcome") or sample.labels.get("kind")): sample.value for sample in found}


async def test_the_times_of_a_request_that_is_traced_are_told_with_its_trace(exchange, clock):
    metrics = Metrics("0")
    exchange.trace, exchange.reports_wait = "4bf92f3577b34da6a3ce929d0e0e4736", True
    with exchange.waiting():
        clock.now += 2
    exchange.sent_to(HERE)
    clock.now += 1
    exchange.first_event = clock.now
    Reporter(metrics, None).ended(exchange, Outcome.COMPLETED)
    shown = {
        sample.name: (sample.labels["le"], sample.exemplar.value, sample.exemplar.labels["trace_id"])
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar
    }
    assert shown == {
        "kvgate_overhead_seconds_bucket": ("0.0002", 0, exchange.trace),
        "kvgate_queue_wait_seconds_bucket": ("2.5", 2, exchange.trace),
        "kvgate_ttft_seconds_bucket": ("3.0", 3, exchange.trace),
    }


async def test_the_end_of_a_request_is_counted_and_logged(exchange, clock):
    metrics, lines = Metrics("0"), []
    metrics.know_tenants(["alice", "bob"])
    exchange.client, exchange.model, exchange.stream = Client("alice"), "m", True
    exchange.count, exchange.demand = COUNT, Demand((3, 4), 10)
    with exchange.waiting():
        clock.now += 2
    exchange.reports_wait = True
    exchange.sent_to(HERE)
    clock.now += 1
    exchange.first_event = clock.now
    await exchange.response.begin(200, [])
    exchange.usage = Usage(8, 12)
    clock.now += 4
    Reporter(metrics, lambda **line: lines.append(line)).ended(exchange, Outcome.COMPLETED)
    assert lines == [
        {
            "request_id": "r-1", "path": "/v1/chat/completions", "model": "m", "flow": "alice", "status": 200,
            "outcome": "completed", "endpoint": HERE, "fallback": None, "stream": True, "prompt_tokens": 8,
            "counted": "local", "completion_tokens": 12, "queue_ms": 2000.0, "ttft_ms": 3000.0,
            "overhead_ms": 0.0, "duration_ms": 7000.0,
        }
    ]  # fmt: skip
    found = counted(metrics)
    assert found["kvgate_requests_total", "completed"] == 1
    assert (found["kvgate_queue_wait_seconds_sum", None], found["kvgate_ttft_seconds_sum", None]) == (2, 3)
    assert (found["kvgate_tokens_total", "prompt"], found["kvgate_tokens_total", "completion"]) == (8, 12)
    assert found["kvgate_tenant_requests_total", "completed"] == 1
    assert (found["kvgate_tenant_tokens_total", "prompt"], found["kvgate_tenant_tokens_total", "completion"]) == (8, 12)
    assert found["kvgate_request_tokens_sum", "prompt"] == 4, "of several prompts, the longest"
    assert found["kvgate_request_tokens_sum", "output"] == 6, "of several sequences, the mean"


def test_the_end_of_a_request_is_told_for_the_page(exchange, clock):
    digests = Digests(clock)
    exchange.client, exchange.model, exchange.request = Client("alice"), "m", 7
    exchange.count, exchange.demand, exchange.usage = COUNT, Demand((3, 4), 10), Usage(8, 12)
    exchange.endpoint, exchange.waited = HERE, 0.5
    clock.now += 1
    exchange.first_event = clock.now
    clock.now += 2
    Reporter(Metrics("0"), None, digests).ended(exchange, Outcome.COMPLETED)
    digest = digests.take()
    (one,) = digest.ended
    assert (one.number, one.flow, one.outcome, one.endpoint) == (7, "alice", "completed", HERE)
    assert (one.prompt, one.generated, one.took, one.waited, one.first) == (8, 12, 3, 0.5, 1)
    figures = digest.models["m"]
    assert figures.served == {"alice": 32}, "a generated token costs two"
    assert {GAP_EDGES[index]: count for index, count in figures.gap.items()} == {0.5: 1}, "2 s for 6 tokens each"


def test_what_asks_for_no_answer_is_not_on_the_page(exchange, clock):
    exchange.api = None
    digests = Digests(clock)
    Reporter(Metrics("0"), None, digests).ended(exchange, Outcome.COMPLETED)
    assert digests.take() == Digest()


def test_of_a_request_that_ended_at_once_little_is_known(exchange):
    lines = []
    exchange.count = COUNT
    Reporter(Metrics("0"), lambda **line: lines.append(line)).ended(exchange, Outcome.CLIENT_CLOSED)
    (line,) = lines
    assert (line["status"], line["prompt_tokens"], line["counted"]) == (499, 7, "local")
    assert line["completion_tokens"] is line["ttft_ms"] is line["overhead_ms"] is line["model"] is None


def test_without_an_access_log_it_is_counted_all_the_same(exchange):
    metrics = Metrics("0")
    exchange.usage = Usage(1, 1)
    Reporter(metrics, None).ended(exchange, Outcome.UPSTREAM_ERROR)
    found = counted(metrics)
    assert found["kvgate_requests_total", "upstream_error"] == 1
    assert not any(name.startswith("kvgate_request_tokens") for name, _ in found), "its length is not known to be whole"
