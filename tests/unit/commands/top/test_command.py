import builtins
import importlib.util

import pytest
from typer.testing import CliRunner

from gateway.cli import command_line
from gateway.commands.top import following, screen
from gateway.commands.top.following import RefusedError
from tests.unit.ops.pictures.pictures import endpoint, picture


@pytest.fixture
def top(monkeypatch):
    """Runs the command; what it asked for, and whether the view was opened."""
    asked, opened = [], []

    async def once(kvgate):
        if kvgate.url.endswith(":9"):
            raise RefusedError(f"{kvgate.url}: cannot be reached: refused")
        asked.append((kvgate.url, kvgate._client.headers.get("authorization")))
        return picture(endpoints=(endpoint("gpu-1:8000"),))

    class View:
        def __init__(self, kvgate):
            opened.append(kvgate.url)

        def run(self):
            return "it wants an admin key" if opened[-1].endswith(":9") else None

    monkeypatch.setattr(following.Kvgate, "picture", once)
    monkeypatch.setattr(screen, "Top", View)

    def run(*options, **environ):
        none = {"KVGATE_AUTH__ADMIN_KEY": None, "KVGATE_AUTH__ADMIN_KEY_FILE": None}
        return CliRunner().invoke(command_line(), ["top", *options], env=none | environ), asked, opened

    return run


def test_once_prints_wide_tables_for_another_program(top):
    result, asked, opened = top("--once")
    assert result.exit_code == 0
    assert "gpu-1:8000" in result.stdout
    assert "prefill" in result.stdout
    assert (asked, opened) == ([("http://127.0.0.1:8080", None)], [])


def test_the_key_comes_from_a_flag_the_environment_or_a_file(top, tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    top("--once", "--admin-key", "given", KVGATE_AUTH__ADMIN_KEY_FILE=str(file))
    top("--once", KVGATE_AUTH__ADMIN_KEY="of-environment")
    top("--once", "--admin-key-file", str(file))
    _, asked, _ = top("--once", "--url", "http://k:1", KVGATE_AUTH__ADMIN_KEY_FILE=str(file))
    assert [key for _, key in asked] == [
        "Bearer given",
        "Bearer of-environment",
        "Bearer from-file",
        "Bearer from-file",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--once", "--url", "http://k:9"), "kvgate: http://k:9: cannot be reached: refused"),
        (("--url", "http://k:9"), "kvgate: it wants an admin key"),
        (("--admin-key-file", "/nonexistent"), "kvgate: /nonexistent cannot be read: No such file or directory"),
        (("--once", "--url", "http://k:port"), "kvgate: http://k:port: cannot be reached"),
    ],
)
def test_what_does_not_work_is_one_line(top, options, said):
    result, _, _ = top(*options)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_without_textual_it_says_what_to_install_and_once_does_without(top, monkeypatch):
    find_spec, load = importlib.util.find_spec, builtins.__import__

    def found(name, *rest):
        return None if name == "textual" else find_spec(name, *rest)

    def loaded(name, *rest):
        assert not name.startswith("textual")
        return load(name, *rest)

    monkeypatch.setattr("gateway.commands.top.command.find_spec", found)
    monkeypatch.setattr(builtins, "__import__", loaded)
    result, _, opened = top()
    assert (result.exit_code, opened) == (2, [])
    assert "pip install 'kvgate[top]'" in result.stderr
    assert top("--once")[0].exit_code == 0
