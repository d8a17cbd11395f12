import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.diagnosis.model import examine

WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "Hello": 3, "<|im_start|>": 4, "user": 5}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 6, "eos_token_id": 2}
TEMPLATE = "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }}{% endfor %}"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HOME": "/nowhere"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer of six words, and weights that are an embedding of six rows."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", "<|im_start|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    written: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    weights(tmp_path, rows=6)
    configured(tmp_path)
    return tmp_path


def weights(folder: Path, rows: int) -> None:
    tensor = {"dtype": "F32", "shape": [rows, 2], "data_offsets": [0, rows * 8]}
    header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(rows * 8))


def configured(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def signs(folder: Path | str) -> list[str]:
    return [found.sign for found in examine(str(folder), OFFLINE).findings]


def test_a_model_with_nothing_wrong(model: Path) -> None:
    examined = examine(str(model), OFFLINE)
    assert examined.findings == ()
    assert "vocabulary 6, embedding rows 6, tokenizer ids up to 5" in examined.looked_at


def test_a_vocabulary_over_the_embedding(model: Path) -> None:
    weights(model, rows=5)
    assert signs(model) == ["weights for another vocabulary", "token beyond the embedding"]


def test_special_ids_of_another_tokenizer(model: Path) -> None:
    configured(model, eos_token_id=128009)
    assert signs(model) == ["special ids of another tokenizer"] * 2


def test_a_model_without_a_chat_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert signs(model) == ["no chat template"]


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ x.y.z }}", TEMPLATE.replace("im_start", "header")]
)
def test_a_foreign_chat_template(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert signs(model) == ["chat template of another model"]


def test_a_damaged_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes()[:200])
    assert signs(model) == ["tokenizer not loaded"]


def test_a_model_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert signs(model) == ["missing weights"]


def test_weights_cut_short(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[:-8])
    (found,) = examine(str(model), OFFLINE).findings
    assert found.sign == "model not whole"
    assert found.cause.startswith(f"{model}/model.safetensors")
    assert found.remedy


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert signs(tmp_path / "no") == ["model not whole"]
    assert signs("nobody/nothing") == ["model not whole"]
