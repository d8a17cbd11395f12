"""A gateway inside the test's own process, in front of fake vLLMs: fast to start, and its end can be watched."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from gateway.app.application import Application
from gateway.config.settings import Settings
from tests.fakes.vllm import FakeVllm
from tests.until import until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
WITH_DONE = (CHAT, COMPLETIONS)
"""The APIs whose streams end with `[DONE]`, and in which vLLM tells an abort from a normal end."""

_PROMPT = {COMPLETIONS: "prompt", RESPONSES: "input"}
_LIMIT = {RESPONSES: "max_output_tokens"}


def body(path: str = CHAT, *, tokens: int = 5, **fields: Any) -> dict[str, Any]:
    """A request for an answer of so many tokens."""
    prompt = _PROMPT.get(path)
    asked: dict[str, Any] = {prompt: "one two"} if prompt else {"messages": [{"role": "user", "content": "one two"}]}
    return {"model": "fake", _LIMIT.get(path, "max_tokens"): tokens, **asked, **fields}


class Running:
    """A gateway that serves, and a client of it."""

    def __init__(self, application: Application, client: httpx.AsyncClient) -> None:
        self.application = application
        self.client = client
        self.port = application.port

    async def post(self, path: str = CHAT, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=body(path, **fields))

    async def state(self) -> dict[str, Any]:
        return dict((await self.client.get("/kvgate/state")).json())

    async def outcomes(self) -> dict[str, int]:
        """How many requests ended how."""
        counted = {}
        for line in (await self.client.get("/metrics")).text.splitlines():
            if line.startswith("kvgate_requests_total{") and not line.endswith(" 0.0"):
                counted[line.split('outcome="')[1].split('"')[0]] = int(float(line.rsplit(" ", 1)[1]))
        return counted

    async def until_idle(self) -> None:
        """Wait until nothing is reserved, in flight or queued any more."""

        async def idle() -> bool:
            state = await self.state()
            endpoints, queues = state["endpoints"], state["queues"]
            return all(e["in_flight"] == 0 and not e["kv"]["ledger"] for e in endpoints if e["kv"]) and not any(
                queue["depth"] for queue in queues
            )

        await until(idle)


@contextlib.asynccontextmanager
async def gateway(*fakes: FakeVllm, ready: bool = True, **sections: Mapping[str, Any]) -> AsyncIterator[Running]:
    """A gateway in front of these fakes; `sections` are laid over the settings of the tests."""
    defaults: dict[str, dict[str, Any]] = {
        "server": {"host": "127.0.0.1", "port": 0},
        "health": {"interval": 0.1},
        "counting": {"processes": 0},
        "log": {"access": False},
    }
    # No tokenizer can be loaded, so the fake counts; nobody asks a hub for one.
    model = {"endpoints": [{"url": fake.url} for fake in fakes], "tokenizer": "/nonexistent"}
    models = sections.pop("models", [model])
    merged = {name: {**defaults.get(name, {}), **values} for name, values in {**defaults, **sections}.items()}
    application = Application(Settings.model_validate({"models": models, **merged}))
    await application.start()
    url = f"http://127.0.0.1:{application.port}"
    try:
        # Plain HTTP: a TLS context would take longer to make than most tests run.
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:  # noqa: S501
            running = Running(application, client)
            if ready:

                async def all_healthy() -> bool:
                    return all(endpoint["healthy"] for endpoint in (await running.state())["endpoints"])

                await until(all_healthy)
                for fake in fakes:
                    fake.seen.clear()  # the probes
            yield running
    finally:
        await application.stop()


@contextlib.contextmanager
def fake_processes(count: int, *options: str) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """Fakes that can be killed: the URL and the process of each."""
    argv = [sys.executable, "-m", "tests.fakes.vllm", *options]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) for _ in range(count)]
    try:
        yield [(process.stdout.readline().decode().strip(), process) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def events(text: str) -> list[str]:
    """The events of a stream, without the blank lines between."""
    return [event for event in text.replace("\r\n", "\n").split("\n\n") if event]


def last_error(text: str) -> dict[str, Any]:
    """The error a stream ended with, in the shape of its API."""
    return dict(json.loads(events(text)[-1].rpartition("data: ")[2]))


async def raw(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of our own on which these bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    return reader, writer


def http(path: str, payload: bytes, *headers: str, method: str = "POST") -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "host: kvgate", "content-type: application/json"]
    if payload:
        lines.append(f"content-length: {len(payload)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + payload
