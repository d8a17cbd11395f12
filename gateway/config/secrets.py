"""The secrets among the settings: blanked where settings are shown, revealed where they are handed on.

`ops/logs.py` blanks them in logs. `sources.py` reads them from files.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from gateway.config.settings import Settings

_SHOWN_LENGTH = 60
_SECRET_NAMES = frozenset({"key", "api_key", "admin_key", "env", "redis"})
_USER_IN_URL = re.compile("(?:(?<=//)|(?<=^')).*@")


def redacted(settings: Settings, *, defaults: bool = True) -> dict[str, Any]:
    """The settings as plain values, secrets as asterisks: all, or only those that differ from the defaults."""
    return settings.model_dump(mode="json", exclude_defaults=not defaults)


def revealed(settings: BaseModel) -> dict[str, Any]:
    """Settings, or one section, as plain values including secrets: never for a log or a disk."""

    def walk(value: Any) -> Any:
        if isinstance(value, SecretStr):
            return value.get_secret_value()
        if isinstance(value, BaseModel):
            return {name: walk(getattr(value, name)) for name in type(value).model_fields}
        if isinstance(value, dict):
            return {name: walk(inner) for name, inner in value.items()}
        if isinstance(value, (tuple, list)):
            return [walk(inner) for inner in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    return dict(walk(settings))


def shown(value: Any, path: Iterable[str | int]) -> str:
    """A wrong value as a message may show it; `path` leads to its setting. Empty for what may hold secrets."""
    if isinstance(value, (Mapping, list, tuple, BaseModel)):
        return ""
    if _SECRET_NAMES.intersection(map(str, path)):
        return " = ***"
    text = _USER_IN_URL.sub("//***@", repr(value))
    return f" = {text[:_SHOWN_LENGTH]}{'...' if len(text) > _SHOWN_LENGTH else ''}"
