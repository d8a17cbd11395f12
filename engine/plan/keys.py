"""PURE. Reading a config.json: keys that go by several names, and what to say of one that is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.plan import families

Config = Mapping[str, Any]
"""A config.json, parsed."""


class UnknownShapeError(Exception):
    """The config does not tell what a plan needs. The message names what is missing."""


def named(config: Config, model_type: str) -> str:
    """Call a model by what its config calls itself, for an error."""
    architectures = ", ".join(config.get("architectures") or ()) or "no architecture named"
    return f"{architectures}, model type {model_type or 'not named'}"


def first_integer(text: Config, keys: Sequence[str], *, default: int | None = None) -> int:
    """Return the first of these keys that is a number, or a list that begins with one.

    Raises:
        UnknownShapeError: None is, and there is no default.
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
    """Return a key that everybody needs, by whichever of its names it is there; errors as `first_integer`."""
    return first_integer(text, (key, *families.ALIASES.get(key, ())), default=default)
