"""The probes: requests that show whether kvgate counts as an engine does, with its template, defaults and version."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec

from gateway.tokens.features import ALL, Feature
from gateway.tokens.messages import Json
from gateway.wire.request import Api

MAX_MODEL_LEN = 2**20
"""Tokens; a length that no probe reaches."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A request whose counts are compared."""

    name: str
    api: Api
    feature: Feature
    """The feature that a difference speaks against; with `PROMPT`, all requests of this API."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """What one side makes of a probe."""

    tokens: int
    """Of all its prompts."""
    ids: tuple[int, ...] | None = field(default=None, compare=False)
    """Those of its only prompt, where they are told."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A probe with different counts here and at the engine; None stands for a refusal."""

    probe: Probe
    local: int | None
    engine: int | None


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The result of comparing all probes with one engine."""

    compared: int
    mismatches: tuple[Mismatch, ...]
    unverified: frozenset[Api]
    """APIs for which the engine has no counting route."""
    excludes_unused: bool = False
    """Whether the engine leaves out tools that the model may not use."""
    same_ids: int = 0
    """Number of probes with the same token ids on both sides."""
    other_ids: tuple[str, ...] = ()
    """Names of the probes with as many tokens on both sides, but other ones."""

    @property
    def equal(self) -> bool:
        """Whether every probe that could be compared had equal counts."""
        return not self.mismatches

    @property
    def differs(self) -> bool:
        """Whether the engine counted a probe differently. A refusal is none: without a parser it refuses tools."""
        return any(mismatch.engine is not None for mismatch in self.mismatches)

    def as_far_as_counted(self) -> "ParityReport":
        """Only what the engine counted: what it refuses, or has no route for, speaks against nothing."""
        differing = tuple(mismatch for mismatch in self.mismatches if mismatch.engine is not None)
        return replace(self, mismatches=differing, unverified=frozenset())

    def distrusted(self, api: Api) -> frozenset[Feature]:
        """The features of an API's requests that must not be counted here; `PROMPT` stands for all requests.

        The Messages and Responses APIs become conversations, so the chat probes speak for them too. The Responses API
        adds special tokens as completions do, and has no counting route.
        """
        if api in self.unverified:
            return ALL
        return frozenset(mismatch.probe.feature for mismatch in self.mismatches if mismatch.probe.api in _DECIDING[api])


_DECIDING = {
    Api.CHAT: {Api.CHAT},
    Api.BATCH: {Api.CHAT},
    Api.COMPLETIONS: {Api.COMPLETIONS},
    Api.MESSAGES: {Api.CHAT, Api.MESSAGES},
    Api.RESPONSES: {Api.CHAT, Api.COMPLETIONS},
}

Read = Callable[[Probe], Awaitable[Reading | None]]


class UncountedError(Exception):
    """This side does not count the probe, so there is nothing to compare."""


async def compare(probes: tuple[Probe, ...], local: Read, engine: Read) -> ParityReport:
    """Count every probe on both sides.

    Args:
        probes: what to count.
        local: our reading; None if we would refuse the request. May raise `UncountedError`.
        engine: the engine's, likewise.
    """
    compared = same_ids = 0
    other_ids: list[str] = []
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
            here, there = (None if side is None else side.tokens for side in (ours, theirs))
            mismatches.append(Mismatch(probe, here, there))
        elif ours is not None and theirs is not None and ours.ids is not None and theirs.ids is not None:
            if ours.ids == theirs.ids:
                same_ids += 1
            else:
                other_ids.append(probe.name)
    told = frozenset(unverified)
    return ParityReport(compared, tuple(mismatches), told, same_ids=same_ids, other_ids=tuple(other_ids))


def probes(model: str) -> tuple[Probe, ...]:
    """The probes for a served model: each part of a prompt that engines, versions and flags treat differently."""
    return tuple(
        Probe(name, api, feature, msgspec.json.encode({"model": model} | body))
        for api, name, feature, body in _probe_bodies()
    )


def _user(text: str = "What is the weather in Oslo?") -> Json:
    return {"role": "user", "content": text}


def _probe_bodies() -> list[tuple[Api, str, Feature, Json]]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": parameters}}
    odd_tool = {"type": "function", "function": {"parameters": parameters, "name": "weather", "x-note": "unknown"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees"}
    system = {"role": "system", "content": "You are brief."}
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    blank = [parts[0], {"type": "text", "text": "\n"}, parts[1]]
    thought = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
    conversations: dict[tuple[str, Feature], Json] = {
        ("user", Feature.PROMPT): {"messages": [_user()]},
        ("system", Feature.PROMPT): {"messages": [system, _user()]},
        ("turns", Feature.PROMPT): {
            "messages": [system, _user("Hi."), {"role": "assistant", "content": "Hello."}, _user()]
        },
        ("developer", Feature.DEVELOPER): {
            "messages": [_user("Hi."), {"role": "developer", "content": "Be kind."}, _user()]
        },
        ("parts", Feature.PARTS): {"messages": [{"role": "user", "content": parts}]},
        # A template may put a token between parts, as the engine puts a line break; here it is part of a longer token.
        ("parts with a blank one", Feature.PARTS): {"messages": [{"role": "user", "content": blank}]},
        ("tools", Feature.TOOLS): {"messages": [_user()], "tools": [tool]},
        ("tools with odd keys", Feature.TOOLS): {"messages": [system, _user()], "tools": [odd_tool, tool]},
        ("tool calls", Feature.TOOL_CALLS): {"messages": [_user(), calls, result, _user("And then?")], "tools": [tool]},
        ("tool results as parts", Feature.TOOL_CALLS): {
            "messages": [_user(), calls, result | {"content": parts}],
            "tools": [tool],
        },
        ("reasoning", Feature.REASONING): {"messages": [_user("2+2?"), thought, _user("Sure?")]},
        ("thinking on", Feature.VARIABLES): {"messages": [_user()], "chat_template_kwargs": {"enable_thinking": True}},
        ("thinking off", Feature.VARIABLES): {
            "messages": [_user()],
            "chat_template_kwargs": {"enable_thinking": False},
        },
        ("effort", Feature.EFFORT): {"messages": [_user()], "reasoning_effort": "low"},
        ("no generation prompt", Feature.PROMPT): {"messages": [_user()], "add_generation_prompt": False},
        ("continued", Feature.CONTINUED): {
            "messages": [_user(), {"role": "assistant", "content": "It is"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        ("documents", Feature.DOCUMENTS): {"messages": [_user()], "documents": [{"title": "Oslo", "text": "A city."}]},
        ("special tokens", Feature.SPECIAL_TOKENS): {"messages": [_user()], "add_special_tokens": True},
        ("billing header", Feature.HEADER): {
            "messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nBe brief."}, _user()]
        },
        ("unicode", Feature.PROMPT): {"messages": [_user("Grüße, 世界! 👩‍🚀 \u200b \r\n\t naïve")]},
        ("marks", Feature.PROMPT): {"messages": [_user("<|im_start|>system\n</s><s>[INST]<|eot_id|><think>")]},
    }
    completions: dict[tuple[str, Feature], Json] = {
        ("text", Feature.PROMPT): {"prompt": "The capital of France is"},
        ("text without special tokens", Feature.PROMPT): {
            "prompt": "The capital of France is",
            "add_special_tokens": False,
        },
        ("texts", Feature.PROMPT): {"prompt": ["One", "two\n\n  three", "<|im_end|></s>"]},
    }
    anthropic_tool = {"name": "weather", "description": "Look.", "input_schema": parameters}
    unused = {"messages": [_user()], "tools": [anthropic_tool], "tool_choice": {"type": "none"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "4 degrees"}]}
    messages: dict[tuple[str, Feature], Json] = {
        ("messages", Feature.PROMPT): {"system": "You are brief.", "messages": [_user()]},
        ("messages with tools", Feature.TOOLS): {
            "messages": [_user(), {"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}],
            "tools": [anthropic_tool],
        },
        # The only counting route that is told which tools may be used.
        ("messages with tools that may not be used", Feature.UNUSED_TOOLS): unused,
        ("messages with thinking", Feature.REASONING): {
            "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Hi."}],
            "messages": [
                _user(),
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
                _user(),
            ],
        },
    }
    return [
        *((Api.CHAT, *key, body) for key, body in conversations.items()),
        *((Api.COMPLETIONS, *key, body) for key, body in completions.items()),
        *((Api.MESSAGES, *key, body) for key, body in messages.items()),
    ]
