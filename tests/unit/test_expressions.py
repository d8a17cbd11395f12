"""Regular expressions mean the same to every Python that kvgate supports."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"(?<!\\)\[(?:\\.|[^\]\\])+\]")
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+")


def texts(file: Path) -> Iterator[str]:
    """The strings of a module, without classes of characters, as `[()*+]`."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Constant(value=str(text)):
                yield CLASS.sub("x", text)
            case ast.Constant(value=bytes(text)):
                yield CLASS.sub("x", text.decode("latin-1"))


@pytest.mark.parametrize("package", ["engine", "gateway"])
def test_no_group_is_repeated_possessively(package: str) -> None:
    """Up to Python 3.11.4, the one of Debian 12 among them, such a group matches what it should not, and the other way
    round (python/cpython#100061, #106052). One character or class may be.
    """
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert [file.name for file in files if any(map(POSSESSIVE_GROUP.search, texts(file)))] == []
