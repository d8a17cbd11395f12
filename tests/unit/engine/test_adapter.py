import json

import pytest

from engine.adapter import RANKS, AdapterError, expect_fitting, other_name, rank_for, read_adapter
from tests.unit.engine.adapters import adapter

BASE = {"hidden_size": 128, "num_hidden_layers": 2}


def test_its_facts_are_read_from_its_config_and_its_weights(tmp_path):
    found = read_adapter(adapter(tmp_path / "a", rank_pattern={"q_proj": 32}))
    assert (found.rank, found.base, found.width, found.layers) == (32, "base", 128, 2)


def test_weights_in_another_format_tell_nothing_more(tmp_path):
    folder = adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert (read_adapter(folder).width, read_adapter(folder).layers) == (None, 0)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda folder: folder.rename(folder.with_name("b")), "there is no folder"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "has no rank `r`"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "has no rank `r`"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": "8"}'), "no number above 0"),
        (lambda folder: (folder / "adapter_config.json").write_text('{"r": 0}'), "no number above 0"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"lfs"), "is damaged"),
    ],
)
def test_one_that_is_not_whole_is_refused(tmp_path, broken, said):
    folder = adapter(tmp_path / "a")
    broken(folder)
    with pytest.raises(AdapterError, match=said) as raised:
        read_adapter(folder)
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"width": 256}, "its weights are for a width of 256, and m has 128; it says that it is of base"),
        ({"layers": 3}, "it changes layer 3, and m has 2"),
        ({"rank": 64}, "its rank is 64, and the engine takes 16\nGive --max-lora-rank 64"),
        ({"rank": 65}, "Give --max-lora-rank 128"),
        ({"rank": 1000}, "vLLM takes 512 at most"),
    ],
)
def test_one_for_another_base_or_of_too_high_a_rank_is_refused(tmp_path, made, said):
    with pytest.raises(AdapterError) as raised:
        expect_fitting(read_adapter(adapter(tmp_path / "a", **made)), BASE, "m", 16)
    assert said in str(raised.value)


@pytest.mark.parametrize("base", [BASE, {"text_config": BASE}, {}])
def test_one_that_fits_is_taken_and_so_is_one_of_which_nothing_is_known(tmp_path, base):
    expect_fitting(read_adapter(adapter(tmp_path / "a", rank=16)), base, "m", 16)
    expect_fitting(read_adapter(adapter(tmp_path / "a", rank=64)), base, "m", None)


@pytest.mark.parametrize(
    ("base", "model", "other"),
    [
        ("owner/Model", "owner/Model", None),
        ("owner/Model", "/models/model/", None),
        (None, "owner/Model", None),
        ("owner/Model-4bit", "owner/Model", "owner/Model-4bit"),
    ],
)
def test_a_base_by_another_name_is_noticed(tmp_path, base, model, other):
    folder = adapter(tmp_path / "a")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": base}))
    assert other_name(read_adapter(folder), model) == other


def test_the_lowest_limit_that_takes_a_rank():
    assert [rank_for(rank) for rank in (1, 2, 8, 9, 512)] == [1, 8, 8, 16, 512]
    assert list(RANKS) == sorted(RANKS)
