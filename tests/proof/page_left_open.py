"""What the live page keeps of an hour: it is open in a headless Chromium, with traffic on a fake engine.

    python -m tests.proof.page_left_open [--minutes 60]

Each minute it prints the bytes of the page's heap that collections leave, and the elements of its document. The page
keeps a history of 15 minutes, which fills first. It fails if either has grown by over a tenth from then on.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.browser import browser
from tests.integration.crowd import Crowd
from tests.integration.test_page import CHAT, fake, gateway, phases

FULL = 16
"""Minutes until the history is full."""


def main() -> None:
    """Look at it each minute."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    minutes: int = parser.parse_args().minutes
    if minutes <= FULL:
        parser.error(f"the history takes {FULL} minutes to fill")
    with (
        tempfile.TemporaryDirectory() as folder,
        fake("--step-seconds", "0.1", "--num-blocks", "150") as engine,
        gateway(Path(folder, "kvgate"), [engine.url]) as kvgate,
        browser() as window,
    ):
        kvgate.wait_healthy(1)
        with Crowd(kvgate.url, 16, CHAT, lengths=(20, 100)):
            window.open(kvgate.url)
            window.until(lambda: len(phases(window)) == 200, timeout=600)
            print("minute      heap  elements")
            seen: dict[int, tuple[int, int]] = {}
            began = time.monotonic()
            while (minute := int(time.monotonic() - began) // 60) <= minutes:
                seen[minute] = window.heap(), int(window.run("return document.querySelectorAll('*').length"))
                print(f"{minute:6} {seen[minute][0]:9,} {seen[minute][1]:9,}", flush=True)
                time.sleep(max(0.0, began + 60 * (minute + 1) - time.monotonic()))
        complaints = window.complaints()
    full = next(found for minute, found in seen.items() if minute >= FULL)
    grown = [last / first for first, last in zip(full, seen[max(seen)], strict=True)]
    print(f"the last beside the first full: heap {grown[0]:.3f}, elements {grown[1]:.3f}; the console: {complaints}")
    sys.exit(max(grown) >= 1.1 or complaints != [])


if __name__ == "__main__":
    main()
