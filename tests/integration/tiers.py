"""A tier of gateways, each with all its processes, in front of one fake vLLM that remembers every request."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.clock import unhindered
from tests.deploy.stack import ROOT
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.fakes.vllm.connection import Connection, SeenRequest
from tests.integration.redis_servers import Server
from tests.integration.relaying import CHAT, body
from tests.ports import free_port
from tests.unit.engine.processes import descendants

PLACES = 10
"""Sequences that the engine runs at once, as the gateways know."""
FALLBACK = 0.4
"""`tier.fallback_share`"""
KEY = "of-the-engine"
"""Which gateways send to the engine."""
LOOK = 0.1
"""Seconds between two looks at processes that would otherwise be kept busy with answering them."""
START_TIMEOUT = 240.0
STOP_TIMEOUT = 120.0


async def until(condition: Callable[[], Awaitable[bool]], timeout: float = START_TIMEOUT) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    async with asyncio.timeout(timeout):
        while not await condition():  # noqa: ASYNC110  # processes are looked at, which tell nobody
            await asyncio.sleep(LOOK)


class Engine(FakeVllm):
    """A fake whose clients give each request an id, and that notes how many ran at once."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(step_seconds=0.02, output_tokens=1000))
        self.most = 0
        """The most sequences at once since last set to 0."""
        self.came: Counter[str] = Counter()
        """How often each request came."""
        self.keys: Counter[str | None] = Counter()
        """With which keys."""

    def _on_request(self, connection: Connection, seen: SeenRequest) -> None:
        super()._on_request(connection, seen)
        self.most = max(self.most, self.scheduler.unfinished)
        if seen.path == CHAT and (name := seen.header("x-request-id")) is not None:
            self.came[name] += 1
            self.keys[seen.header("authorization")] += 1


