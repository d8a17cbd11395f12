"""The screenshots of the live page: `python -m docs.screenshots`.

Of a real kvgate in front of two engines that fake their work: idle, under an overload, with an endpoint down, in dark
colours and on a phone.
"""

import tempfile
import time
from pathlib import Path

from tests.integration.browser import Browser, browser
from tests.integration.crowd import Crowd
from tests.integration.test_page import fake, gateway

IMAGES = Path(__file__).parent / "images"
CLIENTS = (("chat-frontend", 3, 0), ("search", 2, 0), ("trial", 1, 0), ("batch", 1, 2))
"""Name, weight, band."""
KEY = "the admin key of the screenshots"
ENGINE = ("--model", "qwen3-8b", "--step-seconds", "0.025", "--max-model-len", "8192")
PROMPT = "one two three four " * 90


def key_of(client: str) -> str:
    """The key of a client."""
    return f"the key of {client}"


def shoot(window: Browser, name: str) -> None:
    """Keep what the window shows."""
    window.driver.save_screenshot(str(IMAGES / f"page-{name}.png"))


def main() -> None:
    """Entry point."""
    keys = [{"name": name, "key": key_of(name), "weight": weight, "priority": band} for name, weight, band in CLIENTS]
    auth = {"admin_key": KEY, "keys": keys}
    with (
        fake(*ENGINE, "--num-blocks", "700") as first,
        fake(*ENGINE, "--num-blocks", "1000") as second,
        gateway(Path(tempfile.mkdtemp()), [first.url, second.url], auth=auth) as kvgate,
        browser() as window,
    ):
        names = [name for name, _, _ in CLIENTS for _ in range(3)]
        request = {"model": "qwen3-8b", "messages": [{"role": "user", "content": PROMPT}], "ignore_eos": True}

        def crowd(clients: int) -> Crowd:
            return Crowd(kvgate.url, clients, request, lengths=(100, 400, 900), keys=tuple(map(key_of, names)))

        window.size(1320, 1250)
        kvgate.wait_ready()
        window.open(kvgate.url, KEY)
        with crowd(10):
            time.sleep(40)
        window.until_headline("KV 0 %")
        time.sleep(10)
        shoot(window, "idle")
        with crowd(120):
            time.sleep(75)
            shoot(window, "overload")
            window.scheme("dark")
            time.sleep(2)
            shoot(window, "dark")
            window.scheme("light")
            first.kill()
            window.until_headline("is down")
            time.sleep(8)
            shoot(window, "down")
            window.size(390, 1400, phone=True)
            time.sleep(3)
            shoot(window, "phone")


if __name__ == "__main__":
    main()
