"""Stands for a program that runs in a fork of another Python (`forked_python.py`), without any library: 10 ms."""

import json
import os
import signal
import socket
import sys


def stand_for(address: str, arguments: list[str]) -> None:
    """Have the program run, pass signals on to it, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: server.send(bytes([number])))
        server.connect(address)
        asked = {
            "arguments": arguments,
            "environ": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes as long to import as all this
            "group": os.getpgrp(),
        }
        socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
        code = int(server.recv(16) or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    stand_for(sys.argv[1], sys.argv[2:])
