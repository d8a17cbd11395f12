import json

import pytest

from engine.plan.budget import Request
from engine.plan.hub import CheckpointError
from engine.plan.ladder import LlamaRequest
from engine.plan.named import read_named
from tests.unit.engine.plan.models import LLAMA_8B, hardware
from tests.unit.engine.plan.written import LLAMA, tensors, written


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return str(tmp_path)


@pytest.fixture
def gguf(tmp_path):
    return str(written(tmp_path / "m.gguf", LLAMA, tensors()))


def test_arguments_are_for_all_that_are_for_the_engine_of_the_first(folder, gguf):
    given = ("--max-model-len", "8192", "--revision", "main")
    whole, small, file = read_named((folder, f"{folder}/", gguf), given, hardware(), {})
    assert isinstance(whole, Request)
    assert isinstance(file, LlamaRequest)
    assert (whole.arguments.words, file.given) == (given, ())
    assert small.arguments.words == given[:2], "a revision is one of the first"
    file, whole = read_named((gguf, folder), ("-c", "8192"), hardware(), {})
    assert (file.given, whole.arguments.words) == (("-c", "8192"), ())


def test_one_that_cannot_be_read_is_told(folder):
    with pytest.raises(CheckpointError, match="there is no folder"):
        read_named((folder, "./nowhere/at/all"), (), hardware(), {})
