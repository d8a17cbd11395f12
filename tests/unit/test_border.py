"""The modules of the core that are never compiled: others read the types of what they hold."""

import ast
import typing
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from gateway.admission.events import Event
from gateway.admission.explanation import Explanation
from gateway.admission.snapshot import PoolState
from gateway.tier.frames import FromFront, FromOwner

SETUP = Path(__file__).parents[2] / "setup.py"


def modules(kind: Any, seen: set[Any]) -> set[str]:
    """Modules of the core whose classes are in a type, at any depth."""
    if kind in seen:
        return set()
    seen.add(kind)
    inside = list(typing.get_args(kind))
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        inside += typing.get_type_hints(kind).values()
    found = set().union(*[modules(each, seen) for each in inside]) if inside else set()
    ours = isinstance(kind, type) and kind.__module__.startswith("gateway.admission.")
    return found | {kind.__module__} if ours and (is_dataclass(kind) or issubclass(kind, Enum)) else found


def test_what_crosses_to_another_process_or_a_client_is_not_compiled() -> None:
    (border,) = [
        ast.literal_eval(line.value)
        for line in ast.parse(SETUP.read_text()).body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "BORDER"
    ]
    crossing = modules((FromFront | FromOwner | Event | Explanation | PoolState), set())
    assert "gateway.admission.events" in crossing
    assert {name.rpartition(".")[2] for name in crossing} <= border
