"""The live page behind a path prefix: in a real browser, through a real nginx that has the lines of the docs."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.stack import find_nginx
from tests.integration.browser import window
from tests.integration.crowd import Crowd
from tests.integration.kvgate import Kvgate
from tests.integration.test_page import CHAT, fake, gateway
from tests.ports import free_port

__all__ = ["window"]
pytestmark = pytest.mark.network

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
KEY = "an admin key of the tests"
EVENTS = 6


@contextlib.contextmanager
def nginx(folder: Path, kvgate: Kvgate) -> Iterator[str]:
    lines = "".join(
        re.findall(r"^    location /(?:gate|llm)/ \{\n(?:    .*\n)+?    \}\n", DOCS.read_text(), re.MULTILINE)
    )
    assert lines.count("http://127.0.0.1:8080/") == 2
    port = free_port()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    kept = "".join(f"{kind}_temp_path {folder}/{kind}; " for kind in kinds)
    server = f"server {{ listen 127.0.0.1:{port}; {lines.replace('http://127.0.0.1:8080', kvgate.url)} }}"
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off; master_process off; pid {folder}/pid; events {{}} http {{ access_log off; {kept} {server} }}"
    )
    argv = [find_nginx(), "-p", str(folder), "-c", str(file), "-e", str(folder / "log")]
    with subprocess.Popen(argv) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"http://127.0.0.1:{port}/nothing", timeout=5)
                    break
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prefix")
    with (
        fake("--step-seconds", "0.02") as engine,
        gateway(folder / "kvgate", [engine.url], auth={"admin_key": KEY}) as kvgate,
        nginx(folder, kvgate) as url,
    ):
        kvgate.wait_ready()
        with Crowd(kvgate.url, 2, CHAT):
            yield url


@pytest.mark.parametrize("page", ["/gate/", "/llm/kvgate/"])
def test_it_shows_changes_and_explains(window, behind, page):
    window.open(behind, KEY, page)
    for action, state in (("Drain", "draining"), ("Undrain", "up")):
        window.until(lambda action=action: window.text(".engine button") == action)
        window.one(".engine button").click()
        window.one("#confirm-yes").click()
        window.until(lambda state=state: window.text(".engine .chip") == state)
    window.run("document.getElementById('body').value = arguments[0]", '{"model": "fake", "messages": []}')
    window.one("#explain button").click()
    window.until(lambda: "at once" in window.text("#explained .verdict"))
    used = window.run(
        "return [...performance.getEntriesByType('resource').map((each) => each.name),"
        " ...[...document.querySelectorAll('a')].map((each) => each.href)]"
    )
    assert [address for address in used if not address.startswith(behind + page)] == []
    assert behind + page + "page/draw.js" in used
    assert window.complaints() == []


@pytest.mark.parametrize("page", ["/gate/", "/llm/kvgate/"])
def test_events_come_when_they_happen(behind, page):
    lags = []
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.stream("GET", f"{behind}{page}events", headers=headers, timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                lags.append(time.time() - json.loads(line.removeprefix("data: "))["at"])
            if len(lags) == EVENTS:
                break
    assert max(lags) < 3, "a buffer of nginx's holds some thirty of them, a quarter of a minute"


def test_the_whole_api_is_below_the_other_prefix(behind):
    assert httpx.get(f"{behind}/llm/readyz").status_code == 200
    assert httpx.post(f"{behind}/llm/v1/chat/completions", json=CHAT | {"max_tokens": 3}, timeout=60).status_code == 200
