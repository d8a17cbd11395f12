"""An engine that fails all that runs when its KV cache is full: requests killed directly, and through kvgate.

    python -m tests.proof.kill_all [--requests 300] [--clients 16] [--ctx 1024] [--slots 8] [--answers 50 200]

A real llama-server on a CPU, whose slots share one cache, as they do by default. Clients ask one request after the
other for answers of so many tokens, half of them streamed: the same requests of the engine itself, then through
kvgate. The exit code is 1 if kvgate lets one be killed, or completes under 90 % of the tokens that come directly.
"""

import argparse
import asyncio
import logging
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import structlog

from engine.demo_model import smollm2_gguf
from gateway.app.application import Application
from gateway.config.settings import Settings
from loadtests.provenance import provenance
from tests.llama_server import llama_server

CHAT = "/v1/chat/completions"
AT_LEAST = 0.9
PATIENCE = 1800.0


@dataclass
class Result:
    """What came of the requests."""

    killed: int = 0
    refused: int = 0
    completed: int = 0
    tokens: int = 0
    """Of answers in completed requests."""
    seconds: float = 0.0
    reasons: set[str] = field(default_factory=set)

    def report(self, name: str) -> None:
        """Print a line."""
        print(
            f"{name:>8}: {self.completed} completed, {self.killed} killed, {self.refused} refused; "
            f"{self.tokens:,} tokens in completed requests, {self.tokens / self.seconds:.1f} per second, "
            f"{self.seconds:.0f} s"
        )


async def ask(client: httpx.AsyncClient, body: dict[str, Any], result: Result) -> None:
    """Ask one request to its end."""
    try:
        answer = await client.post(CHAT, json=body, timeout=PATIENCE)
    except httpx.HTTPError as error:
        result.killed += 1
        result.reasons.add(type(error).__name__)
        return
    failed = answer.status_code != httpx.codes.OK or b'"error"' in answer.content
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        result.refused += 1
    elif failed:
        result.killed += 1
        result.reasons.add(answer.text[-120:].strip())
    else:
        result.completed += 1
        result.tokens += int(body["max_tokens"])


async def load(url: str, bodies: list[dict[str, Any]], clients: int) -> Result:
    """Ask all, so many at once."""
    result, left = Result(), iter(bodies)
    began = time.monotonic()
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, limits=limits) as client:

        async def one() -> None:
            for body in left:
                await ask(client, body, result)

        await asyncio.gather(*(one() for _ in range(clients)))
    result.seconds = time.monotonic() - began
    return result


async def through(url: str, bodies: list[dict[str, Any]], clients: int) -> Result:
    """The same through a gateway in front of it, that lets them wait."""
    settings = {
        "models": [{"endpoints": [{"url": url}]}],
        "server": {"host": "127.0.0.1", "port": 0},
        "admission": {"ttft_target": None, "queue": {"ttl": PATIENCE}},
        "log": {"access": False},
    }
    application = Application(Settings.model_validate(settings))
    await application.start()
    try:
        return await load(f"http://127.0.0.1:{application.port}", bodies, clients)
    finally:
        await application.stop()


def main() -> None:
    """Print both, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=1024, help="tokens of KV cache")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--answers", type=int, nargs=2, default=(50, 200), help="tokens of an answer, least and most")
    asked = parser.parse_args()
    chance = random.Random(7)  # noqa: S311 - the same requests each time
    bodies: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": f"Tell me the story number {number}."}],
            "max_tokens": chance.randint(*asked.answers),
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        for number in range(asked.requests)
    ]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    measured = provenance()
    print(f"{measured['cpu']}, {measured['cores']} cores, {measured['measured_at']}")
    model = smollm2_gguf()
    with llama_server(model, ctx=asked.ctx, slots=asked.slots) as engine:
        direct = asyncio.run(load(engine.url, bodies, asked.clients))
    direct.report("direct")
    with llama_server(model, ctx=asked.ctx, slots=asked.slots) as engine:
        gated = asyncio.run(through(engine.url, bodies, asked.clients))
    gated.report("kvgate")
    for reason in sorted(direct.reasons | gated.reasons)[:3]:
        print(f"  killed: ...{reason}")
    sys.exit(
        gated.killed + gated.refused > 0 or gated.tokens / gated.seconds < AT_LEAST * direct.tokens / direct.seconds
    )


if __name__ == "__main__":
    main()
