"""The sources of settings: flag over environment (`KVGATE_*`, `__` nests) over file over default."""

import difflib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from gateway.config.discovery import DiscoverySettings
from gateway.config.endpoint import EndpointSettings
from gateway.config.errors import ConfigurationError
from gateway.config.fields import usable_key
from gateway.config.secrets import shown
from gateway.config.settings import Settings

_PREFIX = "KVGATE_"
_NOT_SETTINGS = frozenset({"KVGATE_CACHE", "KVGATE_CONFIG", "KVGATE_ENGINE_PYTHON"})
"""Variables read before there are settings, or by the engine's setup."""
_ENVIRONMENT = "environment"
_MOST_BYTES = 2**20
"""Most bytes of a list of endpoints."""
_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    "string_type": "expected text, in quotes where it looks like something else",
    "path_type": "expected a path",
    **dict.fromkeys(("tuple_type", "list_type"), "expected a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "expected keys and values"),
    **dict.fromkeys(("url_type", "url_parsing", "url_scheme"), "expected a URL"),
}
"""The requirements behind pydantic's kinds of errors, in our words. An example follows."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a kvgate's settings, to read again.

    Attributes:
        flags: nested settings from the command line.
        file: the file named there.
        finished: the last step after reading.
    """

    flags: Mapping[str, Any]
    file: Path | None = None
    finished: Callable[[Settings], Settings] = lambda settings: settings

    @property
    def has_file(self) -> bool:
        """Whether there is a file, wherever it was named."""
        return self.file is not None or bool(os.environ.get("KVGATE_CONFIG"))

    def read(self, file: Path | None = None, changes: Mapping[str, Any] | None = None) -> Settings:
        """The current settings, from another file if one is given. `changes` override all of them.

        Raises:
            ConfigurationError: the settings cannot be used, or there is nothing to serve.
        """
        settings = self.finished(load(self.flags, file or self.file, changes=changes))
        if not settings.models:
            raise ConfigurationError("there is nothing to serve: no `models`")
        return settings


