"""The build's one choice: whether the admission core is compiled, with mypyc and a C compiler.

`KVGATE_COMPILE=1` compiles it, or fails; `auto` compiles it where there is a compiler; without either it is left as it
stands. It is the same code.
"""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

BORDER = {"__init__", "commands", "events", "explanation", "limit", "outcomes", "policy", "snapshot", "value"}
"""Modules of values that others look into: msgspec and pydantic read types, which compiled classes do not keep. And
`value`, which is one thing for the type checker and another at run time."""


def compiles() -> bool:
    """Whether this build compiles the core."""
    asked = os.environ.get("KVGATE_COMPILE", "")
    return can_compile() if asked == "auto" else asked not in {"", "0"}


def can_compile() -> bool:
    """Whether there is what extension modules are compiled with: the C compiler and Python's headers."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").exists()


def core() -> list[Extension]:
    """The extension modules of the core."""
    from mypyc.build import mypycify  # noqa: PLC0415 - nobody else needs it

    modules = sorted(str(path) for path in Path("gateway/admission").rglob("*.py") if path.stem not in BORDER)
    # Without the project's settings of mypy: they name a plugin of something that is not needed here.
    extensions = list(mypycify(["--config-file=", *modules], opt_level="3", group_name="kvgate_admission"))
    for extension in extensions:
        # In what mypyc wrote GCC looks for misleading indentation, which takes 13 s, as long as all else; and notes
        # which line is where, which takes another 12 s and makes 25 MB of 4.
        extension.extra_compile_args += ["-Wno-misleading-indentation", "-g0"]
    return extensions


# pip asks for the metadata first, which say nothing of the core.
setup(ext_modules=core() if compiles() and "dist_info" not in sys.argv else [])
