"""A program in a fork is, for whoever starts it, one of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_python import forking
from tests.unit.engine.processes import eventually, is_alive

SLEEP = "import os, time; print(os.getpid(), os.getpgrp(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forking(Path(sys.executable), "json", tmp_path_factory.mktemp("forks")) as executable:
        yield executable


def test_it_gets_what_it_is_given_and_its_answer_and_code_come_back(python: Path, tmp_path: Path) -> None:
    code = "import os, sys; print(sys.argv, input(), os.getcwd(), os.environ['A']); sys.exit(3)"
    command = [python, "-c", code, "x"]
    done = subprocess.run(
        command, input="hi", capture_output=True, text=True, cwd=tmp_path, env={"A": "b"}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, f"['-c', 'x'] hi {tmp_path} b\n", "")


def test_it_has_the_module_already(python: Path) -> None:
    code = "import sys; print('json' in sys.modules)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


def test_what_it_raises_is_told_as_python_tells_it(python: Path) -> None:
    done = subprocess.run([python, "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_it_is_in_the_group_of_its_starter(python: Path, number: signal.Signals) -> None:
    command = [python, "-c", SLEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        program, group = map(int, process.stdout.readline().split())
        assert group == process.pid
        process.send_signal(number)
        assert process.wait() == -number
        assert eventually(lambda: not is_alive(program))


def test_its_own_death_by_a_signal_is_passed_on(python: Path) -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert subprocess.run([python, "-c", code], check=False).returncode == -signal.SIGKILL


def test_two_with_one_folder_share_a_process(python: Path) -> None:
    code = "import os; print(os.popen(f'ps -o ppid= -p {os.getppid()}').read().strip())"

    def above() -> str:
        return subprocess.run([python, "-c", code], env=dict(os.environ), capture_output=True, text=True).stdout  # noqa: PLW1510

    first = above()
    with forking(Path(sys.executable), "json", python.parent):
        assert above() == first
