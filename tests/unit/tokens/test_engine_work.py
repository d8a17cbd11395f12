import contextlib
import json
import pickle
from typing import Any

import pytest

from gateway.tokens.engine_work import EngineCall, engine_work
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import Api, InvalidRequestError

USER = {"role": "user", "content": "the fox"}


TOOL = {"function": {"name": "f"}}


FAR = 10**6


def asked(api: Api, fields: dict[str, Any]) -> list[Any]:
    return [
        (prompt.path, json.loads(prompt.body)) if isinstance(prompt, EngineCall) else prompt
        for prompt in engine_work(api, json.dumps(fields).encode(), FAR).prompts
    ]


def test_a_chat_is_asked_of_the_engine_with_what_its_route_does_not_know_as_variables() -> None:
    fields = {
        "model": "m",
        "messages": [USER, {"role": "assistant", "reasoning_content": "Hm."}],
        "tools": [{"function": {"name": "f"}}],
        "documents": [{"text": "A."}],
        "reasoning_effort": "none",
        "chat_template_kwargs": {"flavour": "sweet"},
        "temperature": 1,
        "stream": True,
    }
    [(path, body)] = asked(Api.CHAT, fields)
    assert path == "/tokenize"
    assert body == {
        "model": "m",
        "messages": [USER, {"role": "assistant", "reasoning": "Hm."}],
        "tools": [{"function": {"name": "f"}}],
        "chat_template_kwargs": {
            "flavour": "sweet",
            "documents": [{"text": "A."}],
            "reasoning_effort": "none",
            "enable_thinking": False,
        },
    }


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("api", "fields", "shown"),
    [
        (Api.CHAT, {"messages": [USER], "response_format": SCHEMA}, {"response_format": SCHEMA}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "none"}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": NAMED}, {"tool_choice": NAMED}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}, {}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "response_format": None, "tool_choice": None}, {}),
        (Api.CHAT, {"messages": [USER], "tools": [], "tool_choice": "none"}, {}),
        (
            Api.BATCH,
            {"messages": [[USER]], "tool_choice": "none", "response_format": SCHEMA},
            {"response_format": SCHEMA},
        ),
        (
            Api.RESPONSES,
            {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "required"},
            {"tool_choice": "required"},
        ),
        (Api.RESPONSES, {"input": "hi", "text": {"format": SCHEMA}, "tool_choice": "auto"}, {}),
    ],
)
def test_what_some_models_show_in_their_prompts_is_asked_for_where_nobody_knows_how_they_build_them(
    api: Api, fields: dict[str, Any], shown: dict[str, Any]
) -> None:
    fields |= {"chat_template_kwargs": {"flavour": "sweet"}}
    body = json.dumps(fields).encode()
    own = engine_work(api, body, FAR)
    [known], [unknown] = (
        [json.loads(prompt.body) for prompt in work.prompts if isinstance(prompt, EngineCall)]
        for work in (own, engine_work(api, body, FAR, proven=False))
    )
    assert unknown == known | {"chat_template_kwargs": known["chat_template_kwargs"] | shown}
    assert own.exact
    assert engine_work(api, body, FAR, proven=False).exact is not bool(shown)


def test_a_schema_that_conversations_share_is_bounded_where_it_is_asked_for() -> None:
    body = json.dumps({"messages": [[USER]] * 2000, "response_format": {"type": "x" * 20_000}}).encode()
    assert engine_work(Api.BATCH, body, FAR).prompts
    with pytest.raises(InvalidRequestError, match="2000 conversations brings response_format again"):
        engine_work(Api.BATCH, body, FAR, proven=False)


def test_messages_go_to_the_engine_as_they_came() -> None:
    body = b'{ "messages" : [ ] }'
    assert engine_work(Api.MESSAGES, body, FAR).prompts == (EngineCall("/v1/messages/count_tokens", body),)


def test_each_text_is_a_question_and_ids_are_none() -> None:
    assert asked(Api.COMPLETIONS, {"prompt": ["a", "b"], "model": "m"}) == [
        ("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": True}),
        ("/tokenize", {"model": "m", "prompt": "b", "add_special_tokens": True}),
    ]
    assert asked(Api.COMPLETIONS, {"prompt": [1, 2]}) == [2]


