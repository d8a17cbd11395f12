"""Two engines launched by kvgate: their LoRA adapters, and one of them killed under load."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import yaml

from loadtests.sse import EventReader
from tests.integration.kvgate import PATIENT, Kvgate, serving
from tests.integration.relaying import until
from tests.ports import free_port
from tests.unit.engine.adapters import adapter

pytestmark = pytest.mark.engine

START_TIMEOUT = 900.0
STREAMS = 14
STARTED = 5
"""Streams that must run on the engine before it is killed."""
LATE = 5
"""Streams that come when it is dead already."""
TOKENS = 800
"""Of each answer: seconds of work, so that none has ended when its engine dies."""


@dataclass
class Stream:
    """What one client saw."""

    number: int
    events: int = 0
    failure: str | None = None
    whole: bool = False

    async def run(self, client: httpx.AsyncClient) -> None:
        body = {
            "model": "random",
            "prompt": [101 + self.number, 102, 103],
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        reader = EventReader()
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                self.failure = f"status {answer.status_code}"
                return
            async for data in answer.aiter_raw():
                for payload in reader.feed(data):
                    if payload == b"[DONE]":
                        self.whole = True
                    elif (chunk := msgspec.json.decode(payload)).get("error"):
                        self.failure = chunk["error"]["code"]
                    else:
                        self.events += 1


@pytest.fixture(scope="module")
def kvgate(quick_python: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    """Both engines, healthy, with an adapter."""
    folder = tmp_path_factory.mktemp("two")
    config = folder / "kvgate.yaml"
    engine = {
        "model": str(random_model),
        "python": str(quick_python),
        "replicas": 2,
        "args": ["--max-model-len=2048", "--block-size=32", "--num-gpu-blocks-override=256", "--enforce-eager"],
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    model = {"name": "random", "engine": engine, "lora": [tuned("sql", folder, 0.5)]}
    # Half of the engines are gone: who waits shall wait, as long as a slow machine takes.
    patient = {"ttft_target": "none", "queue": {"ttl": START_TIMEOUT}}
    config.write_text(yaml.safe_dump({"admission": patient, "models": [model]}))
    with serving(folder / "kvgate.log", free_port(), "--config", str(config), environ=PATIENT) as running:
        running.wait_healthy(2, START_TIMEOUT)
        yield running


def tuned(name: str, folder: Path, weight: float, rank: int = 8) -> dict[str, str]:
    """An adapter, as the settings give it."""
    return {"name": name, "path": str(adapter(folder / name, weight=weight, rank=rank, target_modules=["q_proj"]))}


def said(kvgate: Kvgate, model: str) -> tuple[int, ...]:
    """The tokens with which a model goes on."""
    prompt = list(range(200, 1000, 37))
    asked = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    answer = httpx.post(f"{kvgate.url}/v1/completions", json=asked, timeout=600, trust_env=False)
    assert answer.status_code == 200, answer.text
    used = answer.json()["usage"]["prompt_tokens"]
    assert used == int(answer.headers["x-kvgate-prompt-tokens"]) == len(prompt)
    return tuple(answer.json()["choices"][0]["token_ids"])


def test_adapters_are_loaded_at_the_start_and_while_it_serves(kvgate: Kvgate, tmp_path: Path) -> None:
    def change(what: str, **fields: str) -> list[str]:
        asked = {"model": "random", **fields}
        answer = httpx.post(f"{kvgate.url}/kvgate/adapters/{what}", json=asked, timeout=600, trust_env=False)
        return list(answer.json()["endpoints"].values())

    assert change("load", **tuned("later", tmp_path, 1.0)) == ["loaded"] * 2
    assert len({said(kvgate, model) for model in ("random", "sql", "later")}) == 3, "each changes the answer"
    too_high = "Call to add_lora method failed: LoRA rank 64 is greater than max_lora_rank 16."
    assert change("load", **tuned("high", tmp_path, 0.1, rank=64)) == [too_high] * 2
    assert change("unload", name="later") == ["unloaded"] * 2
    cards = httpx.get(f"{kvgate.url}/v1/models", trust_env=False).json()["data"]
    assert {card["id"]: card["parent"] for card in cards} == {"random": None, "sql": "random"}


async def test_kill_9_of_one_engine_costs_only_the_streams_that_had_started_on_it(kvgate: Kvgate) -> None:
    victim, other = kvgate.healthy()
    spare = f"/kvgate/endpoints/{urlsplit(other).netloc}"
    async with httpx.AsyncClient(base_url=kvgate.url, timeout=600) as client:
        # While the other one is drained, whatever has started has started on the victim, and the rest waits.
        assert (await client.post(f"{spare}/drain")).status_code == 200
        streams = [Stream(number) for number in range(STREAMS)]
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await until(lambda: sum(stream.events > 0 for stream in streams) >= STARTED)
        started = [stream for stream in streams if stream.events]
        os.kill(_serving(victim), signal.SIGKILL)
        late = [Stream(number) for number in range(STREAMS, STREAMS + LATE)]
        running += [asyncio.create_task(stream.run(client)) for stream in late]
        assert (await client.post(f"{spare}/undrain")).status_code == 200
        await until(lambda: victim not in kvgate.healthy())
        await asyncio.gather(*running)

        torn = [stream for stream in streams if stream.failure]
        assert {stream.failure for stream in torn} == {"upstream_error"}, "an in-band error is what the clients get"
        assert all(stream.events for stream in torn), "a request failed that had not started streaming"
        assert all(stream.failure or stream.whole for stream in streams), "a stream ended without a word"
        assert len(torn) >= len(started) - 1, "streams that had started cannot have gone on elsewhere"
        assert [stream.failure for stream in late if not stream.whole] == [], "traffic moves to the other engine"

        healthy = await asyncio.to_thread(kvgate.wait_healthy, 2, START_TIMEOUT)
        assert sorted(healthy) == sorted([victim, other]), "the engine is back without help, where it was"
        await until(lambda: all(e["in_flight"] == 0 for e in kvgate.state()["endpoints"]))
        assert all(e["kv"]["ledger"] == 0.0 for e in kvgate.state()["endpoints"])
        assert [e["adapters"]["sql"] for e in kvgate.state()["endpoints"]] == ["loaded"] * 2


def _serving(engine: str) -> int:
    """The process whose command line asks for this engine's port, not its guard."""
    port = str(urlsplit(engine).port).encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if port in words and not any(word.endswith(b"guard.py") for word in words):
                return int(process.name)
    raise AssertionError(f"nobody serves port {port.decode()}")
