"""What it costs others that somebody holds more connections than there are descriptors: nothing."""

import contextlib
import http.client
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tokenizer import make_tokenizer
from tests.integration.relaying import fake_processes
from tests.security.target import Target, launch
from tests.unit.engine.processes import eventually
from tests.until import PATIENCE

pytestmark = pytest.mark.slow

CHAT = b'{"model":"fake","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}'
ASKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(CHAT) + CHAT
LIMIT = 256
"""Of descriptors, soft and hard."""


@contextlib.contextmanager
def served(tmp_path: Path, host: str = "127.0.0.1", **server: Any) -> Iterator[Target]:
    folder = make_tokenizer(tmp_path)
    with fake_processes(1, "--tokenizer", str(folder)) as [(url, _)]:
        settings = {
            "server": {"host": "127.0.0.1", "port": 0, "body_timeout": 20, **server},
            "models": [{"tokenizer": str(folder), "endpoints": [{"url": url.replace("127.0.0.1", host)}]}],
            "health": {"interval": 0.2},
            "counting": {"processes": 1},
            "log": {"format": "json"},
        }
        process = launch(settings, tmp_path / "log", descriptors=LIMIT)
        target = Target(process, None)
        try:
            yield target
        finally:
            process.terminate()
            process.communicate()


@contextlib.contextmanager
def idle(target: Target, count: int) -> Iterator[list[socket.socket]]:
    """So many connections on which nothing is sent."""
    with contextlib.ExitStack() as held:
        yield [held.enter_context(socket.create_connection(("127.0.0.1", target.port), 10)) for _ in range(count)]


def changes(log: Path) -> list[dict[str, Any]]:
    """What was said of the endpoint's state."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "endpoint changed"]


@contextlib.contextmanager
def exhausted(target: Target, log: Path, times: int) -> Iterator[list[socket.socket]]:
    """As many connections as it takes until an endpoint could not be probed so often."""
    lack, deadline = "endpoint not probed", time.monotonic() + PATIENCE
    enough = log.read_text().count(lack) + times
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        while log.read_text().count(lack) < enough:
            assert time.monotonic() < deadline, f"{lack!r} was not said"
            held += [stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 10)) for _ in range(20)]
            time.sleep(0.05)
        yield held


def is_served(connection: socket.socket) -> bool:
    """Whether it has a place: an idle one has given way where a slow machine took a second to make all."""
    answer = http.client.HTTPResponse(connection)
    try:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n")
        answer.begin()
        return answer.read() == b'{"status":"alive"}'
    except ConnectionError:
        return False


def wait_scraped(connection: socket.socket, times: int) -> None:
    """Until the endpoint was scraped so often, as the state tells on a connection that is there already."""
    deadline, age = time.monotonic() + PATIENCE, 0.0
    while times:
        assert time.monotonic() < deadline
        connection.sendall(b"GET /kvgate/state HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        before, age = age, json.loads(answer.read())["endpoints"][0]["scrape_age_seconds"]
        times -= age < before
        time.sleep(0.05)


def test_idle_connections_beyond_the_bound_are_told_so_and_nothing_else_happens(tmp_path: Path) -> None:
    with served(tmp_path) as target:
        target.wait_ready({"local"})
        before = changes(tmp_path / "log")
        with idle(target, 300) as held:
            held[-1].sendall(ASKED)
            last = held[-1].recv(4096)
            assert last.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in last
            one, other = islice(filter(is_served, held), 2)
            wait_scraped(one, 5)
            other.sendall(ASKED)
            assert other.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert changes(tmp_path / "log") == before
        refused = [line for line in target.metrics() if line.startswith("kvgate_refused_connections_total ")]
        assert float(refused[0].split()[1]) > 200


def test_clients_that_leave_at_any_moment_take_nobody_elses_connection(tmp_path: Path) -> None:
    """uvloop says nothing of a connection whose making is cancelled at its end: nobody may hold its descriptor then."""

    def leave(seed: int) -> None:
        chosen = random.Random(seed)  # noqa: S311
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 3) as client:
                client.sendall(ASKED)
                time.sleep(chosen.choice((0, 0.0005, 0.001, 0.003, 0.01)))
                if chosen.random() < 0.5:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with served(tmp_path) as target:
        target.wait_ready({"local"})
        clients = [threading.Thread(target=leave, args=(seed,)) for seed in range(12)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert target.process.poll() is None
        # It may have yet to see that the last of them left.
        assert eventually(lambda: target.post("/v1/chat/completions", CHAT).status == 200)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_lack_of_descriptors_takes_no_endpoint_out_and_is_over_when_it_is_over(tmp_path: Path, host: str) -> None:
    with served(tmp_path, host, max_connections=10_000) as target:
        with exhausted(target, tmp_path / "log", 3):  # from before the tokenizer is loaded
            pass
        target.wait_ready({"local"})
        before = changes(tmp_path / "log")
        with exhausted(target, tmp_path / "log", 5) as held, contextlib.suppress(OSError):
            held[0].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(CHAT))
            held[0].sendall(CHAT)
            assert held[0].recv(4096).split(b" ")[1] in {b"200", b"503"}
        assert changes(tmp_path / "log") == before, "an endpoint was taken out for what is no fault of its own"
        target.wait_ready({"local"})  # it may have to see first that its clients are gone
        assert target.post("/v1/chat/completions", CHAT).status == 200


@pytest.fixture(autouse=True)
def _shows_its_log(tmp_path: Path) -> Iterator[None]:
    yield
    print((tmp_path / "log").read_text()[-8_000:])
