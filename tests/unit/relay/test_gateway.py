import asyncio
from types import SimpleNamespace

from gateway.admission.outcomes import Outcome
from gateway.relay.exchange import RefusedError
from gateway.relay.gateway import Gateway
from gateway.relay.routes import find


async def test_what_was_refused_is_not_kept_for_a_client_that_does_not_hear_of_it(monkeypatch):
    async def generate(*request):
        raise RefusedError(Outcome.INVALID_REQUEST, "no")

    async def refuse(*answer, **more):
        await asyncio.Event().wait()

    monkeypatch.setattr("gateway.relay.gateway.generate", generate)
    plane = SimpleNamespace(settings=SimpleNamespace(server=SimpleNamespace(body_timeout=0.05)))
    route, exchange = find("POST", "/v1/completions"), SimpleNamespace(refuse=refuse)
    acting = Gateway(plane, None, None)._act(route, {}, exchange, None, b"a large body")
    assert await asyncio.wait_for(acting, 5) is Outcome.CLIENT_CLOSED
