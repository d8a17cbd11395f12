"""A candidate with a Redis in memory. Its sockets are real, at its endpoints nobody listens."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.events import FRONT_BITS, Arrived, Capacity, Demand, EndpointId, RequestId
from gateway.app import candidate as module
from gateway.app.candidate import Candidate
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.endpoints.identity import Identity
from gateway.tier.channel import connect
from gateway.tier.claims import claim
from gateway.tier.election import Claim, Election, Kept, Terms
from gateway.tier.frames import VERSION, Came, Declares, Hello, Ping, Reigns, Sent, Surpassed, Welcome, from_owner
from gateway.tier.guide import Guide, guide_path
from gateway.tier.key_file import read_key
from gateway.tier.line import Line
from gateway.tier.redis_lease import RedisLeaseError
from gateway.tier.seal import Role
from tests.fakes.redis_lease import FakeRedisLease
from tests.ports import free_port
from tests.until import until

ONE, TWO = EndpointId("127.0.0.1:1"), EndpointId("127.0.0.1:2")
TERMS = Terms(beat=0.05, timeout=0.2, term=0.5, patience=0.6, grace=0.9)


class Redis:
    """The Redis of a tier, for each candidate that asks."""

    def __init__(self) -> None:
        self.kept = FakeRedisLease()
        self.away = False

    def lease(self, _address: object, me: str, entry: str, _timeout: float) -> "RedisLease":
        return RedisLease(self, me, entry)


class RedisLease:
    def __init__(self, redis: Redis, me: str, entry: str) -> None:
        self.redis, self.me = redis, me
        self.address, _, self.mark = entry.rpartition(" ")

    async def ask(self, claim: Claim) -> Kept:
        if self.redis.away:
            raise RedisLeaseError("away")
        return self.redis.kept.ask(self.me, self.address, self.mark, claim)

    async def leave(self) -> None:
        self.redis.kept.leave(self.me)

    async def close(self) -> None:
        pass


class World:
    """What a candidate needs: its files, and a Redis."""

    def __init__(self, folder: Path) -> None:
        self.redis = Redis()
        self.folder = folder
        key = folder / "key"
        key.write_text("0123456789abcdef" * 2)
        key.chmod(0o600)
        self.settings = self.with_endpoint(ONE)

    def with_endpoint(self, endpoint: EndpointId, **tier: Any) -> Settings:
        port = tier.pop("port", None) or free_port()
        tier = {"redis": "redis://h", "advertise": f"127.0.0.1:{port}", "key_file": str(self.folder / "key"), **tier}
        models = [{"endpoints": [{"url": f"http://{endpoint}"}]}]
        health = {"interval": 0.05}
        return Settings.model_validate(
            {"server": {"state_dir": "none"}, "models": models, "tier": tier, "health": health}
        )

    @property
    def socket(self) -> Path:
        return self.folder / "owner"

    @contextlib.asynccontextmanager
    async def candidate(self) -> AsyncIterator[Candidate]:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.socket))
            candidate = Candidate(self.settings, listening)
            try:
                await candidate.start()
                yield candidate
            finally:
                await candidate.stop()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setattr(module, "RedisLease", world.redis.lease)
    monkeypatch.setattr(module, "Election", functools.partial(Election, terms=TERMS))
    return world


class Front:
    """One connection of a front, and what came over it."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.heard: list[Any] = []
        self.ended = asyncio.Event()
        self.line = Line(from_owner, lambda _line, said: self.heard.extend(said), lambda _line: self.ended.set())

    async def at(self, path: Path) -> "Front":
        await asyncio.get_running_loop().create_unix_connection(lambda: self.line, str(path))
        return self

    def greet(self, epoch: tuple[int, str] | None = None) -> None:
        self.line.send(Hello(VERSION, self.number, epoch=epoch), Declares([], [], [], last=True), Ping(1))

    def has(self, kind: type) -> bool:
        return any(isinstance(message, kind) for message in self.heard)

    async def welcomed(self) -> Reigns:
        """The epoch under which it is served."""
        self.greet()
        await until(lambda: self.has(Welcome))
        reigns = self.heard[0]
        assert isinstance(reigns, Reigns)
        return reigns


def serves(candidate: Candidate) -> None:
    assert candidate._reign is not None
    capacity = Capacity(max_model_len=1000, kv_blocks=100)
    candidate._reign._owner.cores.up(ONE, Identity(("m",), (), None, 1000, "0.32.0"), capacity)


def came(number: int) -> Came:
    return Came("m", Arrived(RequestId((1 << FRONT_BITS) + number), Demand((10,), 10)))


async def test_who_is_elected_decides_for_the_fronts_of_its_machine_and_of_others(world: World) -> None:
    async with world.candidate() as candidate:
        assert (candidate.where, candidate.active, candidate.endpoints, candidate.loaded) == (0, 0, [], frozenset())
        await until(lambda: candidate._epoch)
        here = await Front(1).at(world.socket)
        assert (await here.welcomed()).epoch == (1, candidate._election.me)
        far, key = Front(2), read_key(world.folder / "key")
        host, _, port = (world.settings.tier.advertise or "").rpartition(":")
        said = claim(Role.FRONT, key, world.settings, {None: None})
        await connect(host, int(port), lambda: far.line, key=key, claim=said)
        await far.welcomed()
        assert candidate.active == 1, "those of other machines are not waited for"
        assert [status.id for status in candidate.endpoints] == [ONE]
        serves(candidate)
        here.line.send(came(1))
        await until(lambda: here.has(Sent))
    assert world.redis.kept.holder == "-", "the next one need not wait"
    async with asyncio.timeout(30):
        await here.ended.wait()
        await far.ended.wait()


