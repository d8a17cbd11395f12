"""Three models on one slot: a kvgate whose llama-servers, real ones with small models of random weights, take turns."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.gguf_models import Made, write
from tests.integration.kvgate import Kvgate, serving
from tests.ports import free_port

MODELS = ("red", "green", "blue")
SMALL = Made("llama", "F16", layers=2, hidden=256, feed_forward=512, heads=4, vocabulary=2048)
ARGS = ["--ctx-size", "2048", "--parallel", "2", "--threads", "1", "--cache-ram", "0"]
PATIENT = {"ttft_target": None, "queue": {"ttl": 300, "no_endpoint_ttl": 300, "heartbeat": 0.2}}
"""A time to live that covers every model's turn, with heartbeats."""
LONGEST = 300.0


@contextmanager
def one_slot(folder: Path, *, idle_stop: float) -> Iterator[Kvgate]:
    """A kvgate with the three models, ready for requests; none runs."""
    engine = {"args": ARGS, "on_demand": True, "group": "card", "idle_stop": idle_stop}
    models = [{"name": n, "engine": {"model": str(write(SMALL, folder / f"{n}.gguf")), **engine}} for n in MODELS]
    config = folder / "kvgate.yaml"
    config.write_text(yaml.safe_dump({"models": models, "admission": PATIENT}))
    with serving(folder / "log", free_port(), "--config", str(config)) as kvgate:
        kvgate.wait_ready()
        yield kvgate


def states(kvgate: Kvgate) -> dict[str, str]:
    """The state of each model's engine."""
    return dict(zip(MODELS, (endpoint["state"] for endpoint in kvgate.state()["endpoints"]), strict=True))


def starts(kvgate: Kvgate) -> int:
    """How often an engine was started so far."""
    return kvgate.log.read_text().count('"event":"engine starts: a request waits for it"')


def body(model: str, text: str = "Say hello.", **more: Any) -> dict[str, Any]:
    """A request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


def ask(kvgate: Kvgate, model: str, **more: Any) -> httpx.Response:
    """Ask one request to its end."""
    url = f"{kvgate.url}/v1/chat/completions"
    return httpx.post(url, json=body(model, **more), timeout=LONGEST, trust_env=False)


@dataclass(frozen=True)
class Answered:
    """One of many requests."""

    status: int
    whole: bool
    seconds: float


async def mixed(kvgate: Kvgate, requests: int, within: float) -> list[Answered]:
    """Requests for the models in no order, a quarter of them streamed, that come within so many seconds."""
    chosen = random.Random(7)  # noqa: S311

    async def one(client: httpx.AsyncClient, number: int) -> Answered:
        await asyncio.sleep(chosen.uniform(0, within))
        asked = body(chosen.choice(MODELS), f"Say {number}.", max_tokens=chosen.choice((1, 8)), stream=number % 4 == 0)
        began = time.monotonic()
        answer = await client.post(f"{kvgate.url}/v1/chat/completions", json=asked)
        whole = "error" not in answer.text and (not asked["stream"] or answer.text.rstrip().endswith("data: [DONE]"))
        return Answered(answer.status_code, whole, time.monotonic() - began)

    unlimited = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=LONGEST, trust_env=False, limits=unlimited) as client:
        return await asyncio.gather(*(one(client, number) for number in range(requests)))