def load(
    flags: Mapping[str, Any],
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge the sources and validate the result.

    Args:
        flags: nested settings from the command line.
        file: YAML file; if None, the one that `KVGATE_CONFIG` names.
        environ: the environment, `os.environ` by default.
        changes: nested settings that override all of these.

    Raises:
        ConfigurationError: a key is unknown, a value is bad, or a file cannot be read.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get("KVGATE_CONFIG"):
        file = Path(environ["KVGATE_CONFIG"])
    sources = {
        "--set": dict(changes or {}),
        "command line": dict(flags),
        _ENVIRONMENT: _from_environment(environ),
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
    """A secret, given directly or by file; None if neither is.

    Raises:
        ConfigurationError: the file cannot be read, or holds no key.
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


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {name: value for name, value in environ.items() if name.startswith(_PREFIX)}
    unknown = []
    for name in names:
        top = name.removeprefix(_PREFIX).split("__")[0].lower()
        if name not in _NOT_SETTINGS and top not in Settings.model_fields:
            unknown.append(f"{name} (environment): unknown key{_suggest(top, Settings.model_fields)}")
    if unknown:
        raise ConfigurationError("\n".join(unknown))
    if not names:
        return {}
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415 - a worker has its settings from its parent
    from pydantic_settings.exceptions import SettingsError  # noqa: PLC0415

    # It looks at the fields alone.
    source = EnvSettingsSource(Settings, env_prefix=_PREFIX, env_nested_delimiter="__")  # type: ignore[arg-type]
    source.env_vars = {name.lower(): value for name, value in names.items()}
    try:
        return dict(source())
    except SettingsError as error:
        raise ConfigurationError("\n".join(filter(None, map(_not_json, names.items()))) or str(error)) from None


def _not_json(variable: tuple[str, str]) -> str | None:
    """The fault in a variable that must hold JSON and does not."""
    name, value = variable
    path = name.removeprefix(_PREFIX).lower().split("__")
    shown = _example(path, _ENVIRONMENT, whole=True)
    if not shown.startswith(("[", "{")):
        return None
    try:
        json.loads(value)
    except ValueError as error:
        where = f"character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else "it"
        return f"{name} (environment): expected JSON, as {shown}; {where} is not"
    return None


def endpoints_of(source: DiscoverySettings, file: Path) -> tuple[EndpointSettings, ...]:
    """The endpoints that a source's file lists.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is wrong.
    """
    if file.exists() and file.stat().st_size > _MOST_BYTES:
        raise ConfigurationError(f"{file}: over {_MOST_BYTES >> 20} MiB: this is no list of endpoints")
    from gateway.config.yaml_file import read_yaml  # noqa: PLC0415 - as below

    values = read_yaml(file)
    if not isinstance(values, list):
        raise ConfigurationError(
            f"{file}: expected a list of endpoints, as [{_example(('models', 'endpoints', 'url'), '')}]"
        )
    entries = [value if isinstance(value, dict) else {"url": value} for value in values]
    at = ("models", 0, "endpoints")
    sources = {str(file): {"models": [{"endpoints": entries}]}}
    faults, found = [], []
    for number, entry in enumerate(entries):
        try:
            found.append(source.endpoint(**{str(name): value for name, value in entry.items()}))
        except ValidationError as error:
            for fault in error.errors():
                fault["loc"] = (*at, number, *fault["loc"])
                faults.append(_explain(fault, sources).removeprefix("models[0]."))
    if faults:
        raise ConfigurationError("\n".join(faults))
    return tuple(found)


def _from_file(file: Path) -> dict[str, Any]:
    from gateway.config.yaml_file import read_yaml  # noqa: PLC0415 - a worker has its settings from its parent

    values = read_yaml(file)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{file}: expected keys and values, got {type(values).__name__}")
    # Everything in this section is commented out.
    return {name: value for name, value in values.items() if value is not None}


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    written = {str(name): name for name in below}  # a band is a number in YAML and text elsewhere
    for key, value in above.items():
        name = written.get(str(key), key)
        beneath = merged.get(name)
        merged[name] = _merge(beneath, value) if isinstance(beneath, dict) and isinstance(value, Mapping) else value
    return merged


def _explain(fault: ErrorDetails, sources: Mapping[str, Mapping[str, Any]]) -> str:
    path = fault["loc"]
    key = _dotted(path)
    # Blame a missing key on the source of the section that lacks it.
    written = path[:-1] if fault["type"] == "missing" else path
    where = next((name for name, values in sources.items() if _contains(values, written)), "defaults")
    if fault["type"] == "extra_forbidden":
        return f"{key} ({where}): unknown key{_suggest(str(path[-1]), _fields_at(path[:-1]))}"
    if fault["type"] == "missing":
        return f"{key} ({where}): missing, and there is no default"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ").replace("should be", "expected")
    if fault["type"] in _EXPECTED:
        message = _EXPECTED[fault["type"]]
        if example := _example(path, where):
            message += f", as {example}"
    elif fault["type"] == "literal_error" and isinstance(fault["input"], bool):
        message += "; in YAML, a bare on, off, yes or no means true or false: put it in quotes"
    return f"{key or 'settings'}{shown(fault['input'], path)} ({where}): {message}"


def _example(path: Sequence[str | int], where: str, *, whole: bool = False) -> str:
    """An example of the value at this path; "" if there is none. `whole` also builds one for a section."""
    names = [part for part in path if isinstance(part, str)]
    field = _model_at(path[: len(path) - 1 - path[::-1].index(names[-1])]).model_fields.get(names[-1])
    if field is None:
        return ""
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    if isinstance(value, list) and path[-1] != names[-1]:
        value = value[0]
    if isinstance(value, BaseModel):
        changed = ((name, given) for name, given in value.model_dump(mode="json").items() if given is not None)
        value = dict([next(changed)]) if whole or where != _ENVIRONMENT else ""
    if value is None or value == "" or value is PydanticUndefined or isinstance(value, SecretStr):
        return ""
    if where == _ENVIRONMENT:
        return json.dumps(value).strip('"')
    from gateway.config.yaml_file import written  # noqa: PLC0415 - for what is wrong

    return written(value).strip('"')


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
    return _model_at(path).model_fields


def _model_at(path: Iterable[str | int]) -> type[BaseModel]:
    """The section at a path, or the one around it."""
    model: type[BaseModel] = Settings
    for part in path:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:  # else an index, or the key of an entry
            model = next(_sections(field.annotation), model)
    return model


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}"
