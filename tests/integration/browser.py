"""A real browser, headless, that looks at the live page."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from engine.cache import cache_folder, made_once, run_step, to_stderr
from tests.deploy.stack import install
from tests.until import PATIENCE

AXE = "axe-core@4.14.1"
MOST_TABS = 50


def find(program: str, package: str) -> str:
    """A program of the browser, installed first where there is none and we may."""
    if shutil.which(program) is None:
        install(package)
    found = shutil.which(program)
    assert found is not None
    return found


def axe() -> str:
    """The text of axe-core, which finds faults that keep people from using a page; kept in the cache."""

    def fetch(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", AXE]
        run_step(argv, what="installing axe-core", progress=to_stderr)

    folder = made_once(cache_folder() / AXE.replace("@", "-"), fetch, what="axe-core", progress=to_stderr)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, key: str | None = None, at: str = "/kvgate/") -> None:
        """Open the page of a gateway, with its admin key if it asks for one, and wait until it is live."""
        self.driver.get(url + at)
        self.driver.get_log("browser")  # what the page before had to complain of
        if key is not None:
            self.until(lambda: self.one("#ask-key").is_displayed())
            self.give(key)
        self.until(lambda: self.text("#link") == "live")

    def give(self, key: str) -> None:
        """Give the page a key."""
        self.one("#key").send_keys(key)
        self.one("#ask-key button").click()

    def one(self, selector: str) -> WebElement:
        """The first element."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Every such element."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of the first such element, read in one go: the page changes twice a second."""
        found = self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return " ".join(str(found).split())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, holds: Callable[[], object], timeout: float = PATIENCE) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"{self.text('#top')} | {self.text('#engines')}"
            time.sleep(0.1)

    def until_headline(self, *words: str, timeout: float = PATIENCE) -> None:
        """Wait until the headline has these words."""
        self.until(lambda: all(word in self.text("#headline") for word in words), timeout)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is; Control holds for those after it."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab_to(self, selector: str) -> None:
        """Press Tab until this element has the focus, at most once through the page."""
        for _ in range(MOST_TABS):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"Tab does not come to {selector}")

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Look through a window of this size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def heap(self) -> int:
        """Bytes that the page's heap never falls below, however often it is collected: it draws meanwhile."""
        used = []
        for _ in range(8):
            self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
            used.append(int(self.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]))
            time.sleep(0.3)
        return min(used)

    def layouts(self) -> int:
        """How often the page was laid out."""
        self.driver.execute_cdp_cmd("Performance.enable", {})
        figures = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return int(next(figure["value"] for figure in figures if figure["name"] == "LayoutCount"))

    def faults(self) -> list[str]:
        """What axe finds wrong here, if it is serious."""
        self.run(axe())
        run = "const done = arguments[0]; axe.run().then(done, (error) => done({violations: [String(error)]}))"
        found = self.driver.execute_async_script(run)["violations"]
        serious = [fault for fault in found if isinstance(fault, str) or fault["impact"] in {"serious", "critical"}]
        return [json.dumps(fault)[:1500] for fault in serious]

    def complaints(self) -> list[str]:
        """What the console has against the page, but for answers that ask for a key."""
        logged = self.driver.get_log("browser")
        return [str(line["message"]) for line in logged if "401 (Unauthorized)" not in str(line["message"])]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program, driver = find("chromium", "chromium"), find("chromedriver", "chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    try:
        made = Browser(running)
        made.size(1320, 1600)
        yield made
    finally:
        running.quit()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """A window for the tests of a module."""
    with browser() as opened:
        yield opened
