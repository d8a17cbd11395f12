"""Gateways of a tier as whole processes: killed, stopped, cut off from Redis and restarted under load."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gateway.tier.redis_lease import KEY as KEPT_AT
from tests.deploy.stack import find_nginx, nginx
from tests.integration.redis_servers import serving, valkey, watched_by_sentinel
from tests.integration.relaying import CHAT, body
from tests.integration.tiers import FALLBACK, KEY, PLACES, Gateway, Load, Tier, stopped, tier, until
from tests.unit.engine.processes import is_alive

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
STOPPED = 4.0
"""Seconds: longer than an owner's term, its successor's patience and a front's term."""
MORE = 3.0
"""Seconds that a request may take longer when an owner dies: 2.0 until another is elected, the rest until it has heard
of all fronts and read the engine's gauge."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tier]:
    """Two gateways that all tests share; each leaves them as it found them."""
    folder = tmp_path_factory.mktemp("tier")
    with pytest.MonkeyPatch.context() as patch, serving(valkey(), folder) as redis:
        patch.setenv("KVGATE_CACHE", str(folder / "cache"))
        async with tier(folder, redis, 2) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module")
async def two(made: Tier) -> AsyncIterator[tuple[Tier, Gateway, Gateway]]:
    """The tier, its owner, and the other gateway; after it no request came twice and nothing is held."""
    first, second = made.gateways
    owner, _ = await made.settled(first, second)
    yield made, owner, second if owner is first else first
    await made.settled(first, second)
    await made.idle(first, second)
    assert [name for name, times in made.engine.came.items() if times > 1] == []


async def epoch_above(made: Tier, before: int, *gateways: Gateway) -> tuple[Gateway, int]:
    owner, epoch = await made.settled(*gateways)
    assert epoch > before
    return owner, epoch


async def test_state_and_metrics_show_the_tier_and_the_own_fronts(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    states = {gateway: await made.of_tier(gateway) for gateway in (owner, other)}
    assert (states[owner]["role"], states[other]["role"]) == ("owner", "front")
    assert states[owner]["id"] == states[owner]["owner"] == states[other]["owner"] != states[other]["id"]
    assert states[owner]["epoch"] == states[other]["epoch"]
    assert states[owner]["members"] == states[other]["members"]
    assert len(states[owner]["members"]) == owner.workers + other.workers
    counts = {owner: 7, other: 3}
    done = 'kvgate_requests_total{model="fake",outcome="completed"}'
    before = {gateway: (await made.metrics(gateway)).get(done, 0) for gateway in counts}
    for gateway, count in counts.items():
        for _ in range(count):  # a connection each: the fronts of a gateway take turns
            (
                await made.client.post(gateway.url + CHAT, json=body(), headers={"connection": "close"})
            ).raise_for_status()
    for gateway, count in counts.items():
        shown = await made.metrics(gateway)
        assert shown[done] - before[gateway] == count
        role = "owner" if gateway is owner else "front"
        for name in ("alone", "owner", "front"):
            assert shown[f'kvgate_tier_role{{role="{name}"}}'] == (name == role)
        assert shown["kvgate_tier_epoch"] == states[gateway]["epoch"]
        assert shown["kvgate_tier_members"] == 2
        assert shown["kvgate_tier_redis_up"] == 1
        assert shown["kvgate_tier_share"] == (1 if gateway is owner else 0)
        assert ("kvgate_tier_lease_seconds" in shown) is (gateway is owner)


async def test_an_owner_process_that_is_killed_costs_nobody_an_answer(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    before = (await made.of_tier(owner))["epoch"]
    made.engine.most = 0
    async with made.load(owner, other) as load:
        await load.more(5)
        usual = load.longest()
        os.kill(owner.candidate, signal.SIGKILL)
        await load.more(10)
        after, _ = await epoch_above(made, before, owner, other)
        await load.more(10)
    load.report("owner process killed")
    assert load.lost == []
    assert load.longest() <= usual + MORE
    assert after is other, "on another machine an owner is followed"
    assert made.engine.most <= PLACES


async def test_a_gateway_that_is_killed_takes_its_own_connections_alone(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    before = (await made.of_tier(owner))["epoch"]
    async with made.load(owner, other) as load:
        await load.more(5)
        usual = load.longest()
        pids = owner.kill()
        await load.more(10, [other.url])
        assert (await epoch_above(made, before, other))[0] is other
        owner.start()
        await made.settled(owner, other)
        await load.more(5)
    load.report("gateway killed")
    assert [lost for lost in load.lost if lost.gateway is not owner] == []
    assert load.lost
    assert load.longest(other.url) <= usual + MORE
    assert not [pid for pid in pids if is_alive(pid)]


async def test_an_owner_that_was_stopped_decides_nothing_when_it_goes_on(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    before = (await made.of_tier(owner))["epoch"]
    made.engine.most = 0
    async with made.load(owner, other, clients=8) as load:  # more than the engine has places for
        with stopped(owner.candidate):
            await asyncio.sleep(STOPPED)
            answered = load.answered.copy()
        await load.more(20)
        assert (await epoch_above(made, before, owner, other))[0] is other
        await load.more(5)
    load.report("owner stopped")
    assert sum(answered.values()) > 0
    assert load.lost == []
    assert made.engine.most <= PLACES


async def test_a_front_that_was_stopped_obeys_nothing_that_is_old(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    made.engine.most = 0
    async with made.load(owner, other, clients=8) as load:
        (front,) = other.fronts if other.workers == 1 else other.fronts[:1]
        with stopped(front):
            await asyncio.sleep(STOPPED)
        await load.more(20)
        await made.settled(owner, other)
    load.report("front stopped")
    assert load.lost == []
    assert made.engine.most <= PLACES


@pytest.mark.parametrize("seconds", [10.0])
async def test_redis_that_says_nothing_costs_nobody_an_answer(
    two: tuple[Tier, Gateway, Gateway], seconds: float
) -> None:
    made, owner, other = two
    before = await made.of_tier(owner)
    async with made.load(owner, other) as load:
        made.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        assert (await made.of_tier(owner))["standing"] == "cut off"
        made.redis.signal(signal.SIGCONT)
        await made.settled(owner, other)
        await load.more(5)
    load.report("Redis stopped")
    assert load.lost == []
    assert (await made.of_tier(owner))["epoch"] == before["epoch"]


@pytest.mark.parametrize("how", ["restarted empty", "FLUSHALL"])
async def test_redis_that_forgets_costs_nobody_an_answer(two: tuple[Tier, Gateway, Gateway], how: str) -> None:
    made, owner, other = two
    before = (await made.of_tier(owner))["epoch"]
    async with made.load(owner, other) as load:
        if how == "FLUSHALL":
            made.redis.client().flushall()
        else:
            await asyncio.to_thread(made.redis.kill)
            await load.more(10)
            await asyncio.to_thread(made.redis.start)
        await load.more(5)

        async def anew() -> bool:
            states = [await made.of_tier(gateway) for gateway in (owner, other)]
            return all(state.get("epoch", 0) > before for state in states)

        await until(anew)
        assert (await made.settled(owner, other))[0] is owner
        await load.more(5)
    load.report(f"Redis {how}")
    assert load.lost == []


async def test_a_failover_by_sentinel_costs_nobody_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path / "cache"))
    with watched_by_sentinel(valkey(), tmp_path) as servers:
        async with tier(tmp_path, servers.master, 2, servers.url) as made:
            owner, epoch = await made.settled(*made.gateways)
            async with made.load(*made.gateways) as load:
                made.engine.most = 0
                await asyncio.to_thread(made.redis.kill)
                had = servers.replica.client().hgetall(KEPT_AT)

                async def over() -> bool:
                    return servers.replica.client().hgetall(KEPT_AT) != had

                await until(over, 30)
                assert await made.settled(*made.gateways) == (owner, epoch)
                await load.more(5)
            load.report("failover by Sentinel")
            assert load.lost == []
            assert made.engine.most <= PLACES
            assert all(times == 1 for times in made.engine.came.values())


async def test_without_redis_and_owner_each_decides_for_itself(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    third = made.gateway()
    third.start()
    await made.settled(owner, other, third)
    left = other, third

    async def alone() -> bool:
        states = [await made.of_tier(gateway) for gateway in left]
        return all((state.get("role"), state.get("share")) == ("alone", FALLBACK) for state in states)

    async with made.load(owner, *left, clients=2) as load:
        await asyncio.to_thread(made.redis.kill)
        owner.kill()
        await until(alone)
        await load.more(10, [gateway.url for gateway in left])
        await asyncio.to_thread(made.redis.start)
        await made.settled(*left)
        owner.start()
        await made.settled(owner, *left)
        await load.more(5)
    load.report("Redis and owner gone")
    assert [lost for lost in load.lost if lost.gateway is not owner] == []
    await third.stop()
    made.gateways.remove(third)


@pytest.mark.network
async def test_gateways_restarted_one_after_the_other_behind_nginx_lose_nothing(
    two: tuple[Tier, Gateway, Gateway],
) -> None:
    """nginx is told nothing, and many short requests meet each moment of a gateway's end and start."""
    made, owner, other = two
    folder = made.folder / "in-front"
    folder.mkdir()
    async with (
        nginx(find_nginx(), folder, [owner.port, other.port]) as url,
        Load([(url, None)], 8, 2, kept=False) as load,
        Load([(url, None)], 4, 150, kept=False) as long,
    ):
        for gateway in (owner, other):
            await gateway.stop()
            await load.more(20)
            gateway.start()
            await made.settled(owner, other)
            await load.more(20)
        await long.more(4)
    load.report("rolling restart, short answers")
    long.report("rolling restart, long answers")
    assert load.lost == long.lost == []


