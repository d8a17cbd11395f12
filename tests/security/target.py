"""The kvgate under attack, as an attacker and a measuring observer see it."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from tests.integration.relaying import fake_processes

ROOT = Path(__file__).parents[2]
_TIMEOUT = 120.0
_AT_REST = 0.02
_QUIET = 3
"""Seconds, each without a longer stretch than that."""
MOST_STRETCH = 0.050
"""Seconds of the loop thread's CPU time, at a stretch, that anything a stranger sends may take."""
_MEASUREMENTS = 3
"""The least of so many counts: what else runs on a machine takes cache and memory from everybody, and gives nothing."""


@dataclass(frozen=True)
class Answer:
    """What came back on a connection: everything until the other side closed it, or until its first answer ended."""

    raw: bytes

    @property
    def status(self) -> int:
        """Of the first answer; 0 where there was none."""
        words = self.raw[:64].split(b" ")
        return int(words[1]) if len(words) > 1 else 0

    @property
    def body(self) -> bytes:
        """Of the first answer, with its framing."""
        return self.raw.partition(b"\r\n\r\n")[2]


class Target:
    """A kvgate process. `port` is where its clients come in, `hostile` the engine that says what a test wants."""

    def __init__(self, process: subprocess.Popen[str], hostile: Any) -> None:
        self.process = process
        self.hostile = hostile
        self.port = int(self._line())

    def stretch(self) -> float:
        """The longest stretch of its loop since the last question, in seconds of the loop thread's CPU time."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line())

    def cost(self, attack: Callable[[Self], Answer]) -> tuple[Answer, float, int]:
        """The answer to an attack, the longest stretch in seconds, and bytes of memory added, as `peak` counts them.

        One over `MOST_STRETCH` is measured again.
        """
        for _ in range(_MEASUREMENTS):
            before = self.forget_peaks()
            self.stretch()
            got = attack(self)
            stretch, grown = self.stretch(), self.peak() - before
            print(f"{got.status}, {stretch * 1000:.1f} ms, {grown / (1 << 20):.0f} MB")
            if stretch < MOST_STRETCH:
                break
        return got, stretch, grown

    def send(self, *pieces: bytes, timeout: float = _TIMEOUT) -> Answer:
        """Send raw bytes on a connection of their own; return what comes back until it closes or its answer ended."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it had enough; its answer may be there all the same
            received = bytearray()
            size = None
            try:
                while data := connection.recv(1 << 20):
                    received += data
                    size = size or _size(received)
                    if (size is not None and len(received) >= size) or received.endswith(b"\r\n0\r\n\r\n"):
                        break
            except ConnectionResetError:
                pass
        return Answer(bytes(received))

    def post(self, path: str, body: bytes, *headers: str, content_type: str = "application/json") -> Answer:
        """Send a request."""
        return self.send(request("POST", path, body, *headers, content_type=content_type), body)

    def leave(self, path: str, body: bytes, *, once: Callable[[], bool]) -> None:
        """Send a request, and close the connection once that holds after its last byte."""
        with socket.create_connection(("127.0.0.1", self.port), _TIMEOUT) as connection:
            connection.sendall(request("POST", path, body) + body)
            deadline = time.monotonic() + _TIMEOUT
            while not once():
                assert time.monotonic() < deadline, "it is waited for in vain"
                time.sleep(0.02)

    @contextlib.contextmanager
    def begun(self, path: str, body: bytes) -> Iterator[None]:
        """Send a request; while the block runs, its answer has begun with status 200 and its client is still there."""
        with socket.create_connection(("127.0.0.1", self.port), _TIMEOUT) as connection:
            connection.sendall(request("POST", path, body) + body)
            received = b""
            while b"data: " not in received:
                piece = connection.recv(1 << 16)
                assert piece, received
                received += piece
            assert Answer(received).status == HTTPStatus.OK, received
            yield

    def get(self, path: str, *headers: str) -> Answer:
        """Send a request without a body."""
        return self.send(request("GET", path, b"", *headers))

    def wait_ready(self, modes: set[str]) -> None:
        """Until its models are counted so, by kvgate itself once the tokenizer is loaded, or by the engine."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            answer = self.get("/kvgate/state")
            counting = json.loads(answer.body)["counting"] if answer.status == HTTPStatus.OK else []
            if {model["mode"] for model in counting} == modes:
                return
            time.sleep(0.1)
        raise AssertionError(f"not ready: {answer.raw!r}")

    def wait_settled(self) -> None:
        """Until its loop has done for a while what it does when nobody comes, and no more of what follows a start."""
        deadline = time.monotonic() + _TIMEOUT
        quiet = 0
        while quiet < _QUIET:
            assert time.monotonic() < deadline, "its loop does not come to rest"
            time.sleep(1)
            quiet = quiet + 1 if self.stretch() < _AT_REST else 0

    def metrics(self) -> list[str]:
        """Lines of `/metrics`."""
        return self.get("/metrics").body.decode().splitlines()

    def forget_peaks(self) -> int:
        """Begin a new measurement of memory; returns bytes in use now, over the process and its children."""
        for pid in self._pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        return self.in_use()

    def in_use(self) -> int:
        """Bytes in use now, over the process and its children."""
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most bytes in use since `forget_peaks`: of each process its own most."""
        return self._memory("VmHWM")

    def _memory(self, field: str) -> int:
        total = 0
        for pid in self._pids():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    def _pids(self) -> list[int]:
        pid = self.process.pid
        tasks = Path(f"/proc/{pid}/task")
        children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
        return [pid, *children]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "kvgate ended"
        return line


def launch(settings: dict[str, Any], log: Path, descriptors: int | None = None) -> subprocess.Popen[str]:
    """Start a kvgate with these settings, and with at most so many file descriptors."""
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.watched", *([] if descriptors is None else [str(descriptors)])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()
    return process


def request(method: str, path: str, body: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: kvgate", "connection: close", *headers]
    if body or method == "POST":
        lines += [f"content-type: {content_type}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _size(received: bytearray) -> int | None:
    """Bytes of an answer whose head has arrived and tells them."""
    head = received.find(b"\r\n\r\n")
    for line in received[:head].lower().split(b"\r\n") if head >= 0 else ():
        if line.startswith(b"content-length:"):
            return head + 4 + int(line.split(b":")[1])
    return None


@contextlib.contextmanager
def attacked(folder: Path, template: str, log: Path, *options: str) -> Iterator[Target]:
    """A gateway in front of a fake vLLM, both with the tokenizer in this folder and a chat template of ours."""
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    with fake_processes(1, "--tokenizer", str(folder), *options) as [(url, _)]:
        settings = {
            "server": {"host": "127.0.0.1", "port": 0, "body_timeout": 20, "state_dir": "none"},
            "models": [{"tokenizer": str(folder), "endpoints": [{"url": url}]}],
            "log": {"format": "json"},
        }
        process = launch(settings, log)
        try:
            target = Target(process, None)
            target.wait_ready({"local"})
            yield target
        finally:
            process.terminate()
            process.communicate()