class Gateway:
    """One gateway of the tier, started and ended as often as a test likes."""

    def __init__(
        self,
        folder: Path,
        engine: str,
        redis: str,
        key: Path,
        *,
        at: str | None,
        workers: int,
        host: str = "127.0.0.1",
        engine_key: str | None = KEY,
        **more: Any,
    ) -> None:
        self.host = host
        self.port, self.advertised = free_port(), at or f"{host}:{free_port()}"
        self.url = f"http://{host}:{self.port}"
        self.log = folder / f"gateway-{self.port}.log"
        self.workers = workers
        self.tree = ROOT
        """Of the code that it runs when it is started."""
        self.argv: Sequence[str]
        self._process: subprocess.Popen[bytes] | None = None
        file = folder / f"gateway-{self.port}.yaml"
        endpoint = {"url": engine, "max_num_seqs": PLACES, "api_key": engine_key}
        settings = {
            "models": [{"endpoints": [endpoint], "tokenizer": "/nonexistent"}],
            "server": {"workers": workers, "state_dir": "none"},
            "admission": {"ttft_target": None},
            "health": {"interval": 0.2},
            "tier": {"members": 2, "fallback_share": FALLBACK},
            **more,
        }
        file.write_text(yaml.safe_dump(settings))
        self._file = file
        own = ["--config", str(file), "--host", host, "--port", str(self.port)]
        tier = ["--tier-redis", redis, "--tier-advertise", self.advertised, "--tier-key-file", str(key)]
        self.argv = [sys.executable, "-m", "gateway", "serve", *own, *tier]

    def start(self) -> None:
        environ = {**os.environ, "PYTHONPATH": str(self.tree)}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, cwd=self.tree
            )

    def change(self, this: str, to: str) -> None:
        """Change its settings, and have it read them again."""
        self._rewrite(self._file.read_text().replace(this, to))

    def remove(self, model: str) -> None:
        """Take a model out of its settings, and have it read them again."""
        self._change_models(lambda models: [entry for entry in models if entry["name"] != model])

    def rename(self, names: Mapping[str, str]) -> None:
        """Give its models other names, and have it read its settings again."""
        self._change_models(lambda models: [entry | {"name": names[entry["name"]]} for entry in models])

    def _change_models(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        settings = yaml.safe_load(self._file.read_text())
        self._rewrite(yaml.safe_dump(settings | {"models": change(settings["models"])}))

    def _rewrite(self, settings: str) -> None:
        assert self._process is not None
        self._file.write_text(settings)
        self._process.send_signal(signal.SIGHUP)

    async def ended(self) -> int:
        """Its exit code."""
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, STOP_TIMEOUT)
        self._process = None
        return code

    async def stop(self) -> None:
        """End it as a person or systemd would."""
        assert self._process is not None
        self._process.terminate()
        assert await self.ended() == 0, self.log.read_text()[-4000:]

    def kill(self) -> list[int]:
        """Kill all its processes at once, as a machine that loses its power does. Returns them."""
        assert self._process is not None
        pids = [self._process.pid, *descendants(self._process.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another die
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._process.wait()
        self._process = None
        return pids

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    @property
    def candidate(self) -> int:
        """The process that stands for election."""
        (found,) = self._processes("--owner=")
        return found

    @property
    def fronts(self) -> list[int]:
        return self._processes("--owner-at=")

    def _processes(self, mark: str) -> list[int]:
        assert self._process is not None
        found = []
        for pid in descendants(self._process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if not any(word.endswith("guard.py") for word in words) and any(word.startswith(mark) for word in words):
                found.append(pid)
        return found

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What it logged of this kind."""
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the last one may be half written
                found.append(json.loads(line))
        return [line for line in found if line["event"] == event]


@dataclass
class Lost:
    """A request that was not answered as it should have been."""

    gateway: Gateway | None
    name: str
    began: float
    why: str


@dataclass
class Load:
    """Clients that go on asking, each one gateway: a bounded load. Some of the answers are streams.

    `kept`: whether a client keeps its connection.
    """

    targets: Sequence[tuple[str, Gateway | None]]
    clients: int = 3
    tokens: int = 15
    kept: bool = True
    answered: Counter[str] = field(default_factory=Counter)
    """By URL."""
    lost: list[Lost] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    """The longest request, in unhindered seconds, by URL."""
    worst_of_all: float = 0.0
    """The longest request, in seconds as its client saw them."""

    async def __aenter__(self) -> Self:
        self._stop = asyncio.Event()
        self._began = time.monotonic()
        self._tasks = [
            asyncio.create_task(self._ask_on(url, gateway, stream=bool(number % 2)))
            for number in range(self.clients)
            for url, gateway in self.targets
        ]
        await self.more(2)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def more(self, answers: int, urls: Collection[str] | None = None) -> None:
        """Wait until each gateway, or each of these, has given so many more answers."""
        wanted = {url: self.answered[url] + answers for url in urls or [url for url, _ in self.targets]}

        async def given() -> bool:
            return all(self.answered[url] >= count for url, count in wanted.items())

        await until(given)

    async def _ask_on(self, url: str, gateway: Gateway | None, *, stream: bool) -> None:
        headers = {} if self.kept else {"connection": "close"}
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, headers=headers) as client:
            while not self._stop.is_set():
                name = os.urandom(8).hex()
                began = time.monotonic()
                timed = unhindered()
                try:
                    asking = body(tokens=self.tokens, stream=stream)
                    answer = await client.post(CHAT, json=asking, headers={"x-request-id": name})
                    whole = answer.text.endswith("data: [DONE]\n\n") if stream else '"finish_reason"' in answer.text
                    why = "" if answer.is_success and whole else f"{answer.status_code} {answer.text[-300:]}"
                except httpx.TransportError as error:
                    why = repr(error)
                self.worst[url] = max(self.worst.get(url, 0.0), unhindered() - timed)
                self.worst_of_all = max(self.worst_of_all, time.monotonic() - began)
                if why:
                    self.lost.append(Lost(gateway, name, began - self._began, why))
                    await asyncio.sleep(0.2)
                else:
                    self.answered[url] += 1
                await asyncio.sleep(0.03)

    def longest(self, url: str | None = None) -> float:
        """Unhindered seconds that the longest request took, of all or of those to a gateway."""
        return max(self.worst.values()) if url is None else self.worst[url]

    def report(self, what: str) -> None:
        """Say how it went."""
        print(
            f"{what}: {self.answered.total()} answered, {len(self.lost)} lost; the longest took"
            f" {self.worst_of_all:.1f} s, or {self.longest():.1f} s without the time in which anything waited for a CPU"
        )
        for lost in self.lost[:6]:
            print("  ", lost.gateway and lost.gateway.port, round(lost.began, 2), lost.why[:200])


class Tier:
    """The gateways, their engine and their Redis."""

    def __init__(self, folder: Path, engine: Engine, redis: Server, client: httpx.AsyncClient) -> None:
        self.folder, self.engine, self.redis, self.client = folder, engine, redis, client
        self.key = self.key_of("k")
        self.gateways: list[Gateway] = []

    def key_of(self, letter: str) -> Path:
        """A file with a key."""
        file = self.folder / f"key-{letter}"
        file.write_text(letter * 64)
        file.chmod(0o600)
        return file

    def gateway(
        self,
        *,
        workers: int = 1,
        key: Path | None = None,
        redis: str | None = None,
        at: str | None = None,
        host: str = "127.0.0.1",
        engine_key: str | None = KEY,
    ) -> Gateway:
        """One more, yet to be started."""
        url, file = redis or self.redis.url, key or self.key
        made = Gateway(
            self.folder, self.engine.url, url, file, at=at, workers=workers, host=host, engine_key=engine_key
        )
        self.gateways.append(made)
        return made

    async def state(self, gateway: Gateway) -> dict[str, Any]:
        return dict((await self.client.get(f"{gateway.url}/kvgate/state")).raise_for_status().json())

    async def of_tier(self, gateway: Gateway) -> dict[str, Any]:
        """What it says of the tier; nothing while it cannot be asked."""
        try:
            return dict((await self.state(gateway))["tier"])
        except (httpx.TransportError, httpx.HTTPStatusError):
            return {}

    async def metrics(self, gateway: Gateway) -> dict[str, float]:
        text = (await self.client.get(f"{gateway.url}/metrics")).raise_for_status().text
        return {name: float(value) for name, value in re.findall(r"^(kvgate_\S+(?: \S+)*?) (\S+)$", text, re.MULTILINE)}

    async def settled(self, *gateways: Gateway) -> tuple[Gateway, int]:
        """Wait until all of these follow one owner with its whole engine; return it and its epoch."""
        found: list[tuple[Gateway, int]] = []

        async def one() -> bool:
            found.clear()
            states = [await self.of_tier(gateway) for gateway in gateways]
            if not all(states) or len({(state["owner"], state["epoch"]) for state in states}) > 1:
                return False
            fronts = sum(gateway.workers for gateway in gateways)
            whole = all(len(state["members"]) == fronts and state["gateways"] == len(gateways) for state in states)
            owners = [
                (g, state["epoch"]) for g, state in zip(gateways, states, strict=True) if state["role"] == "owner"
            ]
            found.extend(owners)
            shares = sorted(state["share"] for state in states)
            ready = [(await self.client.get(f"{gateway.url}/readyz")).is_success for gateway in gateways]
            return whole and len(owners) == 1 and shares[-1] == 1.0 and all(ready)

        try:
            await until(one)
        except TimeoutError:
            for gateway in gateways:
                print(gateway.port, await self.of_tier(gateway), gateway.log.read_text()[-3000:])
            raise
        return found[0]

    async def idle(self, *gateways: Gateway) -> None:
        """Wait until nothing runs and no account holds anything."""

        async def nothing() -> bool:
            if self.engine.scheduler.unfinished:
                return False
            for gateway in gateways:
                state = await self.state(gateway)
                held = [e["in_flight"] or (e["kv"] and e["kv"]["ledger"]) for e in state["endpoints"]]
                if not held or any(held) or any(queue["depth"] for queue in state["queues"]):
                    return False
            return True

        await until(nothing)

    def load(self, *gateways: Gateway, clients: int = 3, tokens: int = 15) -> Load:
        """A load through each of these."""
        return Load([(gateway.url, gateway) for gateway in gateways], clients, tokens)


@contextlib.asynccontextmanager
async def tier(folder: Path, redis: Server, count: int, at: str | None = None) -> AsyncIterator[Tier]:
    """A tier of so many gateways, the first of which has two fronts. `at` is its Redis as they reach it."""
    async with Engine() as engine, httpx.AsyncClient(timeout=60, trust_env=False) as client:
        made = Tier(folder, engine, redis, client)
        try:
            for number in range(count):
                made.gateway(workers=2 if number == 0 else 1, redis=at).start()
            await made.settled(*made.gateways)
            yield made
        finally:
            for gateway in made.gateways:
                gateway.close()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile, and does not know it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
