"""PURE. The reading of config.json keys: one key may have several names, and a missing one is reported."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.plan import families

Config = Mapping[str, Any]
"""A config.json, parsed."""


class UnknownShapeError(Exception):
    """The config lacks a fact that the plan needs. The message names it."""


def named(config: Config, model_type: str) -> str:
    """Name a model by its config, for an error message."""
    architectures = ", ".join(config.get("architectures") or ()) or "no architecture named"
    return f"{architectures}, model type {model_type or 'not named'}"


def first_integer(text: Config, keys: Sequence[str], *, default: int | None = None) -> int:
    """Return the first of these keys with a number, or with a list that begins with one.

    Raises:
        UnknownShapeError: None has one, and there is no default.
    """
    for key in keys:
        value = text.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    if default is None:
        raise UnknownShapeError(f"config.json has no `{keys[0]}` ({named(text, str(text.get('model_type') or ''))})")
    return default


def integer(text: Config, key: str, *, default: int | None = None) -> int:
    """Return a key that every model needs, under any of its names. Errors as in `first_integer`."""
    return first_integer(text, (key, *families.ALIASES.get(key, ())), default=default)
