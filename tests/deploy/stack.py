"""nginx with the shipped file in front of kvgates, all as processes of their own."""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port
from tests.until import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
NGINX_CONF = ROOT / "deploy" / "nginx" / "nginx.conf"
STOP_TIMEOUT = 20.0


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert asyncio.get_running_loop().time() < deadline, f"not in {PATIENCE:g} s: {what}"
        await asyncio.sleep(0.01)


class Kvgate:
    """`kvgate serve` in front of endpoints."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What it logged of this kind."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)


@contextlib.asynccontextmanager
async def kvgate(folder: Path, *endpoints: str, environ: Mapping[str, str] | None = None) -> AsyncIterator[Kvgate]:
    """A kvgate that is ready, counting by the engine where the endpoint's tokenizer does not exist."""
    port = free_port()
    log = folder / f"kvgate-{port}.log"
    argv = [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", str(port)]
    for endpoint in endpoints:
        argv += ["--endpoint", endpoint]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", **(environ or {})}
    async with _running(argv, log, environ) as process:
        running = Kvgate(process, port, log)
        await until(lambda: _answers(process, f"{running.url}/readyz", log), "kvgate is ready")
        yield running


@contextlib.asynccontextmanager
async def nginx(
    binary: str, folder: Path, upstreams: Sequence[int], change: Callable[[str], str] = str
) -> AsyncIterator[str]:
    """nginx with the shipped file, its addresses and folders changed, and what `change` does to it; yields its URL."""
    port = free_port()
    temporary = folder / "nginx"
    temporary.mkdir()
    temporary.chmod(0o777)
    for parent in temporary.parents:  # workers are not root
        if parent.is_relative_to("/tmp") and parent.stat().st_uid == os.getuid():  # noqa: S108
            parent.chmod(parent.stat().st_mode | 0o011)
    file = temporary / "nginx.conf"
    file.write_text(change(here(NGINX_CONF.read_text(), port, upstreams, temporary)))
    log = temporary / "log"
    argv = [binary, "-p", str(temporary), "-c", str(file), "-g", "daemon off;"]
    async with _running(argv, log, os.environ) as process:
        url = f"http://127.0.0.1:{port}"
        await until(lambda: _answers(process, f"{url}/nothing", log, httpx.codes.NOT_FOUND), "nginx answers")
        yield url


def here(text: str, port: int, upstreams: Sequence[int], temporary: Path) -> str:
    """The shipped file with the addresses and the folder of a test, and nothing else changed."""
    servers = re.findall(r"^ +server (kvgate-\w+:8080)[ ;].*\n", text, re.MULTILINE)
    assert len(servers) == 2
    for address, upstream in zip(servers, upstreams, strict=False):
        text = text.replace(f"server {address}", f"server 127.0.0.1:{upstream}")
    text = re.sub(r"^ +server kvgate-.*\n", "", text, flags=re.MULTILINE)
    assert text.count("listen 8080 ") == 1
    return text.replace("listen 8080 ", f"listen 127.0.0.1:{port} ").replace(" /tmp/", f" {temporary}/")


def find_nginx() -> str:
    """The nginx of this machine, installed first where there is none and we may.

    Raises:
        AssertionError: there is none, and it cannot be installed; the message says what to do.
    """
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if shutil.which("nginx", path=places) is None:
        install("nginx-light")
    found = shutil.which("nginx", path=places)
    assert found is not None
    return found


def install(*packages: str) -> None:
    """Install Debian packages.

    Raises:
        AssertionError: it cannot be done; the message says what to do.
    """
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    command = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    by_hand = f"install it first: {' '.join(command)}"
    assert os.geteuid() == 0, by_hand
    assert shutil.which("apt-get") is not None, by_hand
    # Services are not wanted: only the programs are.
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    # Tests run side by side, and apt-get does not wait for another that fetches its lists.
    with Path(tempfile.gettempdir(), "kvgate-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Nobody reads a manual here, and man-db would make an index of all of them anew each time.
        without_manuals = [*command, "-o", "Dpkg::Options::=--path-exclude=/usr/share/man/*"]
        for step in ([*apt, "update"], without_manuals):
            done = subprocess.run(step, check=False, capture_output=True, text=True, env=environ)
            assert done.returncode == 0, f"{by_hand}\n{done.stderr}"


@contextlib.asynccontextmanager
async def _running(argv: Sequence[str], log: Path, environ: Mapping[str, str]) -> AsyncIterator[Process]:
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environ), cwd=ROOT
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _answers(process: Process, url: str, log: Path, status: int = httpx.codes.OK) -> bool:
    assert process.returncode is None, f"it ended:\n{_end(log)}"
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(url, timeout=5)).status_code == status
        except httpx.TransportError:
            return False


def _end(log: Path) -> str:
    return log.read_text()[-4000:]
