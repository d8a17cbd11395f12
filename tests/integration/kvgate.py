"""`kvgate serve` as a process of its own, as a user runs it."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.until import PATIENCE

STOP_TIMEOUT = 120.0

PATIENT = {"KVGATE_HEALTH__HUNG_AFTER": "600"}
"""In front of a real engine: it compiles for the first request of a kind, which takes a busy machine a minute."""


class Kvgate:
    """A running kvgate."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url = url
        self.process = process
        self.log = log

    def state(self) -> dict[str, Any]:
        # Asked again and again: a TLS context would cost ten times the answer.
        asked = httpx.get(f"{self.url}/kvgate/state", timeout=60, trust_env=False, verify=False)  # noqa: S501
        return dict(asked.json())

    def healthy(self) -> list[str]:
        """Base URLs of the endpoints that take traffic."""
        try:
            endpoints = self.state().get("endpoints", ())  # none while it ends, and says so
            return [endpoint["url"] for endpoint in endpoints if endpoint["healthy"]]
        except httpx.TransportError:
            return []

    def wait_healthy(self, endpoints: int, timeout: float = PATIENCE) -> list[str]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"kvgate ended:\n{self.log.read_text()[-4000:]}")
            if len(healthy := self.healthy()) >= endpoints:
                return healthy
            time.sleep(0.2)
        raise AssertionError(f"{endpoints} endpoints not healthy in {timeout:.0f} s:\n{self.log.read_text()[-4000:]}")

    def wait_ready(self, timeout: float = PATIENCE) -> None:
        """Wait until an endpoint has been healthy: for a gateway whose state only its admin sees, or that starts it."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", trust_env=False, verify=False).is_success:  # noqa: S501
                    return
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]  # noqa: PT018
            time.sleep(0.1)

    def wait_asked(self, engine: str, before: int) -> None:
        """Wait until a vLLM that had answered so many completions has been asked its one question about lengths."""
        deadline = time.monotonic() + PATIENCE
        while answered_by(engine) <= before:
            assert time.monotonic() < deadline, f"{engine} was not asked:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)


def answered_by(engine: str) -> int:
    """How many completions a vLLM has answered, by its own metrics."""
    text = httpx.get(f"{engine}/metrics").text
    counts = re.findall(r'^http_requests_total\{handler="/v1/completions",.*\} (\S+)$', text, re.MULTILINE)
    return sum(int(float(count)) for count in counts)


@contextlib.contextmanager
def serving(log: Path, port: int, *args: str, environ: Mapping[str, str] | None = None) -> Iterator[Kvgate]:
    """`kvgate serve ARGS` on that port; ended with SIGTERM, as a person or systemd would."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", str(port), *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environ or {})},
        )
    try:
        yield Kvgate(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
