"""Settings that a command line changes with `--set`."""

from typing import Any

import yaml

from gateway.runtime.failure import fail


def changes(given: list[str], only: str | None = None) -> dict[str, Any]:
    """Nested settings from `--set`: of any section, or of only one. Exits if one cannot be read."""
    nested: dict[str, Any] = {}
    for change in given:
        name, equals, value = change.partition("=")
        path = name.split(".")
        if not equals or not all(path) or len(path) == 1 or only not in {None, path[0]}:
            fail(f"--set {change}: expected {only or 'SECTION'}.SETTING=VALUE")
        try:
            written: Any = yaml.safe_load(value)
        except yaml.YAMLError:
            fail(f"--set {change}: the value cannot be read")
        inner = nested
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                fail(f"--set {change}: {part} was set to a value before")
        inner[path[-1]] = written
    return nested
