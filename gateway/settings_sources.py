"""Settings from where users put them: flag over environment (`KVGATE_*`, `__` nests) over file over default."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource
from pydantic_settings.exceptions import SettingsError

from gateway.config import Settings, usable_key

_PREFIX = "KVGATE_"
_NOT_SETTINGS = frozenset({"KVGATE_CACHE", "KVGATE_CONFIG", "KVGATE_ENGINE_PYTHON"})
"""Variables that are read before there are settings, or by the engine's set-up."""
_SHOWN_LENGTH = 60
_SECRET_NAMES = frozenset({"key", "api_key", "admin_key", "env"})
_USER_IN_URL = re.compile("//.*@")


class ConfigurationError(Exception):
    """The configuration cannot be used. The message is for the person who wrote it: every fault, one a line."""


def load(flags: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Merge the sources and validate the result.

    Args:
        flags: nested settings given on the command line.
        file: YAML file; `KVGATE_CONFIG` names one where this is None.
        environ: the environment, `os.environ` by default.

    Raises:
        ConfigurationError: an unknown key, a bad value, or a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get("KVGATE_CONFIG"):
        file = Path(environ["KVGATE_CONFIG"])
    sources = {
        "command line": dict(flags),
        "environment": _from_environment(environ),
        **({str(file): _from_file(file)} if file is not None else {}),
    }
    merged: dict[str, Any] = {}
    for values in reversed(sources.values()):
        merged = _merge(merged, values)
    try:
        return Settings(**merged)
    except ValidationError as error:
        lines = [_explain(fault, sources) for fault in error.errors()]
        raise ConfigurationError("\n".join(lines)) from None


def read_secret(value: SecretStr | None, file: Path | None) -> str | None:
    """A secret given directly or by file; None where neither is.

    Raises:
        ConfigurationError: the file cannot be read, or what it holds is no key.
    """
    if value is not None:
        return value.get_secret_value()
    if file is None:
        return None
    try:
        return usable_key(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot read the key: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: expected a key, this is not text") from None
    except ValueError as error:
        raise ConfigurationError(f"{file}: {error}") from None


def redacted(settings: Settings) -> dict[str, Any]:
    """The settings as plain values, secrets as asterisks."""
    return settings.model_dump(mode="json")


def revealed(settings: BaseModel) -> dict[str, Any]:
    """Settings, or a section of them, as plain values with the secrets in them: never for a log or a disk."""

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


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {name: value for name, value in environ.items() if name.startswith(_PREFIX)}
    unknown = []
    for name in names:
        top = name.removeprefix(_PREFIX).split("__")[0].lower()
        if name not in _NOT_SETTINGS and top not in Settings.model_fields:
            unknown.append(f"{name} (environment): unknown key{_suggest(top, Settings.model_fields)}")
    if unknown:
        raise ConfigurationError("\n".join(unknown))
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in names.items()}
    try:
        return dict(source())
    except SettingsError:
        fields = {field: names.get(f"{_PREFIX}{field.upper()}") for field in Settings.model_fields}
        given = ", ".join(f"{_PREFIX}{field.upper()}" for field, value in fields.items() if value is not None)
        raise ConfigurationError(f"{given} (environment): expected JSON") from None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not text"
        raise ConfigurationError(f"{file}: not valid YAML{where}: {problem}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: expected keys and values, got {type(values).__name__}")
    return values


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        beneath = merged.get(name)
        merged[name] = _merge(beneath, value) if isinstance(beneath, dict) and isinstance(value, Mapping) else value
    return merged


def _explain(fault: ErrorDetails, sources: Mapping[str, Mapping[str, Any]]) -> str:
    path = fault["loc"]
    key = _dotted(path)
    # A missing key is the fault of whoever wrote the section that misses it.
    written = path[:-1] if fault["type"] == "missing" else path
    where = next((name for name, values in sources.items() if _contains(values, written)), "defaults")
    if fault["type"] == "extra_forbidden":
        return f"{key} ({where}): unknown key{_suggest(str(path[-1]), _fields_at(path[:-1]))}"
    if fault["type"] == "missing":
        return f"{key} ({where}): missing, and there is no default"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should be", "expected")
    return f"{key or 'settings'}{_shown(fault['input'], path)} ({where}): {message}"


def _dotted(path: Iterable[str | int]) -> str:
    key = ""
    for part in path:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else part
    return key


def _contains(values: Any, path: Iterable[str | int]) -> bool:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _fields_at(path: Iterable[str | int]) -> Iterable[str]:
    model: Any = Settings
    for part in path:
        if isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(part)
            model = field.annotation if field is not None else model  # else the key of an entry, as JSON has it
        candidates = [model, *get_args(model)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else ()


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}"


def _shown(value: Any, path: Iterable[str | int]) -> str:
    if isinstance(value, (Mapping, list, tuple, BaseModel)):
        return ""  # whole sections may hold secrets
    if _SECRET_NAMES.intersection(map(str, path)):
        return " = ***"
    text = _USER_IN_URL.sub("//***@", repr(value))
    return f" = {text[:_SHOWN_LENGTH]}{'...' if len(text) > _SHOWN_LENGTH else ''}"
