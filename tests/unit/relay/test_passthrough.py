import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.outcomes import Outcome
from gateway.config.settings import ServerSettings, UpstreamSettings
from gateway.relay.asgi import ClientGoneError
from gateway.relay.passthrough import follow

SLOW = 0.02
"""Seconds for each of ten pieces, of which all together may take 0.11."""
STRICT = ServerSettings(body_timeout=0.1, body_min_rate=10**6)


async def followed(*, engine=0.0, client=0.0):
    """The outcome of a relayed request whose engine sends, and whose client takes, no faster than that."""
    left = [b"x" * 1000] * 10

    async def read_some():
        await asyncio.sleep(engine)
        return left.pop() if left else b""

    async def take(message):
        await asyncio.sleep(client)

    async def send(*request):
        return SimpleNamespace(status=200, headers=[], read_some=read_some, close=lambda: None)

    endpoint = SimpleNamespace(id="a", base_url="http://a", api_key=None)
    plane = SimpleNamespace(
        directory=SimpleNamespace(made_response=lambda response: endpoint),
        settings=SimpleNamespace(server=STRICT, upstream=UpstreamSettings()),
        keeps_credentials=False,
        upstream=SimpleNamespace(send=send),
    )
    exchange = SimpleNamespace(
        send=take, sent=lambda: None, identifier=b"x", endpoint=None, clock=asyncio.get_running_loop().time
    )
    path = "/v1/responses/r"
    scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "method": "GET", "headers": []}
    return await follow(plane, scope, exchange, b"")


async def test_a_client_that_takes_its_answer_too_slowly_does_not_keep_its_place():
    with pytest.raises(ClientGoneError):
        await followed(client=SLOW)


@pytest.mark.parametrize("engine", [0.0, SLOW])
async def test_an_answer_comes_as_fast_as_its_engine_gives_it(engine):
    assert await followed(engine=engine) is Outcome.COMPLETED
