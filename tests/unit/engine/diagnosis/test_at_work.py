import pytest

from engine.diagnosis.at_work import Observed, from_log, from_metrics, from_state, judge
from engine.plan.samples import Samples

LINE = (
    "(APIServer pid=1) INFO 11-20 18:15:59 [loggers.py:271] Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg "
    "generation throughput: 120.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
    "{usage}%, Prefix cache hit rate: {hits}%"
)
ARGUMENTS = "INFO 11-20 18:10:00 [utils.py:233] non-default args: {'model': 'x', 'max_num_seqs': 256}"


def lines(count: int = 8, **values: float) -> list[str]:
    said = {"prompt": 1000.0, "running": 20, "waiting": 0, "usage": 40.0, "hits": 60.0, **values}
    return [LINE.format(**said)] * count


def signs(seen: Observed) -> list[str]:
    return [found.sign for found in judge(seen)]


def test_statistics_of_a_log_are_its_most() -> None:
    seen = from_log([ARGUMENTS, *lines(2), *lines(3, running=30, waiting=7, usage=95.5, hits=12.5)])
    assert seen == Observed(0.125, 50_000.0, 30, 7, 0.955, 256, None, 5)


def test_a_log_without_statistics_says_nothing() -> None:
    assert list(judge(from_log(["INFO 11-20 18:10:00 [x.py:1] hello", ARGUMENTS]))) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"hits": 29.9}, ["prefix cache that does not pay"]),
        ({"hits": 30.0}, []),
        ({"hits": 0.0, "prompt": 200.0}, []),  # 16,000 tokens say nothing yet
        ({"running": 64}, []),
        ({"running": 63}, []),
        ({"usage": 96.0, "waiting": 3}, ["KV cache full"]),
    ],
)
def test_what_is_wrong_in_a_log(values: dict[str, float], expected: list[str]) -> None:
    assert signs(from_log(lines(**values))) == expected


@pytest.mark.parametrize(
    ("most", "waiting", "usage", "remedy"),
    [
        (10, 0, 0.3, "--max-num-seqs 24:"),
        (64, 0, 0.3, "--max-num-seqs 128:"),
        (65, 0, 0.3, None),
        (256, 9, 0.3, "--max-num-seqs 512."),
        (256, 9, 0.9, None),
        (256, 0, 0.3, None),
    ],
)
def test_a_sequence_limit_far_from_use(most: int, waiting: int, usage: float, remedy: str | None) -> None:
    found = list(judge(Observed(most_running=most, most_waiting=waiting, most_used=usage, max_num_seqs=256, busy=6)))
    assert [remedy in one.remedy for one in found if remedy] == ([True] if remedy else [])
    assert len(found) == bool(remedy)


def test_a_moment_says_nothing_about_the_sequence_limit() -> None:
    assert signs(Observed(most_running=1, max_num_seqs=256, busy=1)) == []


def test_metrics_of_a_vllm() -> None:
    text = """
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 30000.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} 3000.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 12.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 40.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 5.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.97
"""
    seen = from_metrics(Samples(text))
    assert signs(seen) == ["prefix cache that does not pay", "preemptions", "KV cache full"]
    assert "12 requests" in next(found.cause for found in judge(seen) if found.sign == "preemptions")
    assert from_metrics(Samples(text.replace("vllm:kv_cache", "vllm:gpu_cache"))) == seen  # until 0.9


def test_an_endpoint_of_a_kvgate() -> None:
    engine = {"preemptions": 0, "prefix_queried_tokens": 50_000, "prefix_hit_tokens": 40_000}
    endpoint = {"engine": engine, "kv": {"observed": 0.2}, "peak_sequences": 8, "max_num_seqs": 1024}
    assert signs(from_state(endpoint)) == ["max_num_seqs far from use"]
    assert signs(from_state({})) == []
