"""What needs no server; the rest is in `tests/integration/test_tier_election.py`."""

import asyncio
import contextlib
import time

import pytest

from gateway.config.redis_url import redis_address
from gateway.tier.election import Claim
from gateway.tier.redis_lease import RedisLease, RedisLeaseError
from tests.ports import free_port

CLAIM = Claim(1, 0.0, 0, 0, "")


async def refused(url, timeout=0.2):
    lease = RedisLease(redis_address(url), "a", "m:1 k", timeout)
    began = time.monotonic()
    with pytest.raises(RedisLeaseError) as error:
        await lease.ask(CLAIM)
    took = time.monotonic() - began
    await lease.close()
    return error.value, took


@pytest.mark.parametrize("url", ["redis://u:hidden@127.0.0.1:{}", "redis+sentinel://u:hidden@127.0.0.1:{}/s"])
async def test_nobody_there_is_an_error_without_a_password(url):
    error, _ = await refused(url.format(free_port()))
    assert not error.denied
    assert str(error)
    assert "hidden" not in str(error)


@contextlib.asynccontextmanager
async def listening(says=b""):
    """The port of who takes connections, says this, and then nothing."""
    writers = []

    def take(_reader, writer):
        writers.append(writer)
        writer.write(says)

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/s", "rediss://127.0.0.1:{}"])
async def test_who_takes_connections_and_says_nothing_is_given_up_in_time(url):
    async with listening() as port:
        error, took = await refused(url.format(port))
    assert "did not answer" in str(error) or "No master found" in str(error)
    assert took < 1.0


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$2\r\n\xff\xfe\r\n", b":many\r\n", b"*1\r\n" * 4000]
)
async def test_who_speaks_something_else_is_an_error(says):
    async with listening(says) as port:
        error, _ = await refused(f"redis://127.0.0.1:{port}", 2.0)
    assert str(error)
