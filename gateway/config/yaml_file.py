"""A YAML file of settings, or of endpoints."""

from pathlib import Path
from typing import Any

import yaml

from gateway.config.errors import ConfigurationError

_FAULTS = {
    RecursionError: "nested too deeply",
    ValueError: "a value is not what it looks like: put it in quotes",
}
"""The default error for a file, if the parser names none."""


def read_yaml(file: Path) -> Any:
    """What the file holds.

    Raises:
        ConfigurationError: it cannot be read, or is no YAML.
    """
    try:
        return yaml.load(file.read_text(), _Loader)  # noqa: S506 - a safe loader
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or _FAULTS.get(type(error), "not text")
        raise ConfigurationError(f"{file}: not valid YAML{where}: {problem}") from None


def written(value: Any) -> str:
    """A value as it is written in a file, in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    return text.strip().removesuffix("\n...")


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a duplicate key, since one of the two values would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and (first := seen.setdefault(key.value, line)) != line:
                problem = f"`{key.value}` is there already, in line {first}: put the two together"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)
