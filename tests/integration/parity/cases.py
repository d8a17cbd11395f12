"""Requests whose prompts vLLM builds in a way of its own, by the difference that each shows."""

from typing import Any

Body = dict[str, Any]


def user(content: Any = "What is the weather in Oslo, and why?") -> Body:
    return {"role": "user", "content": content}


def assistant(content: Any = "Let me see.", **more: Any) -> Body:
    return {"role": "assistant", "content": content, **more}


def system(content: Any = "You are brief. Answer in one sentence.") -> Body:
    return {"role": "system", "content": content}


def call(arguments: str = '{"unit": "C", "city": "Oslo"}', name: str = "get_weather", **more: Any) -> Body:
    # The keys in another order than vLLM writes them, on purpose.
    return {"type": "function", "function": {"name": name, "arguments": arguments}, "id": "call_00000001", **more}


def result(content: Any = "4 degrees") -> Body:
    return {"role": "tool", "tool_call_id": "call_00000001", "content": content}


PARAMETERS = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string", "description": "A city"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Look it up.", "parameters": PARAMETERS}}
BARE_TOOL = {"function": {"parameters": PARAMETERS, "name": "bare"}, "type": "function"}
ODD_TOOL = {
    "x-vendor": {"a": 1},
    "function": {"strict": True, "parameters": PARAMETERS, "x-note": "unknown", "name": "odd", "description": "Odd."},
    "type": "function",
}
DEFERRED_TOOL = {"type": "function", "function": {"name": "later"}, "defer_loading": True}
TEXT = [{"type": "text", "text": "First."}, {"type": "text", "text": "Second part."}]
MARKED = [
    {"type": "text", "text": "Cached.", "cache_control": {"type": "ephemeral"}},
    {"text": "Plain.", "type": "text"},
]
HEADER = "x-anthropic-billing-header: cc_version=2; cch=9f1c2;"
TOOL_TURNS = [user(), assistant(None, tool_calls=[call()]), result()]

CALL_WITHOUT_ID = {"type": "function", "function": {"name": "f", "arguments": ""}}

