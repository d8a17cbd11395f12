"""Requests that show whether we count as an engine does: with its template, its defaults and its version."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from gateway.tokens.messages import Json
from gateway.wire.request import Api

MAX_MODEL_LEN = 2**20
"""Tokens; for counting probes, which are short."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A request whose count is compared."""

    name: str
    api: Api
    body: bytes


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A probe that is counted otherwise here and there; None stands for a refusal."""

    probe: str
    api: Api
    local: int | None
    engine: int | None


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What came of comparing all probes with one engine."""

    compared: int
    mismatches: tuple[Mismatch, ...]
    unverified: frozenset[Api]
    """APIs that the engine offers no count for."""

    @property
    def equal(self) -> bool:
        """Whether every probe that could be compared was counted alike."""
        return not self.mismatches

    def trusts(self, api: Api) -> bool:
        """Whether requests of an API may be counted here.

        The Messages and Responses APIs become conversations, so the chat probes speak for them too. The Responses API
        adds special tokens as completions do, and has no counting route.
        """
        deciding = _DECIDING[api]
        return not any(mismatch.api in deciding for mismatch in self.mismatches) and api not in self.unverified


_DECIDING = {
    Api.CHAT: {Api.CHAT},
    Api.COMPLETIONS: {Api.COMPLETIONS},
    Api.MESSAGES: {Api.CHAT, Api.MESSAGES},
    Api.RESPONSES: {Api.CHAT, Api.COMPLETIONS},
}

Count = Callable[[Probe], Awaitable[int | None]]


class UncountedError(Exception):
    """This side does not count the probe, so there is nothing to compare."""


async def compare(probes: tuple[Probe, ...], local: Count, engine: Count) -> ParityReport:
    """Count every probe on both sides.

    Args:
        probes: what to count.
        local: our count; None where we would refuse the request. May raise `UncountedError`.
        engine: the engine's, likewise.
    """
    compared = 0
    mismatches: list[Mismatch] = []
    unverified: set[Api] = set()
    for probe in probes:
        try:
            ours = await local(probe)
        except UncountedError:
            continue
        try:
            theirs = await engine(probe)
        except UncountedError:
            unverified.add(probe.api)
            continue
        compared += 1
        if ours != theirs:
            mismatches.append(Mismatch(probe.name, probe.api, ours, theirs))
    return ParityReport(compared, tuple(mismatches), frozenset(unverified))


def probes(model: str) -> tuple[Probe, ...]:
    """The probes for a served model: each part of a prompt that engines, versions and flags treat differently."""
    return tuple(Probe(name, api, msgspec.json.encode({"model": model} | body)) for api, name, body in _probe_bodies())


def _user(text: str = "What is the weather in Oslo?") -> Json:
    return {"role": "user", "content": text}


def _probe_bodies() -> list[tuple[Api, str, Json]]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": parameters}}
    odd_tool = {"type": "function", "function": {"parameters": parameters, "name": "weather", "x-note": "unknown"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"}
    system = {"role": "system", "content": "You are brief."}
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    thought = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
    conversations: dict[str, Json] = {
        "user": {"messages": [_user()]},
        "system": {"messages": [system, _user()]},
        "turns": {"messages": [system, _user("Hi."), {"role": "assistant", "content": "Hello."}, _user()]},
        "developer": {"messages": [_user("Hi."), {"role": "developer", "content": "Be kind."}, _user()]},
        "parts": {"messages": [{"role": "user", "content": parts}]},
        "tools": {"messages": [_user()], "tools": [tool]},
        "tools with odd keys": {"messages": [system, _user()], "tools": [odd_tool, tool]},
        "tool calls": {"messages": [_user(), calls, result, _user("And then?")], "tools": [tool]},
        "tool results as parts": {"messages": [_user(), calls, result | {"content": parts}], "tools": [tool]},
        "reasoning": {"messages": [_user("2+2?"), thought, _user("Sure?")]},
        "thinking on": {"messages": [_user()], "chat_template_kwargs": {"enable_thinking": True}},
        "thinking off": {"messages": [_user()], "chat_template_kwargs": {"enable_thinking": False}},
        "effort": {"messages": [_user()], "reasoning_effort": "low"},
        "no generation prompt": {"messages": [_user()], "add_generation_prompt": False},
        "continued": {
            "messages": [_user(), {"role": "assistant", "content": "It is"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        "documents": {"messages": [_user()], "documents": [{"title": "Oslo", "text": "A city."}]},
        "special tokens": {"messages": [_user()], "add_special_tokens": True},
        "billing header": {
            "messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe brief."}, _user()]
        },
        "unicode": {"messages": [_user("Grüße, 世界! 👩‍🚀 \u200b \r\n\t naïve")]},
        "marks": {"messages": [_user("<|im_start|>system\n</s><s>[INST]<|eot_id|><think>")]},
    }
    completions: dict[str, Json] = {
        "text": {"prompt": "The capital of France is"},
        "text without special tokens": {"prompt": "The capital of France is", "add_special_tokens": False},
        "texts": {"prompt": ["One", "two\n\n  three", "<|im_end|></s>"]},
    }
    anthropic_tool = {"name": "weather", "description": "Look.", "input_schema": parameters}
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "4 degrees"}]}
    messages: dict[str, Json] = {
        "messages": {"system": "You are brief.", "messages": [_user()]},
        "messages with tools": {
            "messages": [_user(), {"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}],
            "tools": [anthropic_tool],
        },
        "messages with thinking": {
            "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Hi."}],
            "messages": [
                _user(),
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
                _user(),
            ],
        },
    }
    return [
        *((Api.CHAT, name, body) for name, body in conversations.items()),
        *((Api.COMPLETIONS, name, body) for name, body in completions.items()),
        *((Api.MESSAGES, name, body) for name, body in messages.items()),
    ]
