"""Candidates of a tier before real servers: whatever becomes of these, at most one decides, and soon again one does."""

import asyncio
import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gateway.config.redis_url import redis_address
from gateway.tier.campaign import Campaign
from gateway.tier.election import UNOWNED, Claim, Election, Standing, Terms
from gateway.tier.redis_lease import KEY, RedisLease, RedisLeaseError
from tests.clock import unhindered
from tests.fakes.redis_lease import FakeRedisLease
from tests.integration.redis_servers import faketime, redis, serving, valkey, watched_by_sentinel
from tests.ports import free_port
from tests.until import until

pytestmark = pytest.mark.slow
TERMS = Terms(beat=0.4, timeout=0.6, term=2.0, patience=2.6, grace=3.6)
BOTH = [pytest.param(valkey, id="valkey"), pytest.param(redis, id="redis", marks=pytest.mark.network)]


class Place:
    """A machine of the tier, as far as its candidate goes. Its fronts hear of every epoch of the others."""

    def __init__(self, number: int, url: str, terms: Terms = TERMS) -> None:
        self.address = f"m{number}:1"
        # The later a candidate, the lower its id.
        self.election = Election(
            f"{99 - number}", self.address, "k", members=2, fallback_share=None, now=time.monotonic(), terms=terms
        )
        lease = RedisLease(redis_address(url), self.election.me, f"{self.address} k", terms.timeout)
        self.lease = lease
        self.campaign = Campaign(self.election, lease, lambda _view: None)
        self.campaign.start()

    @property
    def view(self):
        return self.campaign.view

    def decides(self) -> bool:
        return self.campaign.may_decide()

    async def die(self) -> None:
        """End without a word to Redis."""
        await self.campaign._background.stop()
        await self.lease.close()


class Tier:
    """Places, and a look at who decides at every moment."""

    def __init__(self, *places: Place) -> None:
        self.places = list(places)
        self.silent = 0.0
        """The longest time for which nobody decided, since last set to 0."""
        self.both = 0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        since = unhindered()
        while True:
            deciding = [place for place in self.places if place.decides()]
            self.both += len(deciding) > 1
            now = unhindered()
            if deciding:
                since = now
                for place in self.places:  # the owner's connections with the fronts of the others
                    if place not in deciding:
                        place.campaign.followed()
                connected = [place.address for place in self.places]
                deciding[0].election.connected(connected, connected)
            self.silent = max(self.silent, now - since)
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._task.cancel()
        for place in self.places:
            await place.campaign.stop()


@contextlib.asynccontextmanager
async def tier(url: str, count: int = 2):
    first = Place(0, url)
    try:
        await until(first.decides)
        running = Tier(first, *(Place(number, url) for number in range(1, count)))
        await until(lambda: all(place.view.members == count for place in running.places))
    except BaseException:
        await first.campaign.stop()
        raise
    try:
        yield running
        assert running.both == 0
    finally:
        await running.close()


@pytest.fixture
def server(request, tmp_path):
    """A Valkey, or what a test is to be run with."""
    with serving(getattr(request, "param", valkey)(), tmp_path) as running:
        yield running


with_both = pytest.mark.parametrize("server", BOTH, indirect=True)


@with_both
async def test_one_decides_and_the_other_knows_where_it_is(server):
    async with tier(server.url) as running:
        first, second = running.places
        assert first.view.standing is Standing.OWNING
        assert (second.view.decides, second.view.address) == (False, first.address)
        assert second.view.epoch == first.view.epoch
        assert (first.view.share, second.view.share) == (1.0, 0.0)
        before = first.view.epoch
        await first.campaign.stop()
        running.places.remove(first)
        stopped = unhindered()
        await until(second.decides)
        assert unhindered() - stopped < TERMS.patience, "a lease that was given back is not waited for"
        assert second.view.epoch > before
    assert server.client().hgetall(KEY)["holder"] == "-"
    assert not [field for field in server.client().hgetall(KEY) if field.startswith("member:")]


async def test_an_owner_that_dies_has_a_successor_once_its_time_is_over(server):
    async with tier(server.url, 3) as running:
        first = running.places.pop(0)
        before, until_then = first.view.epoch, first.view.until
        await first.die()
        died = time.monotonic()
        await until(lambda: any(place.decides() for place in running.places))
        assert time.monotonic() > min(until_then, died + TERMS.term - TERMS.beat)
        await until(lambda: running.places[0].view.epoch == running.places[1].view.epoch)
        assert running.places[0].view.epoch > before
        await until(lambda: all(place.view.redis for place in running.places))