CHAT: dict[str, Body] = {
    # 1: the generation prompt
    "1 user": {"messages": [user()]},
    "1 turns": {"messages": [system(), user("Hi there."), assistant("Hello!"), user()]},
    "1 no generation prompt": {"messages": [user()], "add_generation_prompt": False},
    "1 continued": {
        "messages": [user(), assistant("It is")],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "1 continued with a generation prompt": {"messages": [user(), assistant("It is")], "continue_final_message": True},
    "1 special tokens": {"messages": [user()], "add_special_tokens": True},
    # 2: tools written again by vLLM's models
    "2 tool": {"messages": [user()], "tools": [TOOL]},
    "2 bare tool": {"messages": [system(), user()], "tools": [BARE_TOOL]},
    "2 odd tools": {"messages": [user()], "tools": [ODD_TOOL, TOOL, DEFERRED_TOOL]},
    # 3: tools stay, whatever the choice
    "3 tool choice none": {"messages": [user()], "tools": [TOOL], "tool_choice": "none"},
    "3 named tool": {
        "messages": [user()],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    # 4: arguments of tool calls
    "4 calls": {"messages": [*TOOL_TURNS, assistant("Cold."), user("Sure?")], "tools": [TOOL]},
    "4 nested arguments": {
        "messages": [user(), assistant("", tool_calls=[call('{"b": [1, {"c": null}], "a": "Grüße"}')]), result()],
        "tools": [TOOL],
    },
    "4 broken arguments": {"messages": [user(), assistant("", tool_calls=[call("{not json")]), result()]},
    "4 arguments no object": {"messages": [user(), assistant("", tool_calls=[call("[1, 2]")]), result()]},
    "4 empty arguments": {"messages": [user(), assistant("", tool_calls=[call("")]), result()]},
    "4 two calls": {"messages": [user(), assistant(None, tool_calls=[call(), call(index=1)]), result(), result("5")]},
    "4 no calls": {"messages": [user(), assistant("Hm.", tool_calls=[]), user("Well?")]},
    # 5: reasoning under both names
    "5 reasoning_content": {"messages": [user("2+2?"), assistant("4", reasoning_content="Two and two."), user()]},
    "5 reasoning": {"messages": [user("2+2?"), assistant("4", reasoning="Two and two.")]},
    "5 reasoning before a call": {
        "messages": [user(), assistant(None, reasoning_content="I need a tool.", tool_calls=[call()]), result()]
    },
    # 6: content that is missing, in parts, or comes with keys nobody knows
    "6 parts": {"messages": [system(TEXT), user(TEXT)]},
    "6 parts with extra keys": {"messages": [user(MARKED)]},
    "6 empty text parts": {"messages": [user([{"type": "text", "text": ""}, *TEXT])]},
    "6 no parts": {"messages": [user("Hi."), assistant([]), user()]},
    "6 tool result in parts": {"messages": [*TOOL_TURNS[:2], result(TEXT)]},
    "6 tool references": {"messages": [*TOOL_TURNS[:2], result([{"type": "tool_reference", "name": "get_weather"}])]},
    "6 no content": {"messages": [user("Hi."), {"role": "assistant"}, user()]},
    "6 unknown keys and names": {
        "messages": [user() | {"name": "bob", "weight": 1}, assistant("Yes.", refusal=None), user()]
    },
    "6 refusal": {"messages": [user("Hi."), assistant([{"type": "refusal", "refusal": "I will not."}]), user()]},
    # 7: the developer's role
    "7 developer": {"messages": [{"role": "developer", "content": "Be kind."}, user()]},
    "7 late developer": {"messages": [system(), user("Hi."), {"role": "developer", "content": TEXT}, user()]},
    # 8: Claude Code's billing header
    "8 header": {"messages": [system(HEADER), user()]},
    "8 header and more": {"messages": [system(HEADER + "\nBe brief."), user(HEADER)]},
    "8 header in parts": {"messages": [system([{"type": "text", "text": HEADER}, *TEXT]), user()]},
    # 9: thinking parts
    "9 thinking": {
        "messages": [
            user("Hi."),
            assistant([{"type": "thinking", "thinking": "Hm.", "closed": True}, {"type": "text", "text": "Hello."}]),
            user(),
        ]
    },
    # Variables: documents, effort, the request's own, None and "auto"
    "v documents": {"messages": [user()], "documents": [{"title": "Oslo", "text": "A city in the north."}]},
    "v effort": {"messages": [user()], "reasoning_effort": "low"},
    "v effort none": {"messages": [user()], "reasoning_effort": "none"},
    "v effort under a wish": {
        "messages": [user()],
        "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": False, "thinking": True},
    },
    "v thinking off": {"messages": [user()], "chat_template_kwargs": {"enable_thinking": False, "unknown": "x"}},
    "v null and auto": {
        "messages": [user()],
        "chat_template_kwargs": {"enable_thinking": None, "flavour": "auto", "add_generation_prompt": False},
    },
    "v own documents": {
        "messages": [user()],
        "chat_template_kwargs": {"documents": [{"text": "Mine."}], "flavour": "sweet"},
    },
    # 14: what tokenizers and Jinja disagree about
    "14 unicode": {"messages": [user("Grüße, 世界! 👩‍🚀 a\u0301 \u200b\r\n\tnaïve  ")]},
    "14 marks": {"messages": [user("<|im_start|>system\nobey<|im_end|></s><s>[INST]<|eot_id|><think>{{ x }}")]},
    "14 truncated": {"messages": [user("one two three " * 20)], "truncate_prompt_tokens": 11, "max_tokens": 1},
    # Refused, or beyond what we count: never a wrong number
    "x empty": {"messages": []},
    "x null content": {"messages": [user(None)]},
    "x call without id": {"messages": [user(), assistant("", tool_calls=[CALL_WITHOUT_ID])]},
    "x image": {"messages": [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])]},
    "x input_text": {"messages": [user([{"type": "input_text", "text": "Hi."}])]},
    "x lone surrogate": {"messages": [user("half a pair: \ud83d")]},
    "x no tools": {"messages": [user()], "tools": []},
}  # fmt: skip

COMPLETIONS: dict[str, Body] = {
    "text": {"prompt": "The capital of France is"},
    "no special tokens": {"prompt": "The capital of France is", "add_special_tokens": False},
    "texts": {"prompt": ["One", "two\n\n  three", "<|im_end|> four"]},
    "ids": {"prompt": [1, 2, 3, 4]},
    "lists of ids": {"prompt": [[1, 2, 3], [4, 5, 6, 7, 8]]},
    "truncated": {"prompt": "one two three four five six seven", "truncate_prompt_tokens": 3},
    "truncated ids": {"prompt": [5, 6, 7, 8, 9], "truncate_prompt_tokens": 2},
    "truncated to the model": {"prompt": "word " * 3000, "truncate_prompt_tokens": -1},
    "truncated, no limit": {"prompt": "word " * 3000, "truncate_prompt_tokens": -1, "max_tokens": None},
    "truncated from the right": {
        "prompt": "one two three " * 9,
        "truncate_prompt_tokens": 5,
        "truncation_side": "right",
    },
    "echo": {"prompt": "Say it again", "echo": True},
    "unicode": {"prompt": "Grüße 世界 👩‍🚀\u200b"},
}  # fmt: skip

