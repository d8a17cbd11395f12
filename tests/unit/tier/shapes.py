"""The shapes of all that gateways of a tier say to each other, by version, and what a change would break.

python -m tests.unit.tier.shapes    # keeps those of this tree, as of its `VERSION`
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.admission.events import Warmth
from gateway.admission.explanation import Explanation
from gateway.ops.merged import Figures
from gateway.ops.pictures.picture import Picture
from gateway.ops.state import Decided
from gateway.tier.frames import VERSION, FromFront, FromOwner
from gateway.tier.guide import Follow, Following
from gateway.tier.seal import Claim

Shapes = Mapping[str, Any]
"""JSON Schema by the name of the type."""
_WORDS = frozenset({"title", "description"})


def file_of(version: int) -> Path:
    """Where the shapes of a version are kept."""
    return Path(__file__).parent / "releases" / f"messages-{version}.json"


def kept(version: int) -> Shapes:
    """Those of a version."""
    return dict(json.loads(file_of(version).read_text()))


def shapes() -> Shapes:
    """Those of this tree."""
    every = [FromFront, FromOwner, Claim, Follow, Following, Warmth, Explanation, Figures, Picture]
    _, found = msgspec.json.schema_components(every)
    state = Decided.model_json_schema()
    found |= {"Decided": state, **state.pop("$defs")}
    return dict(json.loads(json.dumps({name: _bare(shape) for name, shape in found.items()})))


def broken(before: Shapes, after: Shapes) -> list[str]:
    """What processes with the one and with the other would not understand of each other."""
    return [
        line
        for name, shape in before.items()
        for line in (_changes(shape, after[name], name) if name in after else [f"{name} is gone"])
    ]


def _changes(before: Any, after: Any, where: str) -> Iterator[str]:
    if "properties" in before and "properties" in after:
        yield from _grown(before["properties"], after["properties"], where)
        if needed := set(after.get("required", ())) - before["properties"].keys():
            yield f"{where} needs {sorted(needed)}"
    elif "prefixItems" in before and "prefixItems" in after and before.get("items") is not False:
        items = [dict(enumerate(shape["prefixItems"])) for shape in (before, after)]
        yield from _grown(items[0], items[1], where)
        if after["minItems"] > len(items[0]):
            yield f"{where} needs more items"
    elif before != after:
        yield f"{where}: {json.dumps(before)} is {json.dumps(after)}"


def _grown(before: Mapping[Any, Any], after: Mapping[Any, Any], where: str) -> Iterator[str]:
    for name, shape in before.items():
        if name not in after:
            yield f"{where}.{name} is gone"
        else:
            yield from _changes(shape, after[name], f"{where}.{name}")


def _bare(shape: Any) -> Any:
    """A schema without what is for people."""
    match shape:
        case dict():
            return {
                key: _bare(value) for key, value in shape.items() if key not in _WORDS or not isinstance(value, str)
            }
        case list() | tuple():
            return [_bare(item) for item in shape]
    return shape


if __name__ == "__main__":
    file_of(VERSION).write_text(json.dumps(shapes(), indent=1, sort_keys=True) + "\n")
