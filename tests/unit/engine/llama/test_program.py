import importlib.util
import sys
from pathlib import Path

import pytest

from engine.cache import SetupError
from engine.llama.kind import LLAMA_SERVER
from engine.llama.program import IN_PROCESS, llama_server


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    file = tmp_path / "llama-server"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch):
    """Say whether the package is there."""
    return lambda there: monkeypatch.setattr(importlib.util, "find_spec", lambda _name: there or None)


def test_the_one_given_comes_before_the_one_in_path(binary: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    assert llama_server(str(other), environ) == (LLAMA_SERVER, other)
    assert llama_server("other", environ) == (LLAMA_SERVER, other)
    assert llama_server(None, environ) == (LLAMA_SERVER, binary)


def test_without_a_program_the_package_serves(package, tmp_path: Path) -> None:
    package(there=True)
    assert llama_server(None, {"PATH": str(tmp_path)}) == (IN_PROCESS, Path(sys.executable))


def test_without_either_it_says_what_to_install(package, tmp_path: Path) -> None:
    package(there=False)
    with pytest.raises(SetupError, match=r"llama-server: there is none here") as refused:
        llama_server(None, {"PATH": str(tmp_path)})
    assert "--llama-server" in refused.value.remedy
    assert "kvgate[llama]" in refused.value.remedy


def test_one_that_was_named_wrong_is_not_replaced(package, binary: Path, tmp_path: Path) -> None:
    package(there=True)
    with pytest.raises(SetupError, match=r"engine.llama_server = /no/such: there is no such program"):
        llama_server("/no/such", {"PATH": str(tmp_path)})
    binary.chmod(0o644)
    with pytest.raises(SetupError, match="it may not be executed"):
        llama_server(str(binary), {"PATH": ""})
