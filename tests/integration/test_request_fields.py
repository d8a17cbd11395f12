"""The fields of vLLM's own request models, against our tables of them."""

import json
import subprocess
from pathlib import Path

import pytest

from gateway.wire.fields import FIELDS, OTHER_FIELDS, Api
from tests.fakes.foreign.fields import RECORDED

pytestmark = pytest.mark.engine

_PROMPT, _OTHERS = FIELDS["vllm"].prompt, FIELDS["vllm"].others

_MODELS = {
    Api.CHAT: "vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionRequest",
    Api.BATCH: "vllm.entrypoints.openai.chat_completion.protocol.BatchChatCompletionRequest",
    Api.COMPLETIONS: "vllm.entrypoints.openai.completion.protocol.CompletionRequest",
    Api.RESPONSES: "vllm.entrypoints.openai.responses.protocol.ResponsesRequest",
    Api.MESSAGES: "vllm.entrypoints.anthropic.protocol.AnthropicMessagesRequest",
}
_READ = """
import importlib, json, sys
def fields(path):
    module, _, name = path.rpartition(".")
    return sorted(getattr(importlib.import_module(module), name).model_fields)
print(json.dumps({path: fields(path) for path in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def fields_of_vllm(quick_python: Path) -> dict[Api, list[str]]:
    argv = [quick_python, "-c", _READ, *_MODELS.values()]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    read = json.loads(printed)
    return {api: read[path] for api, path in _MODELS.items()}


@pytest.mark.parametrize("api", list(Api))
def test_every_field_is_in_one_table(api: Api, fields_of_vllm: dict[Api, list[str]]) -> None:
    theirs = set(fields_of_vllm[api])
    assert len(theirs) > 10
    assert theirs - _PROMPT[api].keys() - _OTHERS.keys() - OTHER_FIELDS == set(), "decide what becomes of these"


def test_no_table_names_a_field_that_vllm_has_not(fields_of_vllm: dict[Api, list[str]]) -> None:
    assert set().union(*fields_of_vllm.values()) >= _OTHERS.keys()
    recorded = [names for engine in RECORDED.values() for names in engine.fields.values()]
    assert set().union(*fields_of_vllm.values(), *recorded) >= OTHER_FIELDS
    # A batch makes a chat request of each of its conversations, and takes what that takes.
    known = {api: set(fields) for api, fields in fields_of_vllm.items()}
    known[Api.BATCH] |= known[Api.CHAT]
    assert {api: _PROMPT[api].keys() - known[api] for api in Api} == {api: set() for api in Api}
