"""What pyproject.toml cannot say: with KVGATE_COMPILE=1 the admission core is compiled, with mypyc and a C compiler.

It is the same code as it stands; without the variable nothing but setuptools is needed.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

BORDER = {"__init__", "commands", "events", "explain", "outcomes", "policy", "state"}
"""Modules of values that others look into: msgspec and pydantic read types, which compiled classes do not keep."""
COMPILE = os.environ.get("KVGATE_COMPILE", "0") not in {"", "0"}


def core() -> list[Extension]:
    """The extension modules of the core."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - nobody else needs it
    except ImportError:
        if "egg_info" in sys.argv:  # pip asks what the build needs, and installs it
            return []
        raise SystemExit("KVGATE_COMPILE=1 needs mypy; pip installs it unless told --no-build-isolation") from None
    modules = sorted(str(path) for path in Path("gateway/admission").glob("*.py") if path.stem not in BORDER)
    # Without the project's settings of mypy: they name a plugin of something that is not needed here.
    return list(mypycify(["--config-file=", *modules], opt_level="3", group_name="kvgate_admission"))


setup(setup_requires=["mypy>=1.15"] if COMPILE else [], ext_modules=core() if COMPILE else [])
