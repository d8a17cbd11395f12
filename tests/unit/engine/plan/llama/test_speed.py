import pytest

from engine.plan.llama.settings import LlamaSettings
from engine.plan.llama.speed import HOST_BANDWIDTH, Reading, reading
from tests.unit.engine.plan.llama.models import llama_8b, mixture, model


def settings(gpu_layers, **more):
    return LlamaSettings(gpu_layers, 8192, **more)


def test_a_token_reads_all_weights_but_the_input_and_the_tokens_before_it():
    found = llama_8b()
    read = reading(found, settings(33), 4096)
    assert (read.card, read.host) == (found.weights - found.input + 4096 * 128 * 1024, 0)


def test_layers_on_the_host_are_read_there_with_their_cache():
    found = llama_8b()
    whole, part, none = (reading(found, settings(layers), 1000) for layers in (33, 17, 0))
    assert {one.card + one.host for one in (whole, part, none)} == {whole.card}
    assert part.host == sum(layer.weights for layer in found.layers[:16]) + 16 * 4096 * 1000
    assert none.card == 0


def test_a_cache_on_the_host_is_read_there():
    read = reading(llama_8b(), settings(33, kv_on_host=True), 1000)
    assert read.host == 32 * 4096 * 1000


def test_of_experts_only_those_in_use_are_read():
    found = mixture()
    layer = found.layers[0]
    host = reading(found, settings(49, host_experts=1), 0)
    assert host.host == layer.experts * 8 // 128
    assert host.card < found.weights / 5


def test_of_a_window_no_more_is_read_than_it_has():
    found = model("gemma3", 6, attention__sliding_window=512)
    longer = [reading(found, settings(7), tokens).card for tokens in (512, 1512, 2512)]
    assert longer[1] - longer[0] == longer[2] - longer[1] == 1000 * 2 * 128, "the one layer without a window"


def test_a_tied_output_is_read_whole():
    found = model(tied=True)
    assert reading(found, settings(5), 0).card == found.weights
    assert reading(found, settings(0), 0).host == found.weights


def test_seconds_are_bytes_by_the_bandwidth_of_where_they_lie():
    assert Reading(360 * 10**9, HOST_BANDWIDTH).seconds(360 * 10**9) == pytest.approx(2.0)
    assert Reading(0, HOST_BANDWIDTH).seconds(None) == pytest.approx(1.0)
    assert Reading(1, HOST_BANDWIDTH).seconds(None) is None
