"""A tiny process between kvgate and a program, so that the program and the children in its group never outlive kvgate.

    python guard.py FD PROGRAM [ARGUMENT]...

The guard leads a process group of its own and starts the program in it. It opens no session: where the kernel
schedules by session (`sched_autogroup_enabled`), an engine in its own session stood still for a second and more at a
time (measured, vLLM on two cores). FD is one end of a socket pair; the parent holds the other.

- When the parent dies, in any way, the kernel closes its end. The guard reads end-of-file, kills the program and its
  children, and at last the whole group, itself included, with one signal.
- When the program ends, the guard sweeps up its children, writes one line (`exited CODE`, as in
  `subprocess.Popen.returncode`) and stays. So nobody else can get the group's id until the parent has killed whatever
  is still in the group.
- When the guard dies, the parent sees the end-of-file and kills the group.
- The guard passes SIGTERM, SIGINT and SIGUSR1 to the program alone: a server stops its own children in its own order.
- The program gets every descriptor that the guard inherits except FD, under the same numbers.

It imports only the standard library, so a guard costs 30 ms and a few megabytes.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # both from linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_PARENT_DIED = signal.SIGHUP
_SWEEP_TIMEOUT = 2.0


def guard(parent: socket.socket, argv: list[str]) -> None:
    """Run the program until the parent is gone. Does not return."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    for number in (signal.SIGCHLD, _PARENT_DIED, *_FORWARDED):
        signal.signal(number, lambda *_: None)
    # The socket is enough, unless another process holds a copy of the parent's end. This covers that case too.
    _LIBC.prctl(_PR_SET_PDEATHSIG, _PARENT_DIED)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    program = _start(parent, argv)
    while True:
        ready, _, _ = select.select([parent, reader], [], [])
        numbers = reader.recv(64) if reader in ready else b""
        if parent in ready or _PARENT_DIED in numbers:
            if program is not None:
                program.kill()
                program.wait()
                _sweep()
            os.killpg(0, signal.SIGKILL)
        if program is None:
            continue
        for number in _FORWARDED:
            if number in numbers:
                program.send_signal(number)
        if (code := program.poll()) is not None:
            program = None
            _sweep()
            _tell(parent, f"exited {code}")


def _start(parent: socket.socket, argv: list[str]) -> subprocess.Popen[bytes] | None:
    def die_with_guard() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    try:
        program = subprocess.Popen(argv, close_fds=False, preexec_fn=die_with_guard)  # noqa: PLW1509 - has one thread
    except OSError as error:
        _tell(parent, f"failed {argv[0]}: {error.strerror}")
        return None
    # With the guard's copies open, the other ends would never see the program's end.
    for inherited in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if os.get_inheritable(inherited):
                os.close(inherited)
    _tell(parent, f"started {program.pid}")
    return program


def _sweep() -> None:
    """Kill what the program left behind. A process that ignores SIGTERM gets a moment to end by itself.

    Python's resource tracker is one: once the others are dead it removes their shared memory (hundreds of megabytes
    for a vLLM). Killed together with them it could not.
    """
    deadline = time.monotonic() + _SWEEP_TIMEOUT
    while time.monotonic() < deadline and (others := _others()):
        for pid in others:
            with contextlib.suppress(OSError):
                if not _ignores_sigterm(pid):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # orphans become children of their subreaper, the guard
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.02)


def _others() -> list[int]:
    """The other members of the guard's group, whoever started them."""
    members = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(pid := int(entry.name)) == os.getpgrp() and pid != os.getpid():
                members.append(pid)
    return members


def _ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(masks and masks[0] >> (signal.SIGTERM - 1) & 1)


def _tell(parent: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the watch on the parent notices when it is gone
        parent.sendall(f"{line}\n".encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        parent.set_inheritable(False)
        guard(parent, sys.argv[2:])
