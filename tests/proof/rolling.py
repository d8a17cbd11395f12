"""Gateways of a tier restarted one after the other behind nginx under load: nothing fails, and no stream breaks.

    python -m tests.proof.rolling [--rounds 5] [--next-messages] [--old FOLDER]

- Each round restarts both gateways of a tier, with SIGTERM and nothing else: nginx is told nothing.
- With `--next-messages`, half of these rounds go to a release with the next `VERSION` of the messages between gateways,
  and the others back: this code with fields and a kind of message that it does not know.
- With `--old`, a checkout of a release without tiers, once from that release to this one. What the old one would lose
  by its own end cannot be mended here, so its lines in nginx are marked `down` before, as its docs/operations.md says.

Clients ask for short answers, so that requests meet each moment of an end and a start, and for long ones, which outlive
it. The exit code is 1 if a request failed.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import yaml

from gateway.tier.frames import OLDEST, VERSION
from tests.deploy.stack import ROOT, find_nginx, nginx
from tests.integration.redis_servers import serving, valkey
from tests.integration.tiers import PLACES, Gateway, Load, Tier, tier, until

CLIENTS, LONG = 12, 4
"""Clients that ask for short answers, and for long ones."""
TOKENS = 150
"""Of a long answer: 3 s at least."""


class Lost:
    """How many requests failed so far."""

    def __init__(self) -> None:
        self.count = 0

    @asynccontextmanager
    async def loaded(self, url: str, what: str) -> AsyncIterator[Load]:
        """Load nginx, and print what came of it."""
        load, long = Load([(url, None)], CLIENTS, 2, kept=False), Load([(url, None)], LONG, TOKENS, kept=False)
        began = time.monotonic()
        async with load, long:
            yield load
        print(f"{what}: {time.monotonic() - began:.1f} s")
        load.report("  short answers")
        long.report("  long answers")
        self.count += len(load.lost) + len(long.lost)


async def restarted(made: Tier, url: str, what: str, tree: Path, lost: Lost) -> None:
    """Restart both, with the code of this tree."""
    for gateway in made.gateways:
        async with lost.loaded(url, f"{what}, {gateway.port} restarted") as load:
            await gateway.stop()
            gateway.tree = tree
            await load.more(50)
            gateway.start()
            await made.settled(*made.gateways)
            await load.more(50)


def next_release(folder: Path) -> Path:
    """A tree of the same code that speaks the next version of the messages."""
    tree = folder / "next"
    for package in ("gateway", "engine"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    tier, field = tree / "gateway" / "tier", "    new: int = 7\n"
    unknown = "class New(_Message, tag=99):\n    pass\n\n\n"
    changes = {
        tier / "frames.py": {
            f"\nVERSION = {VERSION}\n": f"\nVERSION = {VERSION + 1}\n",
            f"\nOLDEST = {OLDEST}\n": f"\nOLDEST = {VERSION}\n",
            "    arrival: Arrived\n\n\nclass Left": f"    arrival: Arrived\n{field}\n\n{unknown}class Left",
            "    dispatch: Dispatch\n": f"    dispatch: Dispatch\n{field}",
        },
        tier / "owner_link.py": {
            "            self._line.send(message)\n": "            self._line.send(message, New())\n",
            "    Moved,\n": "    Moved,\n    New,\n",
        },
        tier / "hall.py": {
            "        if self._withheld is None:\n            seat.line.send(message)\n": (
                "        if self._withheld is None:\n            seat.line.send(message, New())\n"
            ),
            "    Moved,\n": "    Moved,\n    New,\n",
        },
        tree / "gateway" / "admission" / "events.py": {
            "    charged: bool = False\n": f"    charged: bool = False\n{field}"
        },
    }
    for file, edits in changes.items():
        text = file.read_text()
        for old, new in edits.items():
            assert text.count(old) == 1, f"{file.name} has changed: {old!r}"
            text = text.replace(old, new)
        file.write_text(text)
    return tree


async def from_old(made: Tier, folder: Path, old: Path, lost: Lost) -> None:
    """Go from a release without tiers to this one."""
    for gateway in made.gateways:
        await gateway.stop()
    now = [gateway.argv for gateway in made.gateways]
    for gateway in made.gateways:
        gateway.tree, gateway.argv = old, as_before(made, gateway, folder)
        gateway.start()
        await until(ready(made, gateway))
    place = folder / "from-old"
    place.mkdir()
    async with nginx(find_nginx(), place, [gateway.port for gateway in made.gateways]) as url:
        file, master = place / "nginx" / "nginx.conf", int((place / "nginx" / "nginx.pid").read_text())
        text = file.read_text()

        async def go_by(text: str, load: Load) -> None:
            file.write_text(text)
            os.kill(master, signal.SIGHUP)
            await load.more(50)  # nginx has gone by it since long

        async with lost.loaded(url, f"from {old}") as load:
            for gateway, argv in zip(made.gateways, now, strict=True):
                await go_by(text.replace(f":{gateway.port} ", f":{gateway.port} down "), load)
                await gateway.stop()
                gateway.tree, gateway.argv = ROOT, argv
                gateway.start()
                await until(ready(made, gateway))
                await go_by(text, load)
            await made.settled(*made.gateways)
            await load.more(50)


def ready(made: Tier, gateway: Gateway) -> Callable[[], Awaitable[bool]]:
    """Asks whether it serves."""

    async def asked() -> bool:
        with suppress(httpx.TransportError):
            return (await made.client.get(f"{gateway.url}/readyz")).is_success
        return False

    return asked


def as_before(made: Tier, gateway: Gateway, folder: Path) -> list[str]:
    """The command line of a gateway without a tier."""
    file = folder / f"before-{gateway.port}.yaml"
    endpoint = {"url": made.engine.url, "max_num_seqs": PLACES // 2}
    settings = {
        "models": [{"endpoints": [endpoint], "tokenizer": "/nonexistent"}],
        "server": {"state_dir": "none"},
        "admission": {"ttft_target": None},
        "health": {"interval": 0.2},
    }
    file.write_text(yaml.safe_dump(settings))
    own = ["--config", str(file), "--host", "127.0.0.1", "--port", str(gateway.port)]
    return [sys.executable, "-m", "gateway", "serve", *own]


async def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--next-messages", action="store_true")
    parser.add_argument("--old", type=Path, help="a checkout of an earlier release")
    arguments = parser.parse_args()
    lost = Lost()
    with tempfile.TemporaryDirectory(prefix="kvgate-rolling-") as name:
        folder = Path(name)
        os.environ["KVGATE_CACHE"] = str(folder / "cache")
        with serving(valkey(), folder) as redis:
            async with tier(folder, redis, 2) as made:
                async with nginx(find_nginx(), folder, [gateway.port for gateway in made.gateways]) as url:
                    trees = [next_release(folder), ROOT] if arguments.next_messages else [ROOT]
                    for number in range(arguments.rounds):
                        tree = trees[number % len(trees)]
                        what = f"round {number + 1}" if tree == ROOT else f"round {number + 1}, next messages"
                        await restarted(made, url, what, tree, lost)
                if arguments.old is not None:
                    await from_old(made, folder, arguments.old, lost)
    print(f"{lost.count} requests failed")
    return int(lost.count > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
