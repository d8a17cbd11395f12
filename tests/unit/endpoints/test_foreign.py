import json

import pytest

from gateway.admission.events import Capacity, RequestId
from gateway.config.endpoint import Reached
from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.foreign import (
    OLLAMA_LENGTH,
    SGLANG_GAUGES,
    TGI_GAUGES,
    IterationReader,
    gauge_reader,
    gauged_capacity,
    identify_ollama,
    identify_sglang,
    identify_tensorrt_llm,
    identify_tgi,
    plain_capacity,
)
from gateway.endpoints.identity import UnidentifiedError
from gateway.endpoints.silence import SilenceMeter

PLAIN = Reached()
SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",dp_rank="1"} 2.0
sglang:num_queue_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m",priority="1"} 7.0
sglang:token_usage{model_name="m",dp_rank="0"} 0.25
sglang:token_usage{model_name="m",dp_rank="1"} 0.5
sglang:generation_tokens_total{model_name="m"} 90.0
"""
TGI = b"tgi_batch_current_size 3\ntgi_batch_current_max_tokens 600\ntgi_queue_size 1\n"


def models(*names, **card):
    return json.dumps({"data": [{"id": name} | card for name in names]}).encode()


def iteration(used=8, most=32, size=32, **fields):
    cache = {"maxNumBlocks": most, "usedNumBlocks": used, "tokensPerBlock": size}
    return json.dumps([{"kvCacheStats": cache, "numActiveRequests": 2, "numQueuedRequests": 1} | fields]).encode()


def test_ranks_are_added_up_and_the_fullest_cache_counts():
    metrics = gauge_reader(SGLANG_GAUGES)(SGLANG, PLAIN)
    assert (metrics.kv_usage, metrics.running, metrics.waiting, metrics.generation_tokens) == (0.5, 5, 7, 90)
    assert metrics.missing == ()


def test_what_a_batch_may_come_to_is_a_share_of_the_configured_cache():
    read = gauge_reader(TGI_GAUGES)
    assert (read(TGI, Reached(kv_tokens=1200)).kv_usage, read(TGI, Reached(kv_tokens=300)).kv_usage) == (0.5, 1.0)
    metrics = read(TGI, PLAIN)
    assert (metrics.kv_usage, metrics.running, metrics.waiting) == (None, 3, 1)


@pytest.mark.parametrize("page", [b"", b"<html>", b"sglang:token_usage 7.0\n", b"sglang:token_usage NaN\n", b"\xff"])
def test_gauges_that_are_absent_or_impossible_are_unknown(page):
    metrics = gauge_reader(SGLANG_GAUGES)(page, PLAIN)
    assert (metrics.kv_usage, metrics.running) == (None, None)
    assert "sglang:num_running_reqs" in metrics.missing


@pytest.mark.parametrize(
    ("gauges", "page", "step"),
    [
        (SGLANG_GAUGES, SGLANG, b"sglang:num_used_tokens 1\n"),
        (
            TGI_GAUGES,
            TGI + b"tgi_request_generated_tokens_sum 9\n",
            b'tgi_batch_inference_success{method="decode"} 1\n',
        ),
    ],
    ids=["sglang", "tgi"],
)
def test_one_whose_counters_move_when_a_request_ends_shows_its_steps(gauges, page, step):
    read, work = gauge_reader(gauges), SilenceMeter(30.0)
    for request in (RequestId(1), RequestId(2)):
        work.dispatched(request, 10, 0.0, streams=False)
    work.scraped(read(page, PLAIN), 0.0)
    work.scraped(read(page, PLAIN), 31.0)
    assert work.stalled(31.0) is not None
    assert work.scraped(read(page + step, PLAIN), 32.0)
    assert work.stalled(32.0) is None


def test_the_last_iteration_is_how_it_is():
    body = json.dumps([*json.loads(iteration(used=1)), *json.loads(iteration(used=8))]).encode()
    metrics = IterationReader().read(body, PLAIN)
    assert (metrics.kv_usage, metrics.running, metrics.waiting) == (0.25, 2, 1)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'[{"kvCacheStats":7}]', b'[{"numActiveRequests":-1}]', b"\xff"])
def test_no_iteration_tells_nothing(body):
    assert IterationReader().read(body, PLAIN) == EngineMetrics()


def test_no_iteration_since_the_last_one_is_an_engine_that_does_nothing():
    """What the last one held, it holds no more. Kept, it was taken for what others hold."""
    reader = IterationReader()
    assert reader.read(iteration(used=8), PLAIN).kv_usage == 0.25
    assert reader.read(b"[]", PLAIN) == EngineMetrics(kv_usage=0.0, running=0)
    assert reader.read(b"", PLAIN) == EngineMetrics()


def test_only_long_without_an_iteration_is_it_certain_that_nothing_runs_or_waits():
    """One may take seconds, over a prompt that is read in one piece."""
    reader = IterationReader()
    for _ in range(2):
        reader.read(iteration(used=8), PLAIN)
        assert [reader.read(b"[]", PLAIN).waiting for _ in range(12)] == [None] * 10 + [0, 0]


def test_iterations_without_end_are_not_read():
    last = iteration(maxNumActiveRequests=8).strip(b"[]")
    assert IterationReader().read(b"[" + b"{}," * 20_000 + last + b"]", PLAIN) == EngineMetrics()
    assert IterationReader().read(b"[" + b"{}," * 2_000 + last + b"]", PLAIN) != EngineMetrics()


def test_a_cache_without_blocks_is_unknown():
    metrics = IterationReader().read(iteration(most=0), PLAIN)
    assert (metrics.kv_usage, metrics.cache_config) == (None, {})


def test_sglang_tells_its_cache_and_its_slots():
    about = {"version": "0.5.4", "max_total_num_tokens": 500, "max_running_requests": 8, "dp_size": 2}
    listed = models("m", max_model_len=100, root="org/m")
    identity = identify_sglang(listed, json.dumps(about).encode())
    assert (identity.kind, identity.root, identity.max_model_len) == ("sglang", "org/m", 100)
    assert (identity.kv_tokens, identity.slots, identity.shares_prefix) == (1000, 8, True)
    assert not identify_sglang(listed, json.dumps(about | {"disable_radix_cache": True}).encode()).shares_prefix
    told_nothing = identify_sglang(listed, None)
    assert (told_nothing.kv_tokens, told_nothing.slots, told_nothing.shares_prefix) == (None, None, False)


def test_sglang_finds_an_adapter_only_behind_the_name_of_its_base():
    """Asked for the name that its list has, it answers with the base model."""
    cards = [{"id": "org/m", "max_model_len": 100}, {"id": "sql", "parent": "org/m"}]
    identity = identify_sglang(json.dumps({"data": cards}).encode(), None)
    assert (identity.names, identity.loras) == (("org/m",), ("org/m:sql",))


def test_tgi_is_asked_for_by_its_model_or_by_its_own_name():
    about = b'{"max_total_tokens":100,"max_concurrent_requests":9,"version":"3.3.7"}'
    identity = identify_tgi(models("org/m"), about)
    assert (identity.names, identity.max_model_len, identity.slots) == (("org/m", "tgi"), 100, 9)


def test_tensorrt_llm_tells_no_length():
    assert identify_tensorrt_llm(models("m"), b'{"version":"1.2"}').max_model_len == 0


def test_an_ollama_has_the_longest_context_that_is_loaded():
    """A small model beside, as for embeddings, shortens no other."""

    def loaded(*lengths):
        return json.dumps({"models": [{"name": "x", "context_length": length} for length in lengths]}).encode()

    identity = identify_ollama(models("a:latest", "b:7b"), loaded(8192, 2048))
    assert (identity.names, identity.max_model_len, identity.slots) == (("a:latest", "b:7b", "a"), 8192, 1)
    assert identify_ollama(models("a"), loaded()).max_model_len == OLLAMA_LENGTH
    assert identify_ollama(models("a"), None).max_model_len == OLLAMA_LENGTH


def test_two_ollamas_with_the_same_models_are_alike_whichever_each_pulled_last():
    assert identify_ollama(models("b:7b", "a:latest"), None) == identify_ollama(models("a:latest", "b:7b"), None)


@pytest.mark.parametrize("identify", [identify_sglang, identify_tgi, identify_tensorrt_llm, identify_ollama])
@pytest.mark.parametrize("listed", [b"", b"[]", b'{"data":[]}', b'{"data":5}', b"[" * 100_000])
def test_one_that_lists_no_model_is_not_taken(identify, listed):
    with pytest.raises(UnidentifiedError):
        identify(listed, b'{"max_total_tokens":100}')


@pytest.mark.parametrize("about", [None, b"", b"{}", b'{"max_total_tokens":0}'])
def test_a_tgi_without_a_length_is_not_taken(about):
    with pytest.raises(UnidentifiedError, match="max_total_tokens"):
        identify_tgi(models("m"), about)


def test_a_capacity_is_as_configured_else_as_told():
    identity = identify_tgi(models("m"), b'{"max_total_tokens":100,"max_concurrent_requests":9}')
    assert plain_capacity(EngineMetrics(), identity, PLAIN) == Capacity(
        100, kv_blocks=None, block_size=1, max_num_seqs=9, shares_prefix=False, holds_limit=True
    )
    configured = plain_capacity(EngineMetrics(), identity, Reached(kv_tokens=500, max_num_seqs=4))
    assert (configured.kv_blocks, configured.max_num_seqs) == (500, 4)


def test_where_requests_are_preempted_they_hold_no_limit():
    identity = identify_sglang(models("m", max_model_len=100), None)
    assert not plain_capacity(EngineMetrics(), identity, PLAIN).holds_limit


def test_blocks_and_slots_come_from_the_gauges_where_those_tell_them():
    identity = identify_tensorrt_llm(models("m"), None)
    metrics = IterationReader().read(iteration(maxNumActiveRequests=8), PLAIN)
    found = gauged_capacity(metrics, identity, PLAIN)
    assert (found.kv_blocks, found.block_size, found.max_num_seqs, found.holds_limit) == (32, 32, 8, True)
    assert gauged_capacity(metrics, identity, Reached(max_num_seqs=4)).max_num_seqs == 4
