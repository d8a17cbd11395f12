import gguf
import pytest

from engine.plan.llama.blocks import BLOCKS, CACHE_TYPES

ONLY_IN_MEMORY = {"Q8_1", "Q8_K"}


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGML_QUANT_SIZES if kind.name not in ONLY_IN_MEMORY])
def test_a_block_is_as_large_as_ggmls_own_library_says(kind):
    block = BLOCKS[kind.value]
    assert (block.name.upper(), block.elements, block.bytes) == (kind.name.upper(), *gguf.GGML_QUANT_SIZES[kind])


def test_what_a_cache_may_be_of_is_known():
    assert CACHE_TYPES["q8_0"].bytes == 34
    assert len(CACHE_TYPES) == 9
