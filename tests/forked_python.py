"""A Python that has vLLM imported before it is asked: the import is most of an engine's start, and all of a script's.

One process imports it for all workers of a run, and forks for each program. The program's parent starts, signals and
kills another, `standing.py`: that one hands over its arguments, environment, folder, streams and process group, and
ends as the program ends.
"""

import atexit
import contextlib
import fcntl
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

STANDING = Path(__file__).with_name("standing.py")


@contextlib.contextmanager
def forking(python: Path, module: str, folder: Path) -> Iterator[Path]:
    """An executable that is used as `python` is, and has the module. Those with the same folder share one process."""
    address, executable = folder / "forks", folder / "python"
    executable.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {STANDING} {address} "$@"\n')
    executable.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as lease, (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _connected(lease, address):
            process = os.posix_spawn(python, [python, __file__, address, module], os.environ)  # others may outlive us
            while not _connected(lease, address):
                assert os.waitpid(process, os.WNOHANG) == (0, 0), f"{python} cannot import {module}"
                time.sleep(0.1)
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield executable


def _connected(lease: socket.socket, address: Path) -> bool:
    try:
        lease.connect(str(address))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def _serve(address: str, module: str) -> None:
    """Fork for whoever asks, while there are leases: connections that ask nothing."""
    __import__(module)
    Path(address).unlink(missing_ok=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that end are nobody's affair
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        leases: list[socket.socket] = [listener.accept()[0]]
        while leases:
            for ready in select.select([listener, *leases], [], [])[0]:
                if ready is listener:
                    leases.append(listener.accept()[0])
                    continue
                leases.remove(ready)
                with ready:
                    asked, streams, _, _ = socket.recv_fds(ready, 1 << 20, 3)
                    if asked and os.fork() == 0:
                        for inherited in (listener, *leases):
                            inherited.close()
                        _stand_by(ready, json.loads(asked), streams)
                    for stream in streams:
                        os.close(stream)


def _stand_by(client: socket.socket, asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Have the program run in a process below; pass signals on, tell how it ends, kill it if its client is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = os.fork()
    if program == 0:
        client.close()
        _become(asked, streams)
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(program)
    while True:
        if ended in select.select([client.fileno(), ended], [], [])[0]:
            _, status = os.waitpid(program, 0)
            with contextlib.suppress(BrokenPipeError):
                client.send(str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)
        for number in client.recv(16) or [signal.SIGKILL]:
            os.kill(program, number)


def _become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    try:
        os.setpgid(0, asked["group"])
    except PermissionError:  # of another session
        os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    code: object = 0
    try:
        _run(*asked["arguments"])
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
    except BaseException:  # noqa: BLE001 - as Python itself does it
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does at its end
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run(kind: str, *arguments: str) -> None:
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[1:]], ""
        exec(arguments[0], {"__name__": "__main__"})  # noqa: S102
    elif kind == "-m":
        sys.argv, sys.path[0] = [*arguments], ""
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [kind, *arguments], str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
