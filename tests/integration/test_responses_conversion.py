"""Requests of the Responses API as we convert them, against vLLM's own functions."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens.messages import NotCountableError
from gateway.tokens.responses_api import from_responses

pytestmark = pytest.mark.engine

CONVERTER = Path(__file__).parent / "parity" / "vllm_responses.py"
SHOWN = ("role", "content", "reasoning", "tool_calls", "tool_call_id")
"""What of a message reaches a template, whatever else its item says."""


class Items:
    """Random input items: mostly well formed, in any order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def body(self) -> dict[str, Any]:
        pick = self._random
        body: dict[str, Any] = {"model": "m", "input": [self._item() for _ in range(pick.randint(1, 6))]}
        if pick.random() < 0.3:
            body["instructions"] = pick.choice(["", "Be brief."])
        if pick.random() < 0.5:
            body["tools"] = [self._tool() for _ in range(pick.randint(0, 3))]
        return body

    def _text(self) -> str:
        return self._random.choice(["", "One.", 'a "b"\nc', "Grüße 世界"])

    def _parts(self, *kinds: str) -> list[dict[str, Any]]:
        pick = self._random
        return [{"type": pick.choice(kinds), "text": self._text()} for _ in range(pick.randint(0, 2))]

    def _with_status(self, item: dict[str, Any]) -> dict[str, Any]:
        pick = self._random
        status = pick.choice(["completed", "in_progress", "incomplete", None, "odd"])
        return item | {"status": status} if pick.random() < 0.3 else item

    def _item(self) -> dict[str, Any]:
        pick: Any = self._random
        call = {"call_id": "c1", "name": "f"}
        outputs = {"call_id": "c1", "output": pick.choice([self._text(), self._parts("input_text")])}
        said = self._parts("output_text", "input_text")
        item: dict[str, Any] = pick.choice(
            [
                {"role": pick.choice(["user", "system", "developer", "assistant", "tool"]), "content": self._text()},
                {"role": pick.choice(["user", "system", "assistant"]), "content": self._parts("input_text")},
                {"type": "message", "role": "assistant", "content": pick.choice([self._text(), said])},
                {"type": "reasoning", "summary": self._parts("summary_text")}
                | pick.choice([{}, {"content": None}, {"content": self._parts("reasoning_text", "reasoning_text")}])
                | pick.choice([{}, {}, {"encrypted_content": pick.choice([None, "", "x"])}, {"id": "rs_1"}]),
                call | {"type": "function_call", "arguments": self._text()} | pick.choice([{}, {"namespace": "n"}]),
                call | {"type": "custom_tool_call", "input": self._text()},
                outputs | {"type": pick.choice(["function_call_output", "custom_tool_call_output"])},
                {"type": "item_reference", "id": "i"},
            ]
        )
        return self._with_status(item)

    def _tool(self) -> dict[str, Any]:
        pick = self._random
        function: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}} | pick.choice(
            [{}, {"strict": True}, {"strict": None}, {"description": "d", "defer_loading": True}]
        )
        inner = [function, {"type": "custom", "name": "g"}]
        tools: list[dict[str, Any]] = [
            function,
            {"type": "custom", "name": "c", "description": pick.choice([None, "d"])},
            {"type": "namespace", "name": "n", "description": "d", "tools": inner},
            {"type": "web_search"},
        ]
        return pick.choice(tools)


def ours(body: dict[str, Any]) -> dict[str, Any] | None:
    try:
        prompt = from_responses(body)
    except NotCountableError:
        return None
    return {
        "messages": list(prompt.messages),
        "tools": prompt.tools,
        "continued": prompt.template_kwargs["continue_final_message"],
    }


def as_shown(converted: dict[str, Any]) -> dict[str, Any]:
    messages = [{key: message[key] for key in SHOWN if key in message} for message in converted["messages"]]
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = [part | {"type": "text"} for part in message["content"]]
    return converted | {"messages": messages}


def test_random_requests_become_the_messages_that_vllm_makes_of_them(engine_python: Path) -> None:
    items = Items(seed=11)
    bodies = [items.body() for _ in range(3000)]
    lines = "".join(json.dumps(body) + "\n" for body in bodies)
    run = subprocess.run([engine_python, CONVERTER], input=lines, capture_output=True, text=True, check=True)
    theirs = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(theirs) == len(bodies)
    counted = accepted = 0
    for body, made in zip(bodies, theirs, strict=True):
        converted = ours(body)
        if "refused" in made:
            continue
        accepted += 1
        if converted is not None:
            counted += 1
            assert converted == as_shown(made), body
    print(f"{accepted} of {len(bodies)} taken by vLLM, {counted} of these counted here")
    assert accepted >= 500
    assert counted == accepted
