"""The lock files: what is installed here, in CI and in the image is what `pyproject.toml` asks for, byte for byte."""

import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.stack import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDS = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
ASKED = {
    "dev.txt": [*NEEDS, *EXTRAS["dev"]],
    "image.txt": NEEDS,
    "demo.txt": [*NEEDS, *EXTRAS["demo"], *EXTRAS["llama"], "setuptools"],
    "build.txt": PROJECT["build-system"]["requires"],
}


def locked(name: str) -> dict[str, Requirement]:
    """The release of each package that a lock file has for this interpreter."""
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text, "where packages come from is each machine's own affair"
    entries = re.findall(r"^(\S[^\\]*?) \\((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\S", text, re.MULTILINE)), "each with the hashes of its files"
    pins = [Requirement(entry) for entry, _ in entries]
    return {canonicalize_name(pin.name): pin for pin in pins if pin.marker is None or pin.marker.evaluate()}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for_is_locked(name: str) -> None:
    """Else `make lock`."""
    pins = locked(name)
    for asked in map(Requirement, ASKED[name]):
        (pinned,) = pins[canonicalize_name(asked.name)].specifier
        assert pinned.operator == "=="
        assert asked.specifier.contains(pinned.version), f"{asked}: {name} has {pinned.version}"


@pytest.mark.parametrize("name", ["image.txt", "demo.txt", "build.txt"])
def test_what_is_shipped_is_what_is_tested(name: str) -> None:
    tested = locked("dev.txt")
    assert {name: str(pin) for name, pin in locked(name).items() if str(tested[name]) != str(pin)} == {}


def test_what_is_installed_lacks_nothing() -> None:
    """Locks are installed as they are. Looking for dependencies, pip finds newer ones of those with extras."""
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