def test_a_response_is_asked_for_as_the_chat_it_becomes() -> None:
    assert asked(Api.RESPONSES, {"input": "Hi.", "model": "m"}) == [
        (
            "/tokenize",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "Hi."}],
                "chat_template_kwargs": {},
                "add_generation_prompt": True,
                "continue_final_message": False,
                "add_special_tokens": True,
            },
        )
    ]


def test_what_nests_deeper_than_an_engine_can_be_asked_is_refused() -> None:
    for depth in (*range(900, 1000), 100_000):  # how deep it can is the Python's affair
        parameters = b"[" * depth + b"]" * depth
        body = b'{"input":"hi","tools":[{"type":"function","name":"f","parameters":{"a":%b}}]}' % parameters
        with contextlib.suppress(InvalidRequestError):
            engine_work(Api.RESPONSES, body, FAR)
    with pytest.raises(InvalidRequestError, match=r"too deeply|not valid JSON"):
        engine_work(Api.RESPONSES, body, FAR)


def test_an_image_of_a_response_is_counted_by_the_engine(source: TokenizerSource) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    fields = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, image]}]}
    with pytest.raises(NeedsEngineError):
        count_body(source, Api.RESPONSES, json.dumps(fields).encode(), FAR)
    [(_, question)] = asked(Api.RESPONSES, fields)
    assert question["messages"][0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": image["image_url"]}},
    ]


@pytest.mark.parametrize("written", ["many", -7, 1e30, [5], "\u0665"])
@pytest.mark.parametrize("name", ["truncate_prompt_tokens", "add_special_tokens"])
@pytest.mark.parametrize(
    ("api", "fields"),
    [(Api.CHAT, {"messages": [USER]}), (Api.BATCH, {"messages": [[USER]]}), (Api.COMPLETIONS, {"prompt": "a"})],
)
def test_what_cannot_be_read_cuts_nothing_and_the_engine_is_asked(
    source: TokenizerSource, api: Api, fields: dict[str, Any], name: str, written: Any
) -> None:
    body = json.dumps(fields | {name: written}).encode()
    with pytest.raises(NeedsEngineError):
        count_body(source, api, body, 1000)
    work = engine_work(api, body, 1000)
    assert isinstance(work.prompts[0], EngineCall)
    assert work.encoding.truncate is None
    assert [json.loads(work.prompts[0].body)] == [question for _, question in asked(api, fields)]


@pytest.mark.parametrize(
    ("api", "fields", "choice"),
    [
        (Api.CHAT, {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]}, "none"),
        (Api.RESPONSES, {"input": "the fox", "tools": [{"type": "function", "name": "f"}]}, "none"),
    ],
)
def test_the_engine_is_asked_without_tools_that_it_leaves_out(api: Api, fields: dict[str, Any], choice: str) -> None:
    def asked(excludes: bool, **more: Any) -> dict[str, Any]:  # noqa: FBT001
        (call,) = engine_work(api, json.dumps(fields | more).encode(), 1000, excludes_unused=excludes).prompts
        assert isinstance(call, EngineCall)
        return dict(json.loads(call.body))

    assert "tools" in asked(False, tool_choice=choice)
    assert "tools" in asked(True)
    assert "tools" not in asked(True, tool_choice=choice)


BATCH: dict[str, Any] = {"messages": [[USER], [], [USER, {"role": "assistant", "reasoning_content": "Hm."}]]}


def test_each_conversation_of_a_batch_is_asked_for_as_the_chat_it_is() -> None:
    shared = {"model": "m", "documents": [{"text": "A."}], "mm_processor_kwargs": {"a": 1}}
    assert asked(Api.BATCH, shared | BATCH | {"tools": [TOOL]}) == [
        asked(Api.CHAT, shared | {"messages": messages})[0] for messages in BATCH["messages"]
    ]
    assert asked(Api.BATCH, BATCH) == [asked(Api.CHAT, {"messages": messages})[0] for messages in BATCH["messages"]]


def test_what_the_questions_of_a_batch_share_is_in_memory_once() -> None:
    fields = {"messages": [[]] * 1000, "mm_processor_kwargs": {"a": "x" * 20_000}}
    work = engine_work(Api.BATCH, json.dumps(fields).encode(), FAR)
    assert len(pickle.dumps(work)) < 200_000
    assert len({id(call.shared) for call in work.prompts if isinstance(call, EngineCall)}) == 1
