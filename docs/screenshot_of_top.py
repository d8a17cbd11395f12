"""Write `docs/images/top.svg`: `kvgate top` on a kvgate in front of two fake engines that get more than they can serve.

Run it with `python -m docs.screenshot_of_top`; it takes half a minute.
"""

import asyncio
import contextlib
import random
import re
from pathlib import Path

from gateway.commands.top.following import Kvgate
from gateway.commands.top.screen import Top
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import CHAT, body, gateway

IMAGE = Path(__file__).parent / "images" / "top.svg"
SIZE = (132, 30)
LOAD = 20.0
"""Seconds of overload before the picture."""
PAUSE = 0.06
"""Seconds between two requests."""
ENGINE = FakeSettings(step_seconds=0.04, num_blocks=301, block_size=16, max_model_len=2000, output_tokens=600)
CLIENTS = {"app": 3.0, "trial": 1.0, "batch": 1.0}
ADMIN_KEY = "sesame"
_FONTS = re.compile(r"@font-face\s*{.*?}\s*", re.DOTALL)


async def main() -> None:
    """Overload a kvgate, and look at it."""
    keys = [{"name": name, "key": name, "weight": weight} for name, weight in CLIENTS.items()]
    auth = {"admin_key": ADMIN_KEY, "keys": [*keys[:-1], keys[-1] | {"priority": 2}]}
    async with (
        FakeVllm(ENGINE) as one,
        FakeVllm(ENGINE) as other,
        gateway(one, other, auth=auth, ready=False) as kvgate,
    ):
        chance = random.Random(1)  # noqa: S311 - lengths

        async def ask() -> None:
            asked = body(stream=True, tokens=chance.randint(100, 600))
            key = chance.choice(list(CLIENTS))
            with contextlib.suppress(Exception):
                await kvgate.client.post(CHAT, json=asked, headers={"authorization": f"Bearer {key}"})

        async with asyncio.timeout(LOAD * 10):
            asking = set()
            for _ in range(round(LOAD / PAUSE)):
                asking.add(asyncio.create_task(ask()))
                await asyncio.sleep(PAUSE)
            app = Top(Kvgate(f"http://127.0.0.1:{kvgate.port}", ADMIN_KEY))
            async with app.run_test(size=SIZE):
                await asyncio.sleep(2)
                # No fonts from elsewhere: the reader's own monospace does.
                IMAGE.write_text(_FONTS.sub("", app.export_screenshot()))
            for each in asking:
                each.cancel()


if __name__ == "__main__":
    asyncio.run(main())