async def test_while_another_decides_fronts_are_sent_there(world: World) -> None:
    kept, beats = world.redis.kept, Election("b", "b:1", "k", members=2, fallback_share=None, now=0.0)
    kept.ask("b", "b:1", "k", beats.claim(0.0))
    kept.holder, kept.beat, kept.epoch, kept.highest = "b", 1, 7, 7

    async def hold() -> None:
        while True:
            kept.ask("b", "b:1", "k", beats.claim(0.0))
            kept.beat += 1
            await asyncio.sleep(TERMS.beat)

    holding = asyncio.create_task(hold())
    async with world.candidate() as candidate:
        guide = Guide(guide_path(world.socket), here=None, elsewhere=None, turned=lambda: None, following=lambda: None)
        listening = asyncio.create_task(guide.run())
        await until(lambda: guide._follow is not None and guide._follow.address)
        assert guide._follow is not None
        assert (guide._follow.here, guide._follow.address, guide.ready) == (False, "b:1", False)
        candidate._followed(candidate._campaign.view.epoch)
        await until(lambda: guide.ready)
        front = await Front().at(world.socket)
        async with asyncio.timeout(30):
            await front.ended.wait()
        assert front.heard == []
        listening.cancel()
    holding.cancel()


async def test_a_front_that_looks_for_an_owner_here_while_there_is_none_is_let_go(world: World) -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    async with world.candidate():
        far, key = Front(2), read_key(world.folder / "key")
        host, _, port = (world.settings.tier.advertise or "").rpartition(":")
        said = claim(Role.FRONT, key, world.settings, {None: None})
        await connect(host, int(port), lambda: far.line, key=key, claim=said)
        async with asyncio.timeout(30):
            await far.ended.wait()
        assert far.heard == []
    assert errors == []


async def test_who_hears_of_a_later_epoch_leaves_its_fronts_and_decides_again_above_it(world: World) -> None:
    async with world.candidate() as candidate:
        await until(lambda: candidate._epoch)
        front = await Front().at(world.socket)
        await front.welcomed()
        front.line.send(Surpassed((5, "z")))
        async with asyncio.timeout(30):
            await front.ended.wait()
        await until(lambda: candidate._epoch)
        again = await Front().at(world.socket)
        assert (await again.welcomed()).epoch == (6, candidate._election.me)


async def test_a_process_that_was_stopped_dispatches_nothing_once_its_time_is_over(world: World) -> None:
    async with world.candidate() as candidate:
        await until(lambda: candidate._epoch)
        front = await Front().at(world.socket)
        await front.welcomed()
        serves(candidate)
        assert candidate._reign is not None
        await candidate._reign.hall._opening.begun.wait()
        await candidate._campaign._background.stop()  # nobody looks at the time, as when all of it stands still
        await until(lambda: not candidate._campaign.may_decide())
        front.line.send(came(1), Ping(9))
        await until(lambda: any(getattr(message, "number", None) == 9 for message in front.heard))
        assert not front.has(Sent)


async def test_without_redis_it_goes_on_and_the_fronts_stay(world: World) -> None:
    async with world.candidate() as candidate:
        await until(lambda: candidate._epoch)
        front = await Front().at(world.socket)
        await front.welcomed()
        reign = candidate._reign
        world.redis.away = True
        await until(lambda: candidate._campaign.view.standing == "cut off")
        serves(candidate)
        front.line.send(came(1))
        await until(lambda: front.has(Sent))
        assert candidate._reign is reign
        assert not front.ended.is_set()


async def test_other_settings_reach_the_reign_of_now(world: World) -> None:
    async with world.candidate() as candidate:
        await until(lambda: candidate._epoch)
        port = int((world.settings.tier.advertise or "").rpartition(":")[2])
        await candidate.change(world.with_endpoint(TWO, port=port))
        await until(lambda: [status.id for status in candidate.endpoints] == [TWO])


async def test_it_waits_for_the_fronts_of_its_machine_for_so_long(world: World) -> None:
    async with world.candidate() as candidate:
        await until(lambda: candidate._epoch)
        front = await Front().at(world.socket)
        await front.welcomed()
        await candidate.drain(0.01)
        assert candidate.active == 1
        draining = asyncio.create_task(candidate.drain(30.0))
        front.line.cut()
        await draining
        assert candidate.active == 0


async def test_a_port_that_is_taken_is_named(world: World) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        world.settings = world.with_endpoint(ONE, port=other.getsockname()[1])
        with pytest.raises(ConfigurationError, match=r"tier\.advertise: cannot listen on port"):
            async with world.candidate():
                pass


async def test_without_a_tier_there_is_nothing_to_stand_for(world: World) -> None:
    world.settings = Settings()
    with pytest.raises(ConfigurationError, match="tier: it needs"):
        async with world.candidate():
            pass
