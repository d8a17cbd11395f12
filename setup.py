"""The build's one choice: with KVGATE_COMPILE=1 the admission core is compiled, with mypyc and a C compiler.

It is the same code as it stands; without the variable no compiler is needed.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

BORDER = {"__init__", "commands", "events", "explanation", "outcomes", "policy", "snapshot", "standing"}
"""Modules of values that others look into: msgspec and pydantic read types, which compiled classes do not keep."""
COMPILE = os.environ.get("KVGATE_COMPILE", "0") not in {"", "0"}


def core() -> list[Extension]:
    """The extension modules of the core."""
    from mypyc.build import mypycify  # noqa: PLC0415 - nobody else needs it

    modules = sorted(str(path) for path in Path("gateway/admission").rglob("*.py") if path.stem not in BORDER)
    # Without the project's settings of mypy: they name a plugin of something that is not needed here.
    return list(mypycify(["--config-file=", *modules], opt_level="3", group_name="kvgate_admission"))


setup(ext_modules=core() if COMPILE else [])
