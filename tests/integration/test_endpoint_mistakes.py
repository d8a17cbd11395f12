"""`kvgate serve --endpoint` with a URL where no vLLM is: the log says what is there, and again while it lasts."""

import contextlib
import http.server
import json
import threading
import time

import pytest

from tests.integration.kvgate import serving
from tests.integration.relaying import fake_processes
from tests.ports import free_port

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def file_server():
    """What `python -m http.server` runs."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    server.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Welcome(http.server.BaseHTTPRequestHandler):
    """Answers everything with 200 and a page."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>Welcome!</title>")

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def welcoming():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Welcome)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def another_kvgate(folder):
    with fake_processes(1) as [(url, _)], serving(folder / "other.log", free_port(), "--endpoint", url) as other:
        other.wait_healthy(1)
        yield other.url


def said(log, text, seconds=15):
    """The first line whose reason has this text."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if text in (told := json.loads(line)).get("reason", ""):
                return told
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("server", "text"),
    [
        (lambda _: file_server(), "this is no vLLM: it knows neither /health nor /v1/models"),
        (lambda _: welcoming(), "this is no vLLM: /v1/models answered no list of models"),
        (another_kvgate, "this is a kvgate, not a vLLM"),
    ],
)
def test_what_answers_and_is_no_vllm_is_named(server, text, tmp_path):
    log = tmp_path / "log"
    with server(tmp_path) as url, serving(log, free_port(), "--endpoint", f"{url}/v1"):
        assert said(log, text)["level"] == "warning"


def test_its_own_port_is_named(tmp_path):
    port = free_port()
    with serving(tmp_path / "log", port, "--endpoint", f"http://127.0.0.1:{port}"):
        said(tmp_path / "log", "this is a kvgate, not a vLLM")