async def test_a_gateway_without_the_engines_key_sends_nothing_there_and_says_why(
    two: tuple[Tier, Gateway, Gateway],
) -> None:
    made, owner, other = two
    keyless = made.gateway(engine_key=None)
    keyless.start()

    async def said() -> bool:
        lines = keyless.logged("an endpoint needs a key that this gateway does not have: it sends nothing there")
        told = any(f"http://{line['endpoint']}" == made.engine.url for line in lines)
        return told and bool(keyless.logged("listening"))

    await until(said)
    own, before = {"authorization": "Bearer of-the-client"}, made.engine.keys.total()
    with pytest.raises(httpx.ReadTimeout):
        await made.client.post(keyless.url + CHAT, json=body(), headers=own, timeout=1)
    assert made.engine.keys.total() == before
    async with made.load(owner, other) as load:
        await load.more(5)
    assert load.lost == []
    assert made.engine.keys.keys() == {f"Bearer {KEY}"}
    await keyless.stop()
    made.gateways.remove(keyless)


async def test_who_does_not_belong_here_gets_nothing_and_is_told_why(two: tuple[Tier, Gateway, Gateway]) -> None:
    made, owner, other = two
    host, _, port = owner.advertised.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /kvgate/state HTTP/1.1\r\nhost: x\r\n\r\n" + bytes(1000))
    assert await reader.read() == b""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    assert owner.logged("not served")

    made.redis.client().execute_command("ACL", "SETUSER", "gate", "on", ">s3cret", "~*", "+@all")
    strange = made.gateway(key=made.key_of("s"))
    denied = made.gateway(redis=made.redis.url.replace("//", "//gate:wr0ng@"))
    taken = made.gateway(at=owner.advertised)
    for gateway in (strange, denied, taken):
        gateway.start()

    async def said() -> bool:
        has = strange.logged("the gateway that decides has another `tier.key_file`")
        asked = denied.logged("Redis of the tier cannot be asked")  # one of another kind may come first
        return bool(has) and any(line["denied"] for line in asked)

    await until(said)
    assert await taken.ended() == 2
    on = owner.advertised.rpartition(":")[2]
    assert f"tier.advertise: cannot listen on port {on}: Address already in use" in taken.log.read_text()
    trouble = denied.logged("Redis of the tier cannot be asked")[-1]
    assert trouble["reason"].startswith("Redis does not let us in")
    assert "wr0ng" not in denied.log.read_text()
    for gateway in (strange, denied):
        assert not gateway.logged("deciding")
    members = {gateway: (await made.of_tier(gateway))["members"] for gateway in (owner, other)}
    assert {len(shown) for shown in members.values()} == {owner.workers + other.workers}
    for gateway in (strange, denied, taken):
        gateway.close()
        made.gateways.remove(gateway)
    assert (await made.settled(owner, other))[0] is owner
