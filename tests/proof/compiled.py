"""kvgate as it is built with `KVGATE_COMPILE=1`."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]


def with_compiled_core(folder: Path) -> Path:
    """Build the wheel of this tree and unpack it; where. Needs a C compiler, and pip's way to setuptools and mypy."""
    source, packages = folder / "source", folder / "packages"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for name in ("gateway", "engine"):
        copytree(ROOT / name, source / name, ignore=ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source],
        env={**os.environ, "KVGATE_COMPILE": "1"},
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages
