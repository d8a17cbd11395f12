from typing import Any

import pytest

from gateway.tokens.fields import as_read, prompt_fields
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.wire.engine_kinds import KINDS
from gateway.wire.fields import REFUSED_FIELDS
from gateway.wire.request import Api, ForbiddenFieldError, parse

USER = {"role": "user", "content": "Hi"}


def of(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


@pytest.mark.parametrize("name", REFUSED_FIELDS)
def test_a_refusal_names_the_field_and_why(name: str) -> None:
    with pytest.raises(ForbiddenFieldError) as caught:
        parse(Api.CHAT, b'{"%s": []}' % name.encode())
    assert caught.value.param == name
    assert REFUSED_FIELDS[name] in caught.value.message
    parse(Api.CHAT, b'{"%s": null}' % name.encode())


@pytest.mark.parametrize(
    ("kind", "api", "fields", "error"),
    [
        ("vllm", Api.COMPLETIONS, {"suffix": "x"}, NotCountableError),
        ("vllm", Api.RESPONSES, {"previous_response_id": "resp_1"}, NotCountableError),
        ("vllm", Api.RESPONSES, {"prompt": {"id": "p"}}, NotCountableError),
        ("vllm", Api.CHAT, {"mm_processor_kwargs": {"crops": 4}}, NeedsEngineError),
        ("vllm", Api.BATCH, {"media_io_kwargs": {"image": {}}}, NeedsEngineError),
        ("sglang", Api.CHAT, {"reasoning": {"effort": "none"}}, NeedsEngineError),
        ("sglang", Api.CHAT, {"thinking": {"type": "adaptive"}}, NeedsEngineError),
        ("sglang", Api.CHAT, {"task": "title"}, NeedsEngineError),
        ("tgi", Api.CHAT, {"tool_prompt": "Use them."}, NeedsEngineError),
        ("tensorrt-llm", Api.CHAT, {"thinking": {"type": "enabled"}}, NotCountableError),
        ("tensorrt-llm", Api.MESSAGES, {"context_management": {"edits": []}}, NotCountableError),
        ("ollama", Api.CHAT, {"reasoning": {"effort": "high"}}, NotCountableError),
        ("ollama", Api.COMPLETIONS, {"suffix": "x"}, NotCountableError),
    ],
)
def test_what_cannot_be_counted_here_is_left_alone(
    kind: str, api: Api, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        as_read(api, fields, of(kind))
    as_read(api, dict.fromkeys(fields), of(kind))


@pytest.mark.parametrize(
    ("kind", "api", "name"),
    [
        ("sglang", Api.CHAT, "truncate_prompt_tokens"),
        ("sglang", Api.COMPLETIONS, "truncate_prompt_tokens"),
        ("sglang", Api.CHAT, "documents"),
        ("ollama", Api.CHAT, "truncate_prompt_tokens"),
        ("ollama", Api.CHAT, "chat_template_kwargs"),
        ("llama-server", Api.COMPLETIONS, "truncate_prompt_tokens"),
        ("tgi", Api.COMPLETIONS, "add_special_tokens"),
        ("tensorrt-llm", Api.RESPONSES, "chat_template_kwargs"),
    ],
)
def test_what_an_engine_does_not_read_does_not_count(kind: str, api: Api, name: str) -> None:
    fields = {"model": "m", "messages": [USER], "prompt": "x", name: 1} if api is not Api.RESPONSES else {name: 1}
    assert as_read(api, fields, of(kind)) == {key: value for key, value in fields.items() if key != name}
    assert name in prompt_fields("vllm", api)
    assert as_read(api, fields) == fields


@pytest.mark.parametrize("api", Api)
def test_a_field_that_kinds_treat_in_different_ways_is_not_counted(api: Api) -> None:
    fields = {"truncate_prompt_tokens": 1, "chat_template_kwargs": {}, "messages": [USER]}
    assert as_read(api, fields, of("vllm")) == fields
    if api in (Api.CHAT, Api.COMPLETIONS):
        with pytest.raises(NotCountableError, match="truncate_prompt_tokens"):
            as_read(api, fields, of("vllm", "sglang"))


def test_an_api_that_a_kind_does_not_serve_is_read_as_vllm_does() -> None:
    assert {prompt_fields(kind, Api.BATCH)["messages"] for kind in KINDS} == {"counted"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi", "Content": "much more"},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "TEXT": "much more"}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "Arguments": "{}"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"Text": "x"}]}]},
        {"role": "assistant", "rea\u017foning": "long"},
    ],
)
def test_a_message_with_a_name_in_other_letters_is_not_counted_for_an_engine_that_reads_it(
    message: dict[str, Any],
) -> None:
    fields = {"messages": [USER, message]}
    assert as_read(Api.CHAT, fields, of("sglang")) == fields
    with pytest.raises(NotCountableError, match="other letters"):
        as_read(Api.CHAT, fields, of("ollama"))


def test_names_that_a_client_makes_may_have_any_letters() -> None:
    schema = {"type": "object", "properties": {"Name": {"type": "string"}, "Content": {}}}
    tool = {"type": "function", "function": {"name": "Find", "parameters": schema}}
    use = {"type": "tool_use", "id": "1", "name": "Find", "input": {"Name": "x", "Text": "y"}}
    fields = {
        "messages": [USER | {"providerOptions": {"Text": 1}}, {"role": "assistant", "content": [use]}],
        "tools": [tool],
    }
    assert as_read(Api.CHAT, fields, of("ollama")) == fields
