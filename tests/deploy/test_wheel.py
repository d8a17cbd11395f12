"""`make wheel`, and the core's own tests on the core that it compiles."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns
from zipfile import ZipFile

import pytest

from tests.deploy.stack import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FILES = ("Makefile", "pyproject.toml", "setup.py", "README.md", "LICENSE")
TESTS = ("tests/unit/admission", "tests/property/test_promises.py", "tests/property/test_queue.py")
NOT_HERE = "not TestQueue"
"""Hundreds of examples, whose own making is most of what they take."""


def make_wheel(folder: Path, **environ: str) -> Path:
    """Have a copy of this tree make its wheel; the file."""
    for name in FILES:
        copy2(ROOT / name, folder)
    for name in ("gateway", "engine"):
        copytree(ROOT / name, folder / name, ignore=ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(sys.prefix)
    # The environment is there, whichever of its files is newer.
    command = ["make", "--old-file=.venv/.ready", "wheel"]
    # A make that is called by another, as by `make test`, says which folder it leaves.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=folder, env=outer | environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").iterdir()
    assert done.stdout.splitlines()[-1] == f"dist/{wheel.name}"
    return wheel


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this platform, unpacked, with the tests beside it: what Python imports there is compiled."""
    quick = tmp_path_factory.mktemp("compiler") / "cc"  # optimising takes the longest, and decides nothing
    quick.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    quick.chmod(0o700)
    wheel = make_wheel(tmp_path_factory.mktemp("source"), CC=str(quick))
    folder = tmp_path_factory.mktemp("packages")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    copytree(ROOT / "tests", folder / "tests", ignore=ignore_patterns("__pycache__"))
    copy2(ROOT / "pyproject.toml", folder)
    return folder


def python(folder: Path, *arguments: str) -> str:
    """What Python prints, with this folder as the first on its path."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, *arguments]
    environ["PYTHONPATH"] = str(folder)
    done = subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_the_wheel_is_of_this_platform_and_has_the_core_compiled_and_the_product_alone(packages: Path) -> None:
    (about,) = packages.glob("kvgate-*.dist-info/WHEEL")
    assert "Root-Is-Purelib: false" in about.read_text()
    assert list(packages.glob("gateway/admission/controller.*.so"))
    (record,) = packages.glob("kvgate-*.dist-info/RECORD")
    tops = {line.split("/")[0].split(",")[0] for line in record.read_text().splitlines()}
    (compiled,) = (top for top in tops if top.endswith(".so"))
    assert tops - {compiled, record.parent.name} == {"gateway", "engine"}


def test_without_a_compiler_the_wheel_is_plain_python(tmp_path: Path) -> None:
    assert make_wheel(tmp_path, CC="/nonexistent/cc").name.endswith("-py3-none-any.whl")


def test_the_compiled_core_passes_the_tests_of_the_core(packages: Path) -> None:
    printed = python(packages, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NOT_HERE, *TESTS)
    passed = int(printed.splitlines()[-1].split(" passed")[0].split()[-1])
    assert passed > 800, printed[-2000:]


def test_the_compiled_core_decides_what_its_source_does(packages: Path) -> None:
    (compiled, *ours), (source, *theirs) = (
        python(folder, "-m", "tests.property.told").split() for folder in (packages, ROOT)
    )
    assert (Path(compiled).suffix, Path(source).suffix) == (".so", ".py")
    assert len(ours) > 20
    assert ours == theirs
