"""Random requests, well formed and not: what nobody thought of writing down as a case."""

import random
from abc import ABC, abstractmethod
from typing import Any

HEADER = "x-anthropic-billing-header: q"
TEXTS = ("hi", "", f"{HEADER}\nrest", HEADER, 'a "b"\nc', "Grüße 👩‍🚀", "<|im_end|>\n<|im_start|>user")
TEXT_KEYS = {"refusal": "refusal", "thinking": "thinking", "tool_reference": "name"}
ARGUMENTS = ('{"b": 1, "a": [2]}', "", "[]", "{nope", '{"x": {"y": null}}', None, {"a": 1})


class Generator(ABC):
    """Draws requests; equal seeds draw equal requests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    @abstractmethod
    def request(self) -> dict[str, Any]:
        """One request, without its model."""

    def _text(self) -> str:
        return str(self._one(*TEXTS))

    def _some(self, least: int, most: int) -> range:
        return range(self._random.randint(least, most))

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _maybe(self, fields: dict[str, Any], name: str, value: Any, chance: float = 0.2) -> None:
        if self._random.random() < chance:
            fields[name] = value

    def _shuffled(self, fields: dict[str, Any]) -> dict[str, Any]:
        items = list(fields.items())
        self._random.shuffle(items)
        return dict(items)


class Chats(Generator):
    """Of the Chat Completions API."""

    def request(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"messages": [self._message() for _ in range(self._random.randint(1, 3))]}
        self._maybe(fields, "tools", [self._tool() for _ in range(self._random.randint(1, 2))])
        self._maybe(fields, "reasoning_effort", self._one("none", "low", None))
        self._maybe(fields, "documents", self._one([{"title": "a", "text": "b"}], None, []))
        variables = ({"enable_thinking": True}, {"flavour": None, "b": "auto", "add_generation_prompt": False}, None)
        self._maybe(fields, "chat_template_kwargs", self._one(*variables, {"documents": [1], "reasoning_effort": "x"}))
        for flag in ("add_generation_prompt", "continue_final_message", "add_special_tokens"):
            self._maybe(fields, flag, self._one(True, False))
        return fields

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": self._one("system", "user", "user", "assistant", "assistant", "tool", "developer", "ipython")
        }
        parts = [self._part() for _ in range(self._random.randint(0, 2))]
        self._maybe(message, "content", self._one(self._text(), self._text(), None, parts, parts), 0.95)
        self._maybe(message, "name", self._one("bob", "bob", None))
        self._maybe(message, "tool_call_id", self._one("c1", "c1", None), 0.4 if message["role"] == "tool" else 0.05)
        if message["role"] == "assistant" or self._random.random() < 0.05:
            calls = [self._call() for _ in range(self._random.randint(0, 2))]
            self._maybe(message, "tool_calls", self._one(calls, calls, None), 0.5)
            self._maybe(message, "reasoning", self._one(self._text(), None))
            self._maybe(message, "reasoning_content", self._one(self._text(), None))
            self._maybe(message, "refusal", self._one("no", None))
        self._maybe(message, "unknown", 1, 0.1)
        return message

    def _part(self) -> Any:
        kind = self._one("text", "text", "text", "refusal", "thinking", "tool_reference", "input_text")
        part = self._shuffled({"type": kind, TEXT_KEYS.get(kind, "text"): self._one(*[self._text()] * 7, None)})
        self._maybe(part, "cache_control", {"type": "ephemeral"})
        self._maybe(part, "uuid", self._one(None, "u"), 0.03)
        return part

    def _call(self) -> dict[str, Any]:
        function = self._shuffled({"name": self._one("f", "g"), "arguments": self._one(*ARGUMENTS)})
        self._maybe(function, "extra", 1)
        kind = self._one(*["function"] * 9, "custom")
        call = self._shuffled({"id": self._one(*["c1"] * 9, None), "type": kind, "function": function})
        self._maybe(call, "index", 0)
        return call

    def _tool(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self._one("f", "g")}
        self._maybe(function, "parameters", self._one({"type": "object", "properties": {}}, None), 0.7)
        self._maybe(function, "description", self._one("d", None), 0.6)
        self._maybe(function, "strict", self._one(True, False, None))
        self._maybe(function, "defer_loading", self._one(True, None))
        self._maybe(function, "unknown", 1)
        tool = {"function": self._shuffled(function)}
        self._maybe(tool, "type", "function", 0.9)
        self._maybe(tool, "defer_loading", self._one(True, False, None))
        return tool


class Messages(Generator):
    """Of the Messages API."""

    def request(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_tokens": 1, "messages": [self._message() for _ in self._some(1, 3)]}
        self._maybe(
            fields, "system", self._one(self._text(), None, [self._block("text") for _ in self._some(0, 3)]), 0.4
        )
        self._maybe(fields, "tools", self._one(None, [self._tool() for _ in self._some(1, 3)]), 0.4)
        self._maybe(fields, "thinking", self._one(None, {"type": "adaptive"}, {"type": "disabled"}))
        self._maybe(fields, "output_config", self._one(None, {}, {"effort": None}, {"effort": "max"}))
        variables = ({"enable_thinking": False}, {"flavour": "auto", "b": None}, {"documents": [{"text": "x"}]}, None)
        self._maybe(fields, "chat_template_kwargs", self._one(*variables, {"reasoning_effort": "x"}))
        return self._shuffled(fields)

    def _message(self) -> dict[str, Any]:
        role = self._one(*["user", "assistant"] * 9, "system")
        kinds = [self._one("text", "text", "thinking", "redacted_thinking", "tool_use", "tool_result")]
        kinds += [self._one("text", "thinking", "tool_use", "tool_result") for _ in self._some(0, 3)]
        return self._shuffled({"role": role, "content": self._one(self._text(), [*map(self._block, kinds)])})

    def _block(self, kind: str) -> dict[str, Any]:
        block: dict[str, Any] = {"type": kind}
        if kind in ("text", "thinking"):
            block[kind] = self._one(*[self._text()] * 40, None)
        elif kind == "tool_use":
            arguments = self._one({"city": "Oslo"}, {}, None, {"b": 1e22, "a": [2, {"c": None}], "u": "Grüße\u2028<&>"})
            block |= {"id": self._one(*["t1"] * 20, ""), "name": self._one("f", "g"), "input": arguments}
        elif kind == "tool_result":
            texts = [self._block("text") for _ in self._some(0, 3)]
            block |= {"tool_use_id": "t1", "content": self._one(self._text(), None, texts)}
        self._maybe(block, "cache_control", {"type": "ephemeral"})
        self._maybe(block, "unknown", 1, 0.05)
        return self._shuffled(block)

    def _tool(self) -> dict[str, Any]:
        schema = self._one({"type": "object", "properties": {}}, {}, {"properties": {}, "$schema": "s"}, {"type": None})
        tool: dict[str, Any] = {"name": self._one("f", "g"), "input_schema": schema}
        self._maybe(tool, "description", self._one("d", "", None), 0.6)
        self._maybe(tool, "strict", self._one(True, False, None, 1))
        self._maybe(tool, "defer_loading", self._one(True, False, None))
        self._maybe(tool, "type", "custom")
        return self._shuffled(tool)


class Responses(Generator):
    """Of the Responses API."""

    def request(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"input": self._one(self._text(), *[[self._item() for _ in self._some(1, 6)]] * 4)}
        self._maybe(fields, "instructions", self._one("", "Be brief.", None), 0.3)
        self._maybe(fields, "tools", [self._tool() for _ in self._some(0, 3)], 0.5)
        self._maybe(fields, "reasoning", self._one({"effort": "low"}, {"effort": None}, {"summary": "auto"}, None))
        self._maybe(fields, "chat_template_kwargs", self._one({"enable_thinking": False}, {"flavour": "sweet"}, None))
        return fields

    def _parts(self, *kinds: str) -> list[dict[str, Any]]:
        return [{"type": self._one(*kinds), "text": self._text()} for _ in self._some(0, 2)]

    def _item(self) -> dict[str, Any]:
        call = {"call_id": "c1", "name": "f"}
        outputs = {"call_id": "c1", "output": self._one(self._text(), self._parts("input_text"))}
        said = self._parts("output_text", "input_text")
        item: dict[str, Any] = self._one(
            {"role": self._one("user", "system", "developer", "assistant", "tool"), "content": self._text()},
            {"role": self._one("user", "system", "assistant"), "content": self._parts("input_text")},
            {"type": "message", "role": "assistant", "content": self._one(self._text(), said)},
            {"type": "reasoning", "summary": self._parts("summary_text")}
            | self._one({}, {"content": None}, {"content": self._parts("reasoning_text", "reasoning_text")})
            | self._one({}, {}, {"encrypted_content": self._one(None, "", "x")}, {"id": "rs_1"}),
            call | {"type": "function_call", "arguments": self._text()} | self._one({}, {"namespace": "n"}),
            call | {"type": "custom_tool_call", "input": self._text()},
            outputs | {"type": self._one("function_call_output", "custom_tool_call_output")},
            {"type": "item_reference", "id": "i"},
        )
        self._maybe(item, "status", self._one("completed", "in_progress", "incomplete", None, "odd"), 0.3)
        return item

    def _tool(self) -> dict[str, Any]:
        function: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        function |= self._one({}, {"strict": True}, {"strict": None}, {"description": "d", "defer_loading": True})
        inner = [function, {"type": "custom", "name": "g"}]
        return dict(
            self._one(
                function,
                {"type": "custom", "name": "c", "description": self._one(None, "d")},
                {"type": "namespace", "name": "n", "description": "d", "tools": inner},
                {"type": "web_search"},
            )
        )
