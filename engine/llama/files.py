"""The check of a GGUF file before its engine starts: it is there, it is one, and none of its parts is missing."""

import re
from pathlib import Path

from engine.plan.hub import CheckpointError

_MAGIC = b"GGUF"
_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<parts>\d{5})$")
_FETCH = "Download it again; in a folder from git: `git lfs pull`."


def check_gguf(model: str) -> None:
    """Refuse a file that a llama-server could not load.

    Raises:
        CheckpointError: It is missing, no GGUF file, or one of several parts of which others are missing. The message
            gives the way out.
    """
    path = Path(model)
    part = _PART.match(path.stem)
    if part is not None and int(part["number"]) != 1:
        first = path.with_name(f"{part['name']}-00001-of-{part['parts']}{path.suffix}")
        raise CheckpointError(f"{model} is part {int(part['number'])} of a model", f"Name the first: {first}.")
    for name in parts_of(path.name):
        _check(path.with_name(name))


def served_name(model: str) -> str:
    """The name of a GGUF file's model: that of the file, without what numbers its parts."""
    stem = Path(model).stem
    return part["name"] if (part := _PART.match(stem)) else stem


def parts_of(name: str) -> list[str]:
    """The names of all files of a model whose first, or only, file has this name."""
    path = Path(name)
    part = _PART.match(path.stem)
    if part is None:
        return [name]
    count = int(part["parts"])
    return [f"{part['name']}-{n:05}-of-{count:05}{path.suffix}" for n in range(1, count + 1)]


def _check(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}", "Correct the path, or download it.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", "Correct its rights, or the path.") from None
    if not magic:
        raise CheckpointError(f"{path} is empty", _FETCH)
    if magic != _MAGIC:
        raise CheckpointError(f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}", _FETCH)