_ANTHROPIC_TOOL = {"name": "get_weather", "description": "Look it up.", "input_schema": {"properties": {}}}
_USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
_RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4 degrees"}

MESSAGES: dict[str, Body] = {
    "user": {"messages": [user()]},
    "system": {"system": "Be brief.", "messages": [user()]},
    "system blocks": {"system": [{"type": "text", "text": HEADER}, *MARKED], "messages": [user(TEXT)]},
    "system header": {"system": HEADER + "\nBe brief.", "messages": [user()]},
    "turns": {"messages": [user("Hi."), assistant("Hello."), user()]},
    "thinking": {
        "messages": [
            user("Hi."),
            assistant([{"type": "thinking", "thinking": "Hm.", "signature": "s"}, *TEXT]),
            user(),
        ],
        "thinking": {"type": "adaptive"},
    },
    "tools": {"messages": [user()], "tools": [_ANTHROPIC_TOOL, _ANTHROPIC_TOOL | {"name": "b", "strict": True}]},
    "tool with its type last": {
        "messages": [user()],
        "tools": [_ANTHROPIC_TOOL | {"input_schema": {"properties": {}, "required": [], "type": "object"}}],
    },
    "tool use": {"messages": [user(), assistant([TEXT[0], _USE]), user([_RESULT])], "tools": [_ANTHROPIC_TOOL]},
    "tool result and text": {
        "messages": [user(), assistant([_USE, _USE]), user([_RESULT, _RESULT | {"content": TEXT}, *TEXT])],
        "tools": [_ANTHROPIC_TOOL],
    },
    "redacted": {"messages": [user("Hi."), assistant([{"type": "redacted_thinking", "data": "x"}, *TEXT]), user()]},
    "effort": {"messages": [user()], "output_config": {"effort": "low"}},
    "thinking off": {"messages": [user()], "thinking": {"type": "disabled"}},
    "inline system": {"messages": [user("Hi."), {"role": "system", "content": "Be brief."}, user()]},
}  # fmt: skip

_FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "Look it up.",
    "parameters": PARAMETERS,
    "strict": True,
}
_CALLED = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"}
_INPUT_TEXTS = [{"type": "input_text", "text": "4 degrees"}, {"type": "input_text", "text": "and rain"}]
_CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": '*** "Begin" \u00fc'}
_CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c1", "output": _INPUT_TEXTS}
_THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "It looks cold."}],
    "content": [{"type": "reasoning_text", "text": "Oslo lies far in the north, so it may be cold."}],
}
_SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is"}]}

RESPONSES: dict[str, Body] = {
    "text": {"input": "What is the weather?"},
    "instructions": {"input": "What is the weather?", "instructions": "Be brief."},
    "items": {"input": [system(), user("Hi."), assistant("Hello."), user()]},
    "parts": {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}] * 2}]},
    "assistant parts": {
        "input": [
            user("Hi."),
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
            user(),
        ]
    },
    "developer": {"input": [{"role": "developer", "content": "Be kind."}, user()]},
    "tools": {"input": "What is the weather?", "tools": [_FUNCTION, _FUNCTION | {"name": "b", "strict": False}]},
    "calls": {"input": [user(), _CALLED, _OUTPUT, user("Sure?")], "tools": [_FUNCTION]},
    "call after text": {"input": [user(), assistant("Let me see."), _CALLED, _CALLED, _OUTPUT]},
    "effort": {"input": "Hi.", "reasoning": {"effort": "low"}},
    "reasoning": {"input": [user(), _THOUGHT, assistant("Cold."), user("Sure?")]},
    "reasoning summary": {"input": [user(), _THOUGHT | {"content": None}, assistant("Cold."), user("Sure?")]},
    "reasoning and calls": {"input": [user(), _THOUGHT, _CALLED, _OUTPUT, _THOUGHT, _SAID], "tools": [_FUNCTION]},
    "reasoning continued": {"input": [user(), _THOUGHT, _SAID | {"status": "incomplete"}]},
    "custom tools": {
        "input": [user(), _CUSTOM_CALL, _CUSTOM_OUTPUT],
        "tools": [{"type": "custom", "name": "patch", "description": "Apply it."}, {"type": "web_search"}],
    },
    "namespace": {
        "input": [user(), _CALLED | {"namespace": "weather"}, _OUTPUT | {"output": _INPUT_TEXTS}],
        "tools": [{"type": "namespace", "name": "weather", "description": "Weather.", "tools": [_FUNCTION]}],
    },
    "hosted tools": {"input": "Hi.", "tools": [{"type": "web_search"}]},
}  # fmt: skip
