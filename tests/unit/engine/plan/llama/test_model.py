import pytest

from engine.plan.llama.model import LlamaModel
from engine.plan.llama.said import UnknownModelError
from tests.unit.engine.plan.llama.models import described, llama_8b, mixture, model
from tests.unit.engine.plan.written import LLAMA, tensors


def test_weights_are_those_of_the_file_each_once():
    every = tensors()
    found = model()
    assert found.weights == described(LLAMA, every).bytes
    assert found.tied == 0
    assert found.input == 256 * 1000 // 32 * 34


def test_a_tied_output_is_the_inputs_tensor():
    found = model(tied=True)
    assert found.tied == found.input == 256 * 1000 // 32 * 34
    assert found.output == 256 * 4


def test_layers_that_only_draft_are_not_loaded():
    found = model(nextn_predict_layers=1)
    assert (len(found.layers), found.idle_layers) == (3, 1)
    assert found.weights < model().weights


def test_experts_are_told_from_the_rest():
    found = mixture()
    assert found.has_experts
    assert not llama_8b().has_experts
    assert (found.experts, found.experts_used, found.expert_width) == (128, 8, 768)
    assert found.layers[0].experts == 3 * 128 * 2048 * 768 // 256 * 144
    assert found.layers[0].weights < found.layers[0].experts / 10


def test_an_index_beside_the_cache_is_said_to_be_left_out():
    assert "index" in model("deepseek32").notes[0]
    assert model().notes == ()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"general.architecture": None}, "does not say its architecture"),
        ({"general.architecture": "clip"}, "--mmproj"),
        ({"general.type": "adapter"}, "LoRA adapter"),
        ({"general.type": "imatrix"}, "no model"),
        ({"llama.block_count": None}, "does not say its llama.block_count"),
        ({"llama.block_count": 0}, "says it has 0 layers"),
        ({"llama.block_count": 100_000}, "says it has 100000 layers"),
        ({"llama.block_count": "four"}, "says 'four' is its llama.block_count"),
        ({"llama.embedding_length": -1}, "that cannot be"),
        ({"llama.attention.head_count_kv": [2, 2]}, "says 2 values of its llama.attention.head_count_kv for 4 layers"),
    ],
)
def test_what_is_no_whole_model_is_told(said, told):
    metadata = {key: one for key, one in (LLAMA | said).items() if one is not None}
    with pytest.raises(UnknownModelError, match=told) as error:
        LlamaModel.of(described(metadata, tensors()))
    assert "m.gguf" in str(error.value)


def test_a_vocabulary_is_no_model():
    with pytest.raises(UnknownModelError, match="a vocabulary without weights"):
        LlamaModel.of(described(LLAMA, []))
