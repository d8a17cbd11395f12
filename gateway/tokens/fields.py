"""The reading of a request's fields as its engines do: `gateway.wire.fields` has the table of each kind."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.tokens.messages import Json, NeedsEngineError, NotCountableError
from gateway.wire.engine_kinds import KINDS, VLLM
from gateway.wire.fields import FIELDS, Api, Use

OURS = frozenset({VLLM.name})
"""The kinds of the engines whose reading is ours where nothing else is known."""


def prompt_fields(kind: str, api: Api) -> Mapping[str, Use]:
    """The fields that decide a prompt."""
    return FIELDS[kind].prompt.get(api) or FIELDS[VLLM.name].prompt[api]


@functools.cache
def reads_any_case(kinds: frozenset[str]) -> bool:
    """Whether one of these takes a name for the same in any case of its letters."""
    return any(KINDS[kind].caseless for kind in kinds)


@functools.cache
def _otherwise(api: Api, kinds: frozenset[str]) -> tuple[tuple[str, Use | None], ...]:
    """The fields that are not just counted; None for those that no engine of these kinds reads."""
    tables = [prompt_fields(kind, api) for kind in kinds]
    names = sorted({name for table in (*tables, prompt_fields(VLLM.name, api)) for name in table})
    found = [(name, {table.get(name) for table in tables}) for name in names]
    uses = [(name, of.pop() if len(of) == 1 else Use.ESTIMATED) for name, of in found]
    return tuple((name, use) for name, use in uses if use is not Use.COUNTED)


def as_read(api: Api, fields: Json, kinds: frozenset[str] = OURS) -> Json:
    """The fields of a request without those for its prompt that no engine of these kinds reads.

    Raises:
        NotCountableError: no counting route takes a field either, or the kinds treat it in different ways.
        NeedsEngineError: the engine can count it.
    """
    given = {name: use for name, use in _otherwise(api, kinds) if fields.get(name) is not None}
    if not (given or reads_any_case(kinds)):
        return fields
    for use, error in ((Use.ESTIMATED, NotCountableError), (Use.ENGINE, NeedsEngineError)):
        if name := next((name for name in given if given[name] is use), None):
            raise error(f"the request sets {name}")
    if reads_any_case(kinds) and any(map(_in_other_case, _objects(fields.values()))):
        raise NotCountableError("a name in it is one of a message's in other letters")
    return {name: value for name, value in fields.items() if name not in given}


_INTO = ("content", "function", "tool_calls", "output", "summary")
"""The names in a message, an item or a tool under which objects of an API are, not of a client."""
_INNER = frozenset(
    {
        *_INTO, "role", "type", "text", "name", "reasoning", "thinking", "tool_call_id", "tool_use_id", "call_id", "id",
        "arguments", "input", "encrypted_content", "description", "parameters", "input_schema", "tools",
    }
)  # fmt: skip


def _in_other_case(item: Json) -> bool:
    return any(name not in _INNER and name.casefold() in _INNER for name in item)


def _objects(values: Any) -> Iterator[Json]:
    """The messages, items, parts, tools and functions in the values of a body."""
    pending = [value for value in values if isinstance(value, list)]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            yield value
            pending += [value[name] for name in _INTO if name in value]
