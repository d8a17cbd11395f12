"""A record on the page, in a real browser."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.integration.browser import Browser, window
from tests.unit.record.incident import Incident

__all__ = ["window"]
pytestmark = pytest.mark.network

OTHER = "admission.queue.max_requests=5"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a replay of an incident, beside the same with a queue."""
    file: Path = Incident().play().write(tmp_path_factory.mktemp("log") / "events.jsonl")
    argv = [sys.executable, "-m", "gateway", "replay", str(file), "--page", "--port", "0", "--set", OTHER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as shown:
        try:
            assert shown.stdout is not None
            yield next(found[0] for line in shown.stdout if (found := re.search(r"http://\S+", line)))
        finally:
            shown.send_signal(signal.SIGINT)


@pytest.fixture
def opened(window: Browser, page: str) -> Browser:
    """The replay at its beginning."""
    window.driver.get(page)
    window.until(lambda: window.text("#link") == "replay")
    at(window, "00:00:00")
    return window


def at(window: Browser, time: str) -> None:
    """Wait until this time of the record is shown."""
    window.until(lambda: window.text("#replay output").startswith(time))


def press(window: Browser, label: str) -> None:
    """Press a button of the panel."""
    next(button for button in window.all("#replay button") if button.text == label).click()


def figures(window: Browser, name: str) -> list[str]:
    """A row of figures, of one side each."""
    rows = (
        [cell.text for cell in row.find_elements("css selector", "th, td")] for row in window.all("#replay tbody tr")
    )
    return next(cells for label, *cells in rows if label == name)


def test_an_incident_is_scrubbed_by_keyboard_and_by_its_refusals(opened: Browser) -> None:
    opened.until_headline("Serving. KV 0 %")
    opened.one("#replay input").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    at(opened, "00:00:02")
    opened.until(lambda: opened.text("#requests tbody tr").startswith("running"))
    press(opened, "Next refusal")
    at(opened, "00:00:05")
    opened.until(lambda: "queue full" in opened.text("#requests"))
    opened.one("#replay input").send_keys(Keys.END)
    at(opened, "00:00:30")
    opened.until_headline("Not serving. e is hung.")
    assert not any(button.is_displayed() for button in opened.all("#engines button")), "there is nothing to drain"
    assert not opened.one("#explain").is_displayed()
    assert opened.faults() == []
    assert opened.complaints() == []


def test_the_same_under_another_setting_stands_beside_it(opened: Browser) -> None:
    press(opened, "Next refusal")
    at(opened, "00:00:05")
    assert figures(opened, "Refused so far") == ["1", "0"]
    assert figures(opened, "Waiting") == ["0", "1"]
    assert "From there on the other side is modelled" in opened.text("#replay")
    press(opened, f"With {OTHER}")
    opened.until_headline("1 waiting")
    press(opened, "As recorded")
    opened.until_headline("nothing waits")


def test_it_plays_to_the_end(opened: Browser) -> None:
    opened.one("#replay select").send_keys("100")
    press(opened, "Play")
    at(opened, "00:00:30")
    opened.until(lambda: opened.text("#replay button") == "Play")
