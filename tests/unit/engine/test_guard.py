import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from engine import guard
from tests.unit.engine.processes import eventually, is_alive

BOUND = 10.0

# Starts a child, tells both pids, and then does what the argument says.
FAMILY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
exec(sys.argv[1])
"""


class Guarded:
    """A guard over FAMILY, as its parent sees it."""

    def __init__(self, *argv: str) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(BOUND)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), *argv],
                stdout=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        self.lines = self.channel.makefile()

    def pids(self) -> list[int]:
        assert self.lines.readline().startswith("started ")
        assert self.process.stdout is not None
        return [int(pid) for pid in self.process.stdout.readline().split()]

    def number(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.lines.close()
        self.channel.close()


@pytest.fixture
def family() -> Iterator[Callable[[str], Guarded]]:
    made: list[Guarded] = []

    def make(then: str) -> Guarded:
        made.append(Guarded(sys.executable, "-S", "-c", FAMILY, then))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_nobody_outlives_the_parent(family: Callable[[str], Guarded]) -> None:
    guarded = family("time.sleep(600)")
    pids = guarded.pids()
    guarded.channel.shutdown(socket.SHUT_WR)  # what the kernel does for a parent that is killed
    assert guarded.process.wait(BOUND) == -signal.SIGKILL
    assert eventually(lambda: not any(map(is_alive, pids)))


def test_the_exit_code_is_told_and_the_guard_stays_until_it_is_killed(family: Callable[[str], Guarded]) -> None:
    guarded = family(
        "deaf = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)';"
        "child = subprocess.Popen([sys.executable, '-S', '-c', deaf], stdout=subprocess.PIPE);"
        "child.stdout.read(1); print(child.pid, flush=True); sys.exit(7)"
    )
    guarded.pids()
    deaf = guarded.number()
    assert guarded.lines.readline() == "exited 7\n"
    assert guarded.process.poll() is None
    assert is_alive(deaf)
    os.killpg(guarded.process.pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(deaf))


def test_what_the_program_left_behind_is_killed_before_its_end_is_told(family: Callable[[str], Guarded]) -> None:
    guarded = family("sys.exit(0)")
    _, child = guarded.pids()
    assert guarded.lines.readline() == "exited 0\n"
    assert not is_alive(child)


def test_sigterm_reaches_the_program_and_not_its_children(family: Callable[[str], Guarded]) -> None:
    guarded = family(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + (child.poll() is None)));"
        "print('armed', flush=True); time.sleep(600)"
    )
    guarded.pids()
    assert guarded.process.stdout is not None
    assert guarded.process.stdout.readline() == b"armed\n"
    guarded.process.terminate()
    assert guarded.lines.readline() == "exited 41\n"


def test_a_program_killed_by_a_signal_is_told_so(family: Callable[[str], Guarded]) -> None:
    guarded = family("time.sleep(600)")
    program, _ = guarded.pids()
    os.kill(program, signal.SIGKILL)
    assert guarded.lines.readline() == "exited -9\n"


def test_the_program_does_not_outlive_a_guard_that_is_killed(family: Callable[[str], Guarded]) -> None:
    guarded = family("time.sleep(600)")
    program, _ = guarded.pids()
    guarded.process.kill()
    assert guarded.lines.readline() == ""
    assert eventually(lambda: not is_alive(program))


def test_what_cannot_be_started_is_told() -> None:
    guarded = Guarded("/no/such/program")
    try:
        assert guarded.lines.readline() == "failed /no/such/program: No such file or directory\n"
    finally:
        guarded.close()
