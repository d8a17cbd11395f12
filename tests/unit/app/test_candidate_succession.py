"""What a candidate does when one reign follows another, or none can begin."""

import asyncio
import contextlib
import socket

import pytest

from gateway.app import candidate
from gateway.app.candidate import Candidate
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.tier.epoch import Epoch
from tests.fakes.redis_lease import FakeRedisLease
from tests.ports import free_port
from tests.until import until

KEPT = FakeRedisLease()


class Redis:
    """As a candidate asks it."""

    def __init__(self, _address, me, entry, _timeout):
        self._me, self._entry = me, entry.split()

    async def ask(self, claim):
        return KEPT.ask(self._me, *self._entry, claim)

    async def leave(self):
        KEPT.leave(self._me)

    async def close(self):
        await asyncio.sleep(0.05)


class Reign:
    """As a candidate begins and ends it; `wrong` is why it cannot begin."""

    wrong: Exception | None = None
    ended = 0
    reading = 0
    """How many wait for their gauges."""

    def __init__(self, *_, **__):
        if Reign.wrong is not None:
            raise Reign.wrong
        self.hall = self
        self.own_fronts = 0
        self.begun = False

    def begin(self):
        self.begun = True

    def restrict(self, share):
        pass

    async def gauged(self):
        Reign.reading += 1
        try:
            await asyncio.Event().wait()  # an endpoint that never answers
        finally:
            Reign.reading -= 1

    def leave(self):
        pass

    async def end(self):
        await asyncio.sleep(0.2)
        Reign.ended += 1


@contextlib.asynccontextmanager
async def standing(tmp_path):
    key = tmp_path / "key"
    key.write_text("k" * 40)
    key.chmod(0o600)
    tier = {"redis": "redis://nobody", "advertise": f"127.0.0.1:{free_port()}", "key_file": str(key)}
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "owner"))
        there = Candidate(Settings.model_validate({"tier": tier}), listening)
        await there.start()
        try:
            yield there
        finally:
            await there.stop()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(candidate, "RedisLease", Redis)
    monkeypatch.setattr(candidate, "Reign", Reign)
    monkeypatch.setattr("gateway.runtime.background.FIRST_PAUSE", 0.01)
    monkeypatch.setattr(Reign, "ended", 0)
    monkeypatch.setattr(Reign, "reading", 0)
    KEPT.forget()


async def test_a_reign_that_cannot_begin_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Reign, "wrong", ConfigurationError("the disk is full"))
    async with standing(tmp_path) as there:
        await until(lambda: KEPT.holder not in {"", "-"})
        await asyncio.sleep(0.1)
        assert there._reign is None
        monkeypatch.setattr(Reign, "wrong", None)
        await until(lambda: there._reign is not None)


async def test_a_reign_that_ends_as_the_process_does_is_ended_in_full(tmp_path):
    async with standing(tmp_path) as there:
        await until(lambda: there._reign is not None)
    assert Reign.ended == 1


async def test_gauges_are_not_read_for_a_reign_that_is_over(tmp_path):
    async with standing(tmp_path) as there:
        await until(lambda: Reign.reading == 1)
        there._campaign.heard(Epoch(9, "z"))
        await until(lambda: Reign.ended == 1 and there._epoch is not None)
        await until(lambda: Reign.reading == 1)  # those of the next one


async def test_a_taken_port_is_said_in_short(tmp_path):
    async with standing(tmp_path) as there:
        port = int(there.settings.tier.advertise.rpartition(":")[2])
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "another"))
            second = Candidate(there.settings, listening)
            with pytest.raises(ConfigurationError) as refused:
                await second.start()
            await second.stop()
    assert str(refused.value) == f"tier.advertise: cannot listen on port {port}: Address already in use"
