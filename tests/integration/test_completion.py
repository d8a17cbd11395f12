"""The completion of the command line, as shells ask for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMANDS = {
    "serve", "reload", "demo", "check-config", "doctor", "simulate", "advise", "plan", "replay", "top", "version",
}  # fmt: skip


@pytest.fixture
def environ(tmp_path):
    """That of a person with `kvgate` in the PATH, and a home of their own."""
    command = tmp_path / "kvgate"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom gateway.__main__ import main\nsys.argv[0] = 'kvgate'\nmain()\n"
    )
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    root = str(Path(__file__).parents[2])
    return {**os.environ, "HOME": str(tmp_path), "PATH": path, "PYTHONPATH": root, "TERM": "dumb"}


def ran(environ, *argv, **more):
    return subprocess.run(argv, env=environ | more, capture_output=True, text=True, check=True).stdout


ASK = r"""
completed() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _kvgate_completion kvgate
    echo "${COMPREPLY[*]}"
}
completed kvgate ""
completed kvgate top --on
completed kvgate demo --engine ""
complete -p kvgate
"""


def test_bash_completes_commands_options_and_values_once_it_is_installed(environ, tmp_path):
    ran(environ, "bash", "-c", "kvgate --install-completion; true")
    commands, option, values, how = ran(environ, "bash", "--norc", "-c", f". {tmp_path}/.bashrc; {ASK}").splitlines()
    assert set(commands.split()) == COMMANDS
    assert option == "--once"
    assert set(values.split()) == {"vllm", "llama"}
    assert "-o default" in how, "so that it completes files where it has nothing to say"


@pytest.mark.parametrize(("shell", "asked"), [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})])
def test_zsh_and_fish_are_told_the_options_of_a_command(environ, shell, asked):
    asked = {"_KVGATE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "kvgate top --adm", **asked}
    told = ran(environ, "kvgate", **asked)
    assert "--admin-key-file" in told
    assert "--once" not in told