async def test_redis_that_is_away_and_comes_back_empty_changes_nobody(server):
    async with tier(server.url) as running:
        first, second = running.places
        before = first.view.epoch
        server.kill()
        await until(lambda: first.view.standing is Standing.CUT_OFF)
        assert first.view.share == 1.0, "all members are connected"
        await asyncio.sleep(TERMS.patience + TERMS.grace)
        assert (second.view.standing, second.view.redis) == (Standing.STANDING_BY, False)
        running.silent = 0.0
        server.start()
        await until(lambda: first.view.standing is Standing.OWNING)
        assert first.view.epoch > before
        await until(lambda: second.view.epoch == first.view.epoch)
        assert running.silent < TERMS.timeout + TERMS.beat


@with_both
async def test_redis_that_is_stopped_changes_nobody_and_no_epoch(server):
    async with tier(server.url) as running:
        first, second = running.places
        before = first.view.epoch
        running.silent = 0.0
        server.signal(signal.SIGSTOP)
        await until(lambda: first.view.standing is Standing.CUT_OFF)
        await asyncio.sleep(TERMS.patience)
        server.signal(signal.SIGCONT)
        await until(lambda: first.view.standing is Standing.OWNING and second.view.redis)
        await asyncio.sleep(2 * TERMS.beat)
        assert first.view.epoch == second.view.epoch == before
        assert running.silent < 2 * TERMS.timeout + TERMS.beat


@pytest.mark.parametrize("command", ["FLUSHALL", "SCRIPT FLUSH", "CLIENT KILL TYPE normal"])
async def test_a_redis_that_forgets_is_told_again(server, command):
    async with tier(server.url) as running:
        first, second = running.places
        before = first.view.epoch
        running.silent = 0.0
        with contextlib.suppress(ConnectionError):
            server.client().execute_command(*command.split())
        higher = command == "FLUSHALL"
        await until(lambda: (first.view.epoch > before) is higher and second.view.epoch == first.view.epoch)
        await asyncio.sleep(TERMS.patience)
        assert first.view.standing is Standing.OWNING
        assert (first.view.epoch > before) is higher
        assert running.silent < TERMS.term


async def test_the_first_of_all_waits_for_an_owner_that_redis_may_have_forgotten(server):
    began = time.monotonic()
    place = Place(0, server.url)
    await until(place.decides)
    assert time.monotonic() - began >= TERMS.patience
    await place.campaign.stop()


async def test_alone_without_redis_and_owner_and_together_again(server):
    server.kill()
    places = [Place(number, server.url) for number in range(2)]
    await until(lambda: all(place.view.standing is Standing.ALONE for place in places))
    assert [place.view.share for place in places] == [0.5, 0.5]
    epochs = [place.view.epoch for place in places]
    server.start()
    await until(lambda: sorted(place.view.standing for place in places) == [Standing.OWNING, Standing.STANDING_BY])
    await until(lambda: places[0].view.epoch == places[1].view.epoch)
    assert places[0].view.epoch > max(epochs)
    for place in places:
        await place.campaign.stop()


@pytest.mark.parametrize("binary", BOTH)
async def test_a_failover_by_sentinel_keeps_the_owner(binary, tmp_path):
    with watched_by_sentinel(binary(), tmp_path) as servers:
        async with tier(servers.url) as running:
            first, second = running.places
            before = first.view.epoch
            await until(lambda: servers.replica.client().hget(KEY, "holder") == first.election.me)
            running.silent = 0.0
            servers.master.kill()
            await until(servers.followed)
            await until(lambda: first.view.redis and second.view.redis)
            await until(lambda: first.view.standing is Standing.OWNING)
            assert first.view.epoch == second.view.epoch == before
            assert running.silent < 2 * TERMS.timeout + TERMS.beat


