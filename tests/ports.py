"""Ports for the servers that tests start."""

import contextlib
import secrets
import socket


def free_port() -> int:
    """A port that is free now, below those that the system gives to whoever asks for any.

    So neither another test nor a connection of anybody has it before its server listens.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
