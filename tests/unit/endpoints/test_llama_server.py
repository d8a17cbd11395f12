import json

import pytest

from gateway.admission.events import Capacity
from gateway.config.endpoint import Reached
from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.foreign import plain_capacity
from gateway.endpoints.identity import UnidentifiedError
from gateway.endpoints.llama_server import SlotReader, identify_llama_server

PLAIN = Reached()
IDLE = {"id": 1, "n_ctx": 256, "is_processing": False}
PROPERTIES = json.dumps({"default_generation_settings": {"n_ctx": 256}, "total_slots": 4, "build_info": "b7"}).encode()


def busy(task, prompt, decoded, remain, *, processed=None, cached=0, ctx=256):
    """A slot as `/slots` shows it, without its `params`."""
    return {
        "id": 0,
        "n_ctx": ctx,
        "speculative": False,
        "is_processing": True,
        "id_task": task,
        "n_prompt_tokens": prompt + decoded,
        "n_prompt_tokens_processed": prompt if processed is None else processed,
        "n_prompt_tokens_cache": cached,
        "next_token": [{"has_next_token": True, "has_new_line": False, "n_remain": remain, "n_decoded": decoded}],
    }


def read(reader, *slots, settings=PLAIN):
    return reader.read(json.dumps(slots).encode(), settings)


def models(*, n_ctx=256, **card):
    meta = {"n_vocab": 49152, "n_ctx": n_ctx, "n_ctx_train": 8192}
    return json.dumps({"data": [{"id": "m.gguf", "owned_by": "llamacpp", "meta": meta} | card]}).encode()


def test_the_gauge_is_what_the_busy_slots_may_come_to_hold():
    metrics = read(SlotReader(), busy(1, 40, 10, 50), IDLE, busy(2, 20, 0, 8))
    assert (metrics.kv_usage, metrics.running) == (128 / 256, 2)


def test_nothing_waits_where_no_slot_is_busy():
    assert read(SlotReader(), IDLE, IDLE).waiting == 0
    assert read(SlotReader(), busy(1, 40, 10, 50), IDLE).waiting is None, "it does not tell"


def test_what_the_gauge_tells_of_a_request_stays_the_same():
    """It has read nothing of its prompt, some, all; then its tokens count as part of the prompt, too."""
    told = [busy(1, 40, 0, 60, processed=0), busy(1, 40, 0, 60, processed=20), busy(1, 40, 0, 60)]
    told += [busy(1, 40, seen, 60 - seen, processed=9, cached=31) for seen in (1, 30, 60)]
    assert {read(SlotReader(), slot, IDLE).kv_usage for slot in told} == {100 / 256}


def test_an_older_one_does_not_tell_what_came_from_its_cache():
    slot = busy(1, 40, 10, 50, processed=9) | {"n_prompt_tokens": 40}
    del slot["n_prompt_tokens_cache"]
    assert read(SlotReader(), slot, IDLE).kv_usage == 100 / 256


def test_a_request_without_a_limit_may_fill_the_context():
    assert read(SlotReader(), busy(1, 40, 10, -1), IDLE).kv_usage == 1.0


def test_the_gauge_goes_by_the_configured_size_of_the_cache():
    assert read(SlotReader(), busy(1, 40, 10, 50), settings=Reached(kv_tokens=1000)).kv_usage == 0.1


def test_tokens_are_added_up_over_slots_and_requests():
    reader = SlotReader()
    assert read(reader, busy(1, 40, 0, 60, processed=0)).generation_tokens == 0
    assert read(reader, busy(1, 40, 7, 53), busy(2, 9, 1, 5)).generation_tokens == 8
    last = read(reader, busy(2, 9, 4, 2), busy(3, 5, 2, 1))
    assert (last.generation_tokens, last.prompt_tokens) == (13, 54)
    assert read(reader, IDLE).generation_tokens == 13


@pytest.mark.parametrize(
    "slot", [busy(1, 40, 10, 50, ctx=-1), busy(1, -40, 10, 50), busy(1, 40, -10, 50), busy(1, 40, 10, -2)]
)
def test_a_slot_that_says_less_than_nothing_is_no_gauge(slot):
    assert read(SlotReader(), slot, busy(2, 20, 0, 8)) == EngineMetrics()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"error":{"code":501}}', b'[{"n_ctx":"x"}]', b"\xff", b"[" * 100_000])
def test_slots_that_are_not_told_are_no_metrics(body):
    assert SlotReader().read(body, PLAIN) == EngineMetrics()


def test_its_identity():
    identity = identify_llama_server(models(aliases=["m.gguf", "small"]), PROPERTIES)
    assert (identity.names, identity.max_model_len, identity.slots) == (("m.gguf", "small"), 256, 4)
    assert (identity.kind, identity.version, identity.root) == ("llama-server", "b7", None)


def test_its_length_is_told_by_either_answer():
    assert identify_llama_server(models(), None).max_model_len == 256
    assert identify_llama_server(models(meta=None), PROPERTIES).max_model_len == 256


@pytest.mark.parametrize(
    ("listed", "properties"),
    [
        (b"[]", None),
        (b'{"data":[]}', PROPERTIES),
        (models(meta=None), None),
        (models(n_ctx=0), None),
        (models(n_ctx=-1), None),
        (models(), b"[]"),
    ],
)
def test_one_that_tells_no_model_with_a_length_is_not_taken(listed, properties):
    with pytest.raises(UnidentifiedError, match="llama-server"):
        identify_llama_server(listed, properties)


def test_its_slots_share_one_cache_unless_it_is_said_to_be_larger():
    identity = identify_llama_server(models(), PROPERTIES)
    shared = Capacity(256, kv_blocks=256, block_size=1, max_num_seqs=4, shares_prefix=False, holds_limit=True)
    assert plain_capacity(EngineMetrics(), identity, PLAIN) == shared
    split = plain_capacity(EngineMetrics(), identity, Reached(kv_tokens=1024, max_num_seqs=3))
    assert (split.max_model_len, split.kv_blocks, split.max_num_seqs) == (256, 1024, 3)


def test_one_that_tells_no_slots_is_not_limited_to_none():
    properties = json.dumps({"total_slots": 0}).encode()
    identity = identify_llama_server(models(), properties)
    assert identity.slots is None
