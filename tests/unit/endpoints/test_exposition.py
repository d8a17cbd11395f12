import time
import tracemalloc
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.endpoints.exposition import EXPECTED, EngineMetrics, parse, used_loras

CAPTURED = Path(__file__).parent / "expositions"
EVERY = sorted(CAPTURED.glob("*.prom"))


def read(name: str) -> EngineMetrics:
    return parse((CAPTURED / f"{name}.prom").read_bytes())


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_reads_the_same_values_as_prometheus_own_parser(path):
    samples = {}
    for family in text_string_to_metric_families(path.read_text()):
        for sample in family.samples:
            samples.setdefault(sample.name.removeprefix("vllm:"), []).append(sample)

    def total(name, **where):
        rows = [s.value for s in samples.get(name, ()) if where.items() <= s.labels.items()]
        return sum(rows) if rows else None

    waiting = total("num_requests_waiting_by_reason", reason="capacity")
    usage = samples.get("kv_cache_usage_perc") or samples["gpu_cache_usage_perc"]
    metrics = parse(path.read_bytes())
    assert metrics.running == total("num_requests_running")
    assert metrics.waiting == (total("num_requests_waiting") if waiting is None else waiting)
    assert metrics.deferred == total("num_requests_waiting_by_reason", reason="deferred")
    assert metrics.generation_tokens == total("generation_tokens_total")
    assert metrics.prompt_tokens == total("prompt_tokens_total")
    assert metrics.preemptions == total("num_preemptions_total")
    assert metrics.prefix_queries == total("prefix_cache_queries_total")
    assert metrics.prefix_hits == total("prefix_cache_hits_total")
    assert metrics.kv_usage == max(s.value for s in usage)
    assert metrics.cache_config == samples["cache_config_info"][0].labels
    assert metrics.missing == ()


def test_a_busy_engine_of_0_32():
    metrics = read("vllm-0.32-busy")
    assert (metrics.running, metrics.waiting, metrics.awake, metrics.ranks) == (3, 0, True, 1)
    assert 0 < metrics.kv_usage < 0.1
    assert metrics.generation_tokens > 0
    assert metrics.cache_config["num_gpu_blocks"] == "256"


def test_0_8_5_calls_its_usage_by_another_name_and_knows_no_reasons_nor_sleep():
    metrics = read("vllm-0.8.5")
    assert metrics.kv_usage == 0.875
    assert metrics.waiting == 3
    assert metrics.awake is None
    assert metrics.prompt_tokens == 1.25e6


def test_of_several_ranks_the_fullest_counts_and_requests_add_up():
    metrics = read("vllm-0.33-two-ranks")
    assert metrics.ranks == 2
    assert metrics.kv_usage == 0.93
    assert metrics.running == 78
    assert metrics.generation_tokens == 1200


def test_what_was_completed_is_that_of_all_ranks():
    text = b"".join(
        b'vllm:request_%s{engine="%d",model_name="m"} %d\n' % (name, rank, value)
        for rank in range(2)
        for name, value in ((b"prompt_tokens_count", 3), (b"prompt_tokens_sum", 90), (b"generation_tokens_count", 3),
                            (b"generation_tokens_sum", 60), (b"prompt_tokens_created", 1.7e9))
    )  # fmt: skip
    metrics = parse(text)
    assert (metrics.completed, metrics.completed_prompt, metrics.completed_output) == (6, 180, 120)


def test_only_those_that_wait_for_capacity_count_where_the_engine_tells_why():
    assert read("vllm-0.33-two-ranks").waiting == 4


def test_one_rank_asleep_is_an_engine_asleep():
    text = (CAPTURED / "vllm-0.33-two-ranks.prom").read_bytes()
    awake = b'vllm:engine_sleep_state{engine="1",model_name="llama",sleep_state="awake"} '
    assert parse(text.replace(awake + b"1.0", awake + b"0.0")).awake is False


def test_an_engine_without_stats_is_unknown_not_idle():
    metrics = parse(b'# TYPE python_info gauge\npython_info{version="3.12"} 1.0\n')
    assert metrics == EngineMetrics(missing=EXPECTED)
    assert (metrics.kv_usage, metrics.running, metrics.waiting, metrics.generation_tokens) == (None,) * 4


@pytest.mark.parametrize("name", EXPECTED)
def test_each_metric_that_is_missing_is_named(name):
    lines = (CAPTURED / "vllm-0.32-idle.prom").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(f"{name}{{".encode())]
    assert parse(b"".join(kept)).missing == (name,)


def test_nan_is_no_value():
    assert parse(b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running{} +Inf\n").kv_usage is None


def test_label_values_may_hold_braces_commas_quotes_and_newlines():
    text = b'vllm:cache_config_info{a="{\\"x\\": 1, \\"y\\": [2]}",b="c\\\\d\\n",block_size="16",} 1.0 1700000000000\n'
    assert parse(text).cache_config == {"a": '{"x": 1, "y": [2]}', "b": "c\\d\n", "block_size": "16"}


def test_a_name_that_only_begins_alike_is_another_metric():
    assert parse(b"vllm:num_requests_running_total 5\nvllm:num_requests_waiting_x{} 4\n").running is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>502 Bad Gateway</html>",
        b"\x00\xff\xfe",
        b"vllm:num_requests_running{",
        b"vllm:num_requests_running{engine=} x",
        b'vllm:cache_config_info{a="b} 1.0',
        b"vllm:num_requests_running many\n",
    ],
)
def test_what_is_no_exposition_holds_nothing(text):
    assert parse(text).running is None
    assert parse(text).cache_config == {}


@pytest.mark.parametrize(
    "text",
    [
        b"vllm:cache_config_info{" + b"a" * 1_000_000 + b"} 1\n",
        b"vllm:cache_config_info{" + b"a" * 1_000_000 + b" 1\n",
        b"vllm:cache_config_info{" + b'a="x",' * 150_000 + b" 1\n",
        b'vllm:cache_config_info{a="' + b"\\\\" * 500_000,
        b"vllm:num_requests_running{} 1\n" * 300_000,
        (b"vllm:cache_config_info{" + b"a" * 16_000 + b"} 1\n") * 20,
    ],
    ids=["one name", "no end", "many labels", "one value", "many samples", "long names"],
)
def test_whatever_an_engine_says_is_read_in_time_and_memory_that_its_length_explains(text):
    tracemalloc.start()
    began = time.process_time()
    parse(text)
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 2.0
    assert peak < 30 * len(text)


def test_a_sum_that_is_no_number_is_no_value():
    assert parse(b"vllm:num_requests_running 1e308\nvllm:num_requests_running 1e308\n").running is None


@pytest.mark.parametrize("value", ["-1", "1e18", "-1e308", "1.7e308"])
def test_a_count_that_cannot_be_is_no_value(value):
    metrics = parse(
        b"".join(
            b"vllm:%b %b\n" % (name.encode(), value.encode())
            for name in (
                "num_requests_running",
                "num_requests_waiting",
                "generation_tokens_total",
                "kv_cache_usage_perc",
            )
        )
    )
    assert (metrics.running, metrics.waiting, metrics.generation_tokens, metrics.kv_usage) == (None,) * 4


def test_the_newest_line_of_adapters_counts():
    text = b"""
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.7957284e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="x,sql",waiting_lora_adapters="y"} 1.7957285e+09
"""
    assert used_loras(text) == (2, {"x", "sql", "y"})
    assert used_loras(b"") == used_loras(b"\nvllm:lora_requests_info 1") == (0, frozenset())
