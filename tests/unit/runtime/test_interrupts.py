"""Signals, each sent to a process of its own."""

import fcntl
import os
import signal
import subprocess
import sys
import termios

import pytest

STOPS = """
import asyncio, sys, time
from gateway.runtime.interrupts import Stop
async def main():
    stop = Stop(asyncio.Event(), lambda: print("waits for requests", flush=True))
    stop.listen(asyncio.get_running_loop())
    if "late" not in sys.argv:
        print("ready", flush=True)
        await stop.event.wait()
    if "long" in sys.argv:
        await asyncio.sleep(60)
    return stop
stop = asyncio.run(main())
if "late" in sys.argv:
    print("ready", flush=True)
    time.sleep(60)
sys.exit(stop.code)
"""


@pytest.fixture
def begun():
    """Start a script without a terminal; killed after the test if it still runs."""
    processes = []

    def start(script, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # `communicate` would miss what a buffer holds
            start_new_session=True,
        )
        processes.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ended(process):
    """Its exit code, the rest of what it printed, and its complaints."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_first_signal_says_what_it_waits_for_and_only_ctrl_c_is_in_the_exit_code(begun, number, code):
    process = begun(STOPS)
    process.send_signal(number)
    assert ended(process) == (code, b"waits for requests\n", b"")


@pytest.mark.parametrize(("first", "second"), [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_of_either_kind_ends_it_at_once(begun, first, second):
    process = begun(STOPS, "long")
    process.send_signal(first)
    assert process.stdout.readline() == b"waits for requests\n"
    process.send_signal(second)
    assert ended(process) == (128 + second, b"", b"")


def test_a_signal_after_the_last_work_ends_it_without_a_traceback(begun):
    process = begun(STOPS, "late")
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, b"", b"")


HANGS_UP = """
import signal, sys
from gateway.runtime import interrupts
interrupts.has_terminal = lambda: "terminal" in sys.argv
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
interrupts.early.listen()
print("ready", flush=True)
signal.raise_signal(signal.SIGHUP)
print(interrupts.early.take(), interrupts.early.take())
"""


def test_an_early_reload_is_kept_until_somebody_asks_once(begun):
    assert ended(begun(HANGS_UP)) == (0, b"True False\n", b"")


def test_a_terminal_that_is_closed_ends_what_runs_in_it(begun):
    assert ended(begun(HANGS_UP, "terminal"))[0] == -signal.SIGHUP


IN_TERMINAL = "from gateway.runtime.interrupts import end_at_once, has_terminal\nprint(has_terminal(), flush=True)\n"


def test_only_a_terminal_is_told_of_an_end_at_once():
    """Over the `^C` that the terminal itself shows."""
    script = f"{IN_TERMINAL}end_at_once(2)"
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, start_new_session=True, check=False)
    assert (alone.returncode, alone.stdout, alone.stderr) == (130, b"False\n", b"")
    ours, theirs = os.openpty()
    try:
        inside = subprocess.run(
            [sys.executable, "-c", script],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            check=False,
        )
        assert (inside.returncode, inside.stdout) == (130, b"True\n")
        assert os.read(ours, 100) == b"\rkvgate: interrupted\r\n"
    finally:
        os.close(ours)
        os.close(theirs)
