import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.plan.traffic import Range, Seen, TrafficError, from_exposition, from_lengths

EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
"""vLLM's, for a `max_model_len` of 8,192."""


def exact(value):
    return Range(value, value)


def vllm(requests, *, model="m", running=3, waiting=2, queries=1000, hits=250):
    registry = CollectorRegistry()
    labels = {"model_name": model, "engine": "0"}

    def histogram(name):
        return Histogram(name, "", [*labels], buckets=EDGES, registry=registry).labels(**labels)

    prompt, output = histogram("vllm:request_prompt_tokens"), histogram("vllm:request_generation_tokens")
    for prompted, generated in requests:
        prompt.observe(prompted)
        output.observe(generated)
    Gauge("vllm:num_requests_running", "", [*labels], registry=registry).labels(**labels).set(running)
    Gauge("vllm:num_requests_waiting", "", [*labels], registry=registry).labels(**labels).set(waiting)
    Counter("vllm:prefix_cache_queries", "", [*labels], registry=registry).labels(**labels).inc(queries)
    Counter("vllm:prefix_cache_hits", "", [*labels], registry=registry).labels(**labels).inc(hits)
    Gauge("process_start_time_seconds", "", registry=registry).set(100)
    return generate_latest(registry).decode()


class TestLengths:
    def test_lengths_are_exact(self):
        traffic = from_lengths("here", [Seen(number, number, 2 * number) for number in range(1, 201)])
        assert (traffic.source, traffic.requests, traffic.span) == ("here", 200, 199)
        assert traffic.prompt_tokens.p50 == exact(100)
        assert traffic.output_tokens.p99 == exact(396)
        assert traffic.total_tokens.most == exact(600)
        assert traffic.concurrency is None
        assert traffic.hit_rate is None

    def test_p50_and_p99_of_the_whole_are_not_the_sum_of_the_parts(self):
        traffic = from_lengths("", [Seen(0, 100, 1), Seen(1, 1, 100), Seen(2, 1, 1)])
        assert (traffic.prompt_tokens.most, traffic.output_tokens.most) == (exact(100), exact(100))
        assert traffic.total_tokens.most == exact(101)

    def test_how_many_ran_at_once_weighs_by_time(self):
        lasting = [Seen(0, 1, 1, 100), Seen(10, 1, 1, 1), Seen(10, 1, 1, 0.5, sequences=3), Seen(11, 1, 1, 1)]
        concurrency = from_lengths("", lasting).concurrency
        assert (concurrency.p50, concurrency.p99, concurrency.most) == (exact(1), exact(2), exact(5))

    def test_one_that_ends_when_the_next_begins_is_not_with_it(self):
        assert from_lengths("", [Seen(0, 1, 1, 5), Seen(5, 1, 1, 5)]).concurrency.most == exact(1)

    def test_the_order_does_not_matter_and_a_pause_counts(self):
        seen = [Seen(10, 5, 5, 1), Seen(0, 5, 5, 1), Seen(0, 5, 5, None)]
        assert from_lengths("", seen).concurrency is None
        assert from_lengths("", seen[:2]).concurrency.p50 == exact(0)

    def test_nothing_was_seen(self):
        assert from_lengths("here", []).total_tokens is None

    def test_requests_that_took_no_time_ran_once(self):
        assert from_lengths("", [Seen(1, 1, 1, 0), Seen(1, 1, 1, 0)]).concurrency.most == exact(2)


class TestVllm:
    def test_every_figure_lies_between_edges(self):
        traffic = from_exposition("url", vllm([(100, 40)] * 98 + [(1500, 300)] * 2), now=160)
        assert (traffic.requests, traffic.span, traffic.now) == (100, 60, 5)
        assert traffic.prompt_tokens.p50 == Range(51, 100)
        assert traffic.prompt_tokens.p99 == Range(1001, 2000)
        assert traffic.output_tokens.most == Range(201, 500)
        assert traffic.total_tokens.p99 == Range(1001, 2500)
        assert traffic.hit_rate == 0.25
        assert traffic.concurrency is None

    def test_nothing_is_longer_than_the_model(self):
        text = vllm([(6000, 10)] * 4)
        assert from_exposition("url", text, now=0).prompt_tokens.most == Range(5001, 24000 - 3 * 5001)
        assert from_exposition("url", text, now=0, longest=8192).prompt_tokens.most == Range(5001, 8192)
        assert from_exposition("url", text, now=0, longest=8192).total_tokens.most.high == 8192

    def test_only_what_was_asked_for(self):
        text = vllm([(100, 40)])
        assert from_exposition("url", text, now=0, model="m").requests == 1
        assert from_exposition("url", text, now=0, model="other").requests == 0

    def test_a_server_that_served_nothing_yet(self):
        traffic = from_exposition("url", vllm([], queries=0, hits=0), now=100)
        assert (traffic.requests, traffic.total_tokens, traffic.hit_rate) == (0, None, None)

    @given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), min_size=1, max_size=40))
    def test_what_is_read_off_holds_what_was(self, requests):
        told = from_exposition("", vllm(requests), now=0)
        was = from_lengths("", [Seen(number, *request) for number, request in enumerate(requests)])
        for name in ("prompt_tokens", "output_tokens", "total_tokens"):
            for which in ("p50", "p99", "most"):
                held, value = getattr(getattr(told, name), which), getattr(getattr(was, name), which)
                assert held.low <= value.low <= held.high, (name, which)
                assert math.isfinite(held.high)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# TYPE up gauge\nup 1\n", "url: expected the metrics of a kvgate .* or of a vLLM .*, found neither"),
        ("<html></html>", "url: expected metrics in Prometheus' text format"),
    ],
)
def test_what_is_no_source_is_told(text, said):
    with pytest.raises(TrafficError, match=said):
        from_exposition("url", text, now=0)
