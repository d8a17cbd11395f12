"""Random chat requests, well formed and not: what nobody thought of writing down as a case."""

import random
from typing import Any

TEXTS = ("hi", "", "x-anthropic-billing-header: z\nrest", "x-anthropic-billing-header: q", "a\nb", "Grüße 👩‍🚀")
TEXT_KEYS = {"refusal": "refusal", "thinking": "thinking", "tool_reference": "name"}
ARGUMENTS = ('{"b": 1, "a": [2]}', "", "[]", "{nope", '{"x": {"y": null}}', None, {"a": 1})


class Generator:
    """Draws requests; equal seeds draw equal requests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

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

    def _text(self) -> str:
        return str(self._one(*TEXTS))

    def _one(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _maybe(self, fields: dict[str, Any], name: str, value: Any, chance: float = 0.2) -> None:
        if self._random.random() < chance:
            fields[name] = value

    def _shuffled(self, fields: dict[str, Any]) -> dict[str, Any]:
        items = list(fields.items())
        self._random.shuffle(items)
        return dict(items)
