from engine.plan.llama.cells import cache_cells, step
from engine.plan.llama.settings import LlamaSettings
from tests.unit.engine.plan.llama.models import llama_8b, model


def settings(**more):
    return LlamaSettings(**{"gpu_layers": 33, "context": 8192} | more)


def test_contexts_are_padded_and_split_as_llama_server_does():
    found = llama_8b()
    assert cache_cells(found, settings(context=1000), window=False) == (1024, 1)
    assert cache_cells(found, settings(context=1000, slots=3, unified=False), window=False) == (512, 3)
    assert cache_cells(found, settings(context=4096, slots=4, unified=False), window=False) == (1024, 4)
    assert step(settings(context=100)) == 256


def test_a_cache_of_a_window_has_room_for_each_slot_and_a_step():
    found = model("gemma3", 13, attention__sliding_window=512)
    assert cache_cells(found, settings(), window=True) == (4 * 512 + 512, 1)
    assert cache_cells(found, settings(context=1024), window=True) == (1024, 1), "no more than the context"
    assert cache_cells(found, settings(unified=False), window=True) == (1024, 4)
