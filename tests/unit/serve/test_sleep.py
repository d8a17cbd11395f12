import pytest

from gateway.serve.sleep import fall_asleep, wake
from tests.fakes.vllm.server import FakeSettings, FakeVllm


async def test_an_engine_sleeps_and_wakes():
    async with FakeVllm() as fake:
        assert await fall_asleep(fake.url)
        assert not fake.awake
        assert await wake(fake.url)
        assert fake.awake


@pytest.mark.parametrize("sleep", ["missing", "fails"])
async def test_one_without_the_route_or_that_fails_is_told(sleep):
    async with FakeVllm(FakeSettings(sleep=sleep)) as fake:
        assert not await fall_asleep(fake.url)
        assert not await wake(fake.url)


async def test_one_that_says_it_did_and_did_not_is_told(monkeypatch):
    async with FakeVllm() as fake:
        monkeypatch.setattr(fake, "freeze", lambda *, asleep: None)
        assert not await fall_asleep(fake.url)


async def test_one_that_is_gone_is_told():
    assert not await fall_asleep("http://127.0.0.1:9")
