"""Engines on demand in a tier: one gateway launches them, whichever decides."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes.interpreter import made as interpreter
from tests.integration.redis_servers import serving, valkey
from tests.integration.relaying import CHAT
from tests.integration.tiers import Engine as NoEngine
from tests.integration.tiers import Gateway, Tier, until
from tests.ports import free_port
from tests.unit.engine.processes import descendants, is_alive

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
MODELS = ("red", "blue")
LAUNCHING, OTHER = "127.0.0.2", "127.0.0.3"
"""Hosts of the gateway that launches the engines and of the other one."""
PATIENCE = 40.0
"""Seconds for which a request waits for an engine of which nothing is known: a busy machine takes long to start one."""
TOKENS = 80
"""Of a long answer, which takes four seconds."""


class Served:
    """Two gateways, and two engines that take turns on the first one's machine."""

    def __init__(self, tier: Tier, folder: Path) -> None:
        self.tier = tier
        self.slow, self.pids = folder / "slow", folder / "pids"
        self.at = {model: f"{LAUNCHING}:{free_port()}" for model in MODELS}
        (folder / "model").mkdir()
        python = interpreter(folder)

        def described(model: str) -> dict[str, Any]:
            fakes = [f"--fake-slow={self.slow}", f"--fake-pids={self.pids}", "--step-seconds=0.05"]
            engine = {
                "model": str(folder / "model"),
                "python": str(python),
                "args": ["--load-format=dummy", *fakes],
                "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
                "on_demand": True,
                "idle_stop": 60,
                "group": "card",
                "at": self.at[model],
                "hung_timeout": 2,
            }
            return {"name": model, "tokenizer": "/nonexistent", "engine": engine}

        admission = {"ttft_target": None, "queue": {"no_endpoint_ttl": PATIENCE}}
        health = {"interval": 0.2, "timeout": 1, "failures": 2, "hung_after": 3}
        more = {"models": [*map(described, MODELS)], "admission": admission, "health": health}

        def gateway(host: str, workers: int) -> Gateway:
            made = Gateway(folder, "", tier.redis.url, tier.key, at=None, workers=workers, host=host, **more)
            tier.gateways.append(made)
            return made

        self.launching, self.other = gateway(LAUNCHING, 2), gateway(OTHER, 1)

    async def ask(self, gateway: Gateway, model: str = "red", tokens: int = 2, timeout: float = 60) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": tokens, "stream": True}
        answer = await self.tier.client.post(f"{gateway.url}{CHAT}", json=body, timeout=timeout)
        if not answer.is_success:  # a test that expects none shows this
            print(model, answer.text, *(f"{each.url}\n{each.log.read_text()[-6000:]}" for each in self.tier.gateways))
        return answer

    async def states(self, gateway: Gateway) -> dict[str, str]:
        found = {endpoint["id"]: endpoint["state"] for endpoint in (await self.tier.state(gateway))["endpoints"]}
        return {model: found[at] for model, at in self.at.items()}

    def starts(self) -> list[int]:
        """Process ids of all starts."""
        return [int(pid) for pid in self.pids.read_text().split()] if self.pids.exists() else []

    def alive(self) -> list[int]:
        """Those that have not ended."""
        return [pid for pid in self.starts() if is_alive(pid)]

    def words(self, pid: int) -> list[str]:
        """The command line of an engine."""
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")

    async def has(self, **states: str) -> None:
        """Wait until these models are as said, at both gateways."""

        async def are() -> bool:
            seen = [await self.states(gateway) for gateway in (self.launching, self.other)]
            return all(each[model] == state for each in seen for model, state in states.items())

        await until(are)

    async def reloads(self, gateway: Gateway, change: Callable[[], None]) -> None:
        """Wait until the settings that a change gives a gateway are in force."""
        before = len(gateway.logged("The new settings are in force."))
        change()

        async def changed() -> bool:
            return len(gateway.logged("The new settings are in force.")) > before

        await until(changed)

    async def owned_by(self, owner: Gateway) -> None:
        """Have this gateway decide."""
        other = self.other if owner is self.launching else self.launching
        found, _ = await self.tier.settled(self.launching, self.other)
        if found is not owner:
            await other.stop()
            other.start()
            found, _ = await self.tier.settled(self.launching, self.other)
        assert found is owner


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Both gateways, the one that launches no engine first, so that it decides."""
    folder = tmp_path_factory.mktemp("tier")
    with pytest.MonkeyPatch.context() as patch, serving(valkey(), folder) as redis:
        patch.setenv("KVGATE_CACHE", str(folder / "cache"))
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            made = Served(Tier(folder, NoEngine(), redis, client), folder)
            try:
                made.other.start()
                await made.tier.settled(made.other)
                made.launching.start()
                yield made
            finally:
                for gateway in made.tier.gateways:
                    gateway.close()


def whole(answer: httpx.Response) -> bool:
    return answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")


async def test_the_gateway_at_an_engines_address_starts_it_whichever_decides_and_they_take_turns(
    served: Served,
) -> None:
    await served.owned_by(served.other)
    await served.has(red="stopped", blue="stopped")
    assert whole(await served.ask(served.other))
    await served.has(red="up", blue="stopped")
    (red,) = served.starts()
    assert served.launching._process is not None
    assert red in descendants(served.launching._process.pid)
    assert whole(await served.ask(served.launching, "blue"))
    await served.has(red="stopped", blue="up")
    assert not is_alive(red)
    assert len(served.starts()) == 2


async def test_an_owner_that_dies_while_an_engine_starts_is_followed_by_one_that_waits_for_that_start(
    served: Served,
) -> None:
    await served.owned_by(served.other)
    before = len(served.starts())
    served.slow.write_text("5")
    first = asyncio.create_task(served.ask(served.launching))

    async def begun() -> bool:
        return len(served.starts()) > before

    await until(begun)
    served.slow.unlink()
    blue = asyncio.create_task(served.ask(served.launching, "blue"))
    await asyncio.sleep(0.3)
    red = asyncio.create_task(served.ask(served.launching))
    await asyncio.sleep(0.3)
    first.cancel()  # now the next owner hears that the other one has been waited for longer
    await asyncio.sleep(0.3)
    served.other.kill()
    most = 0
    while not (red.done() and blue.done()):
        most = max(most, len(served.alive()))
        await asyncio.sleep(0.05)
    assert whole(await red)
    assert whole(await blue)
    assert (most, len(served.starts())) == (1, before + 2), "nothing is started twice, or beside another"
    served.other.start()


async def test_what_waits_for_an_engine_whose_gateway_is_gone_is_told_and_served_when_that_is_back(
    served: Served,
) -> None:
    await served.owned_by(served.launching)
    await served.ask(served.other, "red")
    assert len(served.alive()) == 1
    served.launching.kill()

    async def gone() -> bool:
        return not served.alive()

    await until(gone)
    served.other.change(f"no_endpoint_ttl: {PATIENCE}", "no_endpoint_ttl: 3.0")
    refused = await served.ask(served.other, "red")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_endpoint")
    served.other.change("no_endpoint_ttl: 3.0", f"no_endpoint_ttl: {PATIENCE}")
    waiting = asyncio.create_task(served.ask(served.other, "blue"))
    served.launching.start()
    await asyncio.wait([waiting])
    await served.tier.settled(served.launching, served.other)
    assert whole(await served.ask(served.other, "red"))


async def test_an_answer_through_another_gateway_is_not_cut_off_when_the_one_with_the_engine_stops(
    served: Served,
) -> None:
    await served.owned_by(served.other)
    assert whole(await served.ask(served.other, "red"))
    long = asyncio.create_task(served.ask(served.other, "red", tokens=TOKENS))
    await asyncio.sleep(0.5)
    await served.launching.stop()
    assert long.done()
    assert whole(await long)
    served.launching.start()
    await served.tier.settled(served.launching, served.other)
    assert whole(await served.ask(served.launching, "blue"))


async def test_the_fronts_of_the_gateway_with_the_engines_may_die(served: Served) -> None:
    await served.owned_by(served.other)
    assert whole(await served.ask(served.other, "red"))
    for front in served.launching.fronts:
        os.kill(front, signal.SIGKILL)
    assert whole(await served.ask(served.other, "blue"))
    assert len(served.alive()) == 1
    await served.tier.settled(served.launching, served.other)


async def test_a_changed_engine_takes_the_place_of_the_one_at_its_address_once_nothing_is_on_that(
    served: Served,
) -> None:
    await served.owned_by(served.other)
    assert whole(await served.ask(served.other, "red"))
    (before,) = served.alive()
    long = asyncio.create_task(served.ask(served.other, "red", tokens=TOKENS))
    await asyncio.sleep(0.5)
    served.launching.change("--load-format=dummy", "--load-format=auto")

    async def changed() -> bool:
        assert whole(await served.ask(served.other, "red"))
        (now,) = served.alive()
        return now != before and "--load-format=auto" in served.words(now)

    await until(changed)
    assert whole(await long)
    await served.tier.settled(served.launching, served.other)


async def test_an_engine_that_hangs_is_started_again_though_another_gateway_decides(served: Served) -> None:
    await served.owned_by(served.other)
    assert whole(await served.ask(served.other, "red"))
    (hung,) = served.alive()
    os.kill(hung, signal.SIGSTOP)

    async def killed() -> bool:
        return not is_alive(hung)

    await until(killed)
    assert whole(await served.ask(served.other, "red"))


async def test_models_that_swap_their_names_are_served_by_engines_at_each_others_addresses(served: Served) -> None:
    await served.owned_by(served.other)
    assert whole(await served.ask(served.other, "red"))
    assert whole(await served.ask(served.other, "blue"))
    for gateway in (served.other, served.launching):
        await served.reloads(gateway, partial(gateway.rename, {"red": "blue", "blue": "red"}))
    await served.tier.settled(served.launching, served.other)
    for gateway in (served.other, served.launching):
        assert whole(await served.ask(gateway, "red"))
        assert whole(await served.ask(gateway, "blue"))
    assert len(served.alive()) == 1
    served.at = {"red": served.at["blue"], "blue": served.at["red"]}


async def test_a_model_that_its_gateways_lose_one_after_the_other_is_not_in_the_way_of_another(served: Served) -> None:
    """What waits for that one holds the launching gateway's reload up, and the removed engine ends after it."""
    await served.owned_by(served.launching)
    assert whole(await served.ask(served.launching, "red"))
    await served.reloads(served.other, partial(served.other.remove, "red"))
    await served.tier.settled(served.launching, served.other)
    long = asyncio.create_task(served.ask(served.launching, "red", tokens=TOKENS))
    await asyncio.sleep(0.5)
    blue = asyncio.create_task(served.ask(served.launching, "blue"))
    await asyncio.sleep(0.2)
    served.launching.remove("red")
    most = 0
    while not (long.done() and blue.done()):
        most = max(most, len(served.alive()))
        await asyncio.sleep(0.05)
    assert whole(await long)
    assert whole(await blue)
    assert most == 1, "none is started beside another"
