"""The live page in a real browser, over fake engines; and over a real one that is overloaded, killed and comes back."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from msgspec import to_builtins
from selenium.common.exceptions import ElementClickInterceptedException
from selenium.webdriver.common.keys import Keys

from gateway.admission.placing.rules import RULES
from gateway.ops.pictures.picture import Sign
from tests.integration.browser import Browser, window
from tests.integration.crowd import Crowd
from tests.integration.kvgate import Kvgate, serving
from tests.ports import free_port
from tests.unit.engine.processes import descendants
from tests.unit.ops.pictures.pictures import endpoint, picture

__all__ = ["window"]
pytestmark = pytest.mark.network

STRIKE = '<img src=x onerror="window.struck=1">'
KEY = "an admin key of the tests"
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "one two " * 100}]}


class Fake:
    """A fake engine that can be killed, and started again at the same port."""

    def __init__(self, *options: str) -> None:
        self.port, self._options = free_port(), options
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.fakes.vllm", "--port", str(self.port), *self._options]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def fake(*options: str) -> Iterator[Fake]:
    engine = Fake(*options)
    try:
        yield engine
    finally:
        engine.kill()


@contextlib.contextmanager
def gateway(
    folder: Path, endpoints: list[str], *args: str, environ: Mapping[str, str] | None = None, **sections: Any
) -> Iterator[Kvgate]:
    folder.mkdir(exist_ok=True)
    settings = {
        "models": [{"endpoints": [{"url": url} for url in endpoints], "tokenizer": "/nonexistent"}],
        "counting": {"processes": 0},
        "health": {"interval": 0.2},
        "log": {"access": False},
        **sections,
    }
    file = folder / "kvgate.yaml"
    file.write_text(yaml.safe_dump(settings))
    with serving(folder / "log", free_port(), "--config", str(file), *args, environ=environ) as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> Iterator[Fake]:
    with fake("--step-seconds", "0.02", "--num-blocks", "200") as running:
        yield running


@pytest.fixture(scope="module")
def kvgate(engine: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    with gateway(tmp_path_factory.mktemp("plain"), [engine.url], admission={"policy": "hysteresis"}) as running:
        running.wait_healthy(1)
        yield running


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    """All that can have any name is named by an attacker."""
    folder = tmp_path_factory.mktemp("hostile")
    keys = {"keys": [{"name": STRIKE, "key": "a key of the tests"}], "admin_key": KEY}
    with (
        fake("--model", STRIKE) as engine,
        gateway(folder, [engine.url], auth=keys) as running,
    ):
        running.wait_ready()
        yield running


DRAW = """const [data, done] = arguments;
const picture = { points: [], ...data };
import(new URL("page/draw.js", document.baseURI)).then((draw) => {
  draw.top(picture);
  draw.engines(picture, () => {});
  done(["#headline", "#advice", ".engine b", ".engine .why"].map((selector) => {
    const place = document.querySelector(selector);
    return [place.textContent, place.querySelectorAll("img").length];
  }));
}).catch((error) => done(String(error)));"""
"""Draws what no kvgate says yet: addresses have plain characters, and no reason has words of an engine."""


def asked(kvgate: Kvgate, **fields: Any) -> httpx.Response:
    headers = {"authorization": "Bearer a key of the tests", "x-request-id": STRIKE}
    body = {"model": STRIKE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    return httpx.post(f"{kvgate.url}/v1/chat/completions", json=body | fields, headers=headers, timeout=60)


def overload(window: Browser, crowd: Crowd) -> None:
    """The page shows an overload begin."""
    with crowd:
        window.until(lambda: window.text(".engine .chip") == "gate closed")
        window.until(lambda: any(rule.says_no in window.text(".engine .why") for rule in RULES if rule.closes))
        window.until_headline("waiting")
        window.until(lambda: int(window.text("#models .facts dd span")) > 0)
        window.until(lambda: "127.0.0.1" in window.text("#models tbody tr"))  # what waits may be let in meanwhile
        window.until(lambda: {"running", "waiting"} <= set(phases(window)))


def phases(window: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('#requests tbody td:first-child')].map((cell) => cell.textContent)"
    return list(window.run(script))


def test_an_overload_and_a_death_are_seen(window, kvgate, engine):
    window.open(kvgate.url)
    window.until_headline("Serving.", "nothing waits")
    with Crowd(kvgate.url, 40, CHAT, lengths=(200, 400)):
        overload(window, Crowd(kvgate.url, 20, CHAT, lengths=(300,)))
        engine.kill()
        window.until_headline("Not serving.", "is down")
        assert "kvgate doctor" in window.text("#advice")
        assert window.run("return document.getElementById('top').dataset.level") == "bad"
        engine.start()
        window.until(lambda: "Not serving" not in window.text("#headline"))
        window.until(lambda: window.text(".engine .chip") in {"up", "gate closed"})
        window.until(lambda: "answered" in phases(window))
    assert "engine failed" in window.text("#models")
    assert window.complaints() == []


def test_what_it_shows_is_what_the_state_says(window, tmp_path):
    """Steps take seconds, between which nothing moves."""
    with (
        fake("--step-seconds", "3", "--num-blocks", "100") as engine,
        gateway(tmp_path, [engine.url], admission={"ttft_target": "none"}) as kvgate,
        Crowd(kvgate.url, 12, CHAT),
    ):
        kvgate.wait_healthy(1)
        window.open(kvgate.url)
        window.until(lambda: len(phases(window)) == 12)

        def same() -> bool:
            state = kvgate.state()
            (endpoint,), (queue,) = state["endpoints"], state["queues"]
            shown = dict(window.run(FACTS))
            return (
                shown["Running"] == str(endpoint["in_flight"]) == str(phases(window).count("running"))
                and shown["KV cache"] == f"{endpoint['kv']['effective'] * 100:.0f} %"
                and shown["Forecast"] == f"{endpoint['kv']['forecast'] * 100:.0f} %"
                and window.text("#models .facts dd span") == str(queue["depth"]) == str(phases(window).count("waiting"))
            )

        window.until(same)


FACTS = """return [...document.querySelectorAll('.engine .facts > div')].map(
    (each) => [each.children[0].textContent, each.children[1].children[0].textContent])"""


def test_an_endpoint_is_drained_and_taken_back(window, kvgate, engine):
    kvgate.wait_healthy(1)
    window.open(kvgate.url)
    for action, state in (("Drain", "draining"), ("Undrain", "up")):
        window.until(lambda action=action: window.text(".engine button") == action)
        window.one(".engine button").click()
        assert action in window.text("#confirm-title")
        window.one("#confirm button[value=no]").click()
        assert kvgate.state()["endpoints"][0]["state"] != state, "nothing is done before it is confirmed"
        window.one(".engine button").click()
        window.one("#confirm-yes").click()
        window.until(lambda state=state: window.text(".engine .chip") == state)
        assert kvgate.state()["endpoints"][0]["state"] == state


def test_a_request_is_explained_by_its_rules(window, kvgate):
    kvgate.wait_healthy(1)
    window.open(kvgate.url)
    window.run(
        "document.getElementById('body').value = arguments[0]", '{"model": "fake", "messages": [], "max_tokens": 5}'
    )
    window.one("#explain button").click()
    window.until(lambda: "at once" in window.text("#explained .verdict"))
    passed = window.run("return [...document.querySelectorAll('.way li')].map((step) => step.dataset.level)")
    assert set(passed) == {"good"}
    assert "forecast" in window.text(".way ol")
    window.run('document.getElementById(\'body\').value = \'{"model": "other", "messages": []}\'')
    window.one("#explain button").click()
    window.until(lambda: "refused" in window.text("#explained .verdict"))
    assert "other" in window.text("#explained")


def test_it_is_used_by_keys_alone(window, kvgate):
    kvgate.wait_healthy(1)
    window.open(kvgate.url)
    for action, state in (("Drain", "draining"), ("Undrain", "up")):
        window.until(lambda action=action: window.text(".engine button") == action)
        for answer in (Keys.ESCAPE, Keys.ENTER):
            window.tab_to(".engine button")
            window.press(Keys.ENTER)
            window.until(lambda: window.one("#confirm").is_displayed())
            window.tab_to("#confirm-yes")
            window.press(answer)
            window.until(lambda: not window.one("#confirm").is_displayed())
            assert window.run("return document.activeElement.matches('.engine button')"), "where the keys were before"
        window.until(lambda state=state: window.text(".engine .chip") == state)
        assert kvgate.state()["endpoints"][0]["state"] == state
    window.tab_to("#body")
    window.press(Keys.CONTROL, "a", Keys.NULL)
    window.press('{"model": "fake", "messages": [], "max_tokens": 5}')
    window.tab_to("#explain button")
    window.press(Keys.ENTER)
    window.until(lambda: "at once" in window.text("#explained .verdict"))
    assert window.complaints() == []


def test_it_asks_for_the_key_and_keeps_it_nowhere(window, hostile):
    window.driver.get(f"{hostile.url}/kvgate/")
    window.until(lambda: window.one("#ask-key").is_displayed())
    assert window.all(".engine") == [], "the shell holds no data"
    window.give("wrong")
    window.until(lambda: window.text("#key-wrong") != "" and window.one("#ask-key").is_displayed())
    window.give(KEY)
    window.until(lambda: window.text("#link") == "live")
    kept = window.run(
        "return [location.href, document.cookie, JSON.stringify({...localStorage, ...sessionStorage}),"
        " document.documentElement.outerHTML, document.getElementById('key').value,"
        " ...performance.getEntriesByType('resource').map((each) => each.name)].join(' ')"
    )
    assert KEY not in kept


def test_names_of_attackers_are_shown_as_text(window, hostile):
    window.open(hostile.url, KEY)
    window.until(lambda: "up" in window.text("#engines"))
    assert asked(hostile).status_code == httpx.codes.OK
    assert asked(hostile, model=f"not {STRIKE}").status_code == httpx.codes.NOT_FOUND
    window.until(lambda: len(phases(window)) == 2)
    for selector in ("#engines", "#models .name", "#models tbody", "#requests tbody"):
        window.until(lambda selector=selector: STRIKE in window.text(selector))
    window.run(
        "document.getElementById('body').value = JSON.stringify({model: arguments[0], messages: []})", f"no {STRIKE}"
    )
    window.one("#explain button").click()
    window.until(lambda: STRIKE in window.text("#explained"))
    sign = Sign(key="down", level="bad", text=STRIKE, do=STRIKE)
    drawn = window.driver.execute_async_script(
        DRAW,
        to_builtins(picture(headline=sign, signs=(sign,), endpoints=(endpoint(STRIKE, reason=STRIKE, healthy=False),))),
    )
    assert [(STRIKE in shown, images) for shown, images in drawn] == [(True, 0)] * 4, drawn
    assert window.run("return [window.struck ?? null, document.querySelectorAll('img').length]") == [None, 0]
    assert all("status of 404" in line for line in window.complaints()), "but for the model that is not there"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(window, kvgate, scheme):
    window.scheme(scheme)
    try:
        with Crowd(kvgate.url, 30, CHAT, lengths=(200,)):
            window.open(kvgate.url)
            window.until(lambda: len(phases(window)) > 5)
            assert window.faults() == []

            def is_asked() -> bool:
                """Seen on busy machines: a press that opened no dialog, and one that a line of text came under."""
                if not window.run("return document.querySelector('#confirm').open"):
                    with contextlib.suppress(ElementClickInterceptedException):
                        window.one(".engine button").click()
                return bool(window.run("return document.querySelector('#confirm').open"))

            window.until(is_asked)
            assert window.faults() == []
            window.one("#confirm button[value=no]").click()
            window.size(390, 800, phone=True)
            assert window.faults() == []
            assert window.run("return document.documentElement.scrollWidth") <= 390, "a phone need not scroll sideways"
    finally:
        window.size(1320, 1600)
        window.scheme("light")


def test_what_fails_while_it_opens_is_asked_for_again(window, kvgate):
    window.driver.execute_cdp_cmd("Network.enable", {})
    for part in ("words.json", "events"):
        window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": [f"*{part}*"]})
        window.driver.get(f"{kvgate.url}/kvgate/")
        window.until_headline("The gateway does not answer.")
        window.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
        window.until(lambda: window.text("#link") == "live")
    window.driver.get_log("browser")


def test_the_page_is_small_and_soon_there(window, kvgate):
    paints, painted = [], "performance.getEntriesByName('first-contentful-paint')[0]"
    while len(paints) < 3 or (min(paints) >= 500 and len(paints) < 10):  # a busy machine only adds
        window.open(kvgate.url)
        window.until(lambda: window.run(f"return {painted}"))
        paints.append(window.run(f"return {painted}.startTime"))
    loaded = window.run(
        "return [...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        ".filter((each) => !each.name.endsWith('/events')).map((each) => [each.name, each.decodedBodySize])"
    )
    assert all(name.startswith(kvgate.url) for name, _ in loaded), "nothing comes from elsewhere"
    assert sum(size for _, size in loaded) < 200_000
    assert min(paints) < 500, "milliseconds"


@pytest.mark.parametrize("seconds", [8, pytest.param(300, marks=pytest.mark.proof)])
def test_left_open_it_keeps_nothing(window, kvgate, seconds):
    kvgate.wait_healthy(1)
    with Crowd(kvgate.url, 40, CHAT, lengths=(20, 100)):
        window.open(kvgate.url)
        window.until(lambda: len(phases(window)) == 200)
        time.sleep(10)
        before, nodes = window.heap(), window.run("return document.querySelectorAll('*').length")
        layouts = window.layouts()
        time.sleep(seconds)
        assert window.layouts() - layouts < 4 * seconds, "what moves between two pictures takes a core"
        window.until(lambda: window.heap() < before * 1.1)
        assert window.run("return document.querySelectorAll('*').length") < nodes * 1.1


@pytest.mark.engine
def test_a_real_engine_is_overloaded_killed_and_comes_back(window, random_model, quick_python, tmp_path):
    """It is the first way to serve the model, so `--engine auto` takes it."""
    args = [
        "--max-model-len=1024",
        "--block-size=32",
        "--num-gpu-blocks-override=64",
        "--enforce-eager",
        "--dtype=float32",
    ]
    environ = {"KVGATE_ENGINE_PYTHON": str(quick_python), "VLLM_CPU_KVCACHE_SPACE": "1"}
    sections = {"admission": {"policy": "hysteresis"}, "health": {"hung_after": 600}}
    request = {"prompt": [101] * 150, "ignore_eos": True}

    launch = (str(random_model), "--engine", "auto", "--", *args)
    with gateway(tmp_path, [], *launch, environ=environ, **sections) as served:

        def crowd(clients: int) -> Crowd:
            return Crowd(served.url, clients, request, lengths=(200, 500), path="/v1/completions")

        served.wait_ready(timeout=900)
        (choice,) = [line for line in served.log.read_text().splitlines() if '"rungs":' in line]
        first, *_ = json.loads(choice)["rungs"]
        assert (first["name"], first["remark"]) == ("vLLM", "taken")
        window.open(served.url)
        window.until_headline("Serving.")
        with crowd(20):
            overload(window, crowd(10))
            engines = [
                pid
                for pid in descendants(served.process.pid)
                if b"api_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(engines[-1], signal.SIGKILL)
            window.until_headline("Not serving.")
            window.until(lambda: "Not serving" not in window.text("#headline"), timeout=900)
            window.until(lambda: "answered" in phases(window), timeout=300)
            window.one(".engine button").click()
            window.one("#confirm-yes").click()
            window.until(lambda: window.text(".engine .chip") == "draining")
