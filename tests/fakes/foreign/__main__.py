"""Run a fake as a process of its own: `python -m tests.fakes.foreign sglang --port 8000`."""

import argparse
import asyncio

from tests.fakes.foreign import FACTS, FakeEngine


async def serve(kind: str, port: int) -> None:
    """Serve until the process ends."""
    fake = FakeEngine(kind)
    fake.port = port
    async with fake:
        print(fake.url, flush=True)
        await asyncio.Event().wait()


parser = argparse.ArgumentParser(prog="python -m tests.fakes.foreign", description=__doc__)
parser.add_argument("kind", choices=FACTS)
parser.add_argument("--port", type=int, default=0, help="0 takes a free one, printed on start")
asked = parser.parse_args()
asyncio.run(serve(asked.kind, asked.port))