@pytest.mark.network
@pytest.mark.parametrize("moved", ["-3600s", "+3600s"])
async def test_nobody_goes_by_the_clock_of_redis(moved, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("+0s")
    environ = {
        "LD_PRELOAD": faketime(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    # Not Debian's redis-server: jemalloc and libfaketime wait for each other for ever.
    with serving(valkey(), tmp_path, environ=environ) as server:
        async with tier(server.url) as running:
            first, second = running.places
            before = first.view.epoch
            real = server.client().time()[0]
            running.silent = 0.0
            clock.write_text(moved)
            await until(lambda: abs(server.client().time()[0] - real) > 3000)
            await asyncio.sleep(2 * TERMS.patience)
            assert first.view.standing is Standing.OWNING
            assert first.view.epoch == second.view.epoch == before
            assert running.silent < TERMS.term


@with_both
async def test_a_right_password_is_enough_and_a_wrong_one_is_said_and_not_repeated(server):
    rights = ["+evalsha", "+eval", "+hget", "+hset", "+hmget", "+hgetall", "+hdel"]
    server.client().execute_command("ACL", "SETUSER", "gate", "on", ">s3:cret", f"~{KEY}", *rights, "+select")
    server.client().execute_command("ACL", "SETUSER", "other", "on", ">s3:cret", "~other", "+@all")
    claim = Claim(1, 0.0, 0, 0, UNOWNED)
    for user, says in (
        ("gate:s3%3Acret", None),
        ("gate:wr0ng", "WRONGPASS|username-password"),
        ("other:s3%3Acret", ""),
    ):
        lease = RedisLease(redis_address(f"redis://{user}@127.0.0.1:{server.port}/0"), "a", "m:1 k", 2.0)
        if says is None:
            assert (await lease.ask(claim)).holder == "a"
        else:
            with pytest.raises(RedisLeaseError) as refused:
                await lease.ask(claim)
            assert refused.value.denied
            assert re.search(says, str(refused.value))
            assert not re.search("cret|wr0ng", str(refused.value))
        await lease.close()


async def test_what_is_not_ours_is_refused(server):
    server.client().set(KEY, "x")
    lease = RedisLease(redis_address(server.url), "a", "m:1 k", 2.0)
    with pytest.raises(RedisLeaseError, match="WRONGTYPE"):
        await lease.ask(Claim(1, 0.0, 0, 0, UNOWNED))
    server.client().delete(KEY)
    server.client().hset(KEY, mapping={"highest": "1", "member:x": "1"})
    with pytest.raises(RedisLeaseError, match="what no kvgate wrote"):
        await lease.ask(Claim(2, 0.0, 0, 0, UNOWNED))
    await lease.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(["openssl", "req", "-x509", *kind, *name, *files], check=True, capture_output=True)
    return folder


@pytest.mark.network
async def test_tls_is_checked(certificate, tmp_path):
    port = free_port()
    files = ["--tls-cert-file", f"{certificate}/cert.pem", "--tls-key-file", f"{certificate}/key.pem"]
    with serving(redis(), tmp_path, "--tls-port", str(port), "--tls-auth-clients", "no", *files):
        good = RedisLease(
            redis_address(f"rediss://localhost:{port}?ssl_ca_certs={certificate}/cert.pem"), "a", "m:1 k", 2.0
        )
        assert (await good.ask(Claim(1, 0.0, 0, 0, UNOWNED))).holder == "a"
        await good.close()
        for wrong in (f"rediss://localhost:{port}", f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}/cert.pem"):
            lease = RedisLease(redis_address(wrong), "a", "m:1 k", 2.0)
            with pytest.raises(RedisLeaseError, match="certificate verify failed"):
                await lease.ask(Claim(2, 0.0, 0, 0, UNOWNED))
            await lease.close()


async def test_a_unix_socket_will_do(tmp_path):
    path = tmp_path / "redis.sock"
    with serving(valkey(), tmp_path, "--unixsocket", str(path)):
        lease = RedisLease(redis_address(f"unix://{path}?db=3"), "a", "m:1 k", 2.0)
        assert (await lease.ask(Claim(1, 0.0, 7, 7, UNOWNED))).epoch == 8
        await lease.close()


@with_both
async def test_the_script_does_what_elections_are_tested_with(server):
    """Every combination of who asks, how late, what it has seen and what it would replace."""
    fake = FakeRedisLease()
    leases = {me: RedisLease(redis_address(server.url), me, f"m{me}:1 k", 2.0) for me in "ab"}
    for number in range(300):
        me = "ab"[number * 7 % 3 % 2]
        beat = number - 20 * (number % 11 == 0)
        seen = max(0, fake.highest + number % 5 - 3) if number % 4 == 0 else 0
        over = ["", UNOWNED, f"{fake.holder} {fake.beat}", "z 1"][number * 5 % 7 % 4]
        forget = tuple(f"{name} {member.beat}" for name, member in fake.members.items()) if number % 13 == 0 else ()
        claim = Claim(max(beat, 0), 0.0, seen, seen + (number % 3 == 0), over, forget)
        assert await leases[me].ask(claim) == fake.ask(me, f"m{me}:1", "k", claim), claim
        if number % 31 == 0:
            await leases[me].leave()
            fake.leave(me)
        if number % 97 == 96:
            server.client().flushall()
            fake.forget()
    for lease in leases.values():
        await lease.close()
