"""Whatever engines and clients do, a request with fallbacks is answered once, and nothing stays reserved."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.events import EndpointId
from gateway.upstream.interface import ConnectFailedError, ConnectionLostError
from tests.fakes.plane import TOKEN, WHOLE, Reply, stream
from tests.unit.relay.test_fallback import ALLOW, SERVER, FallbackSettings, asked, two

ANSWERS = {
    "whole": lambda: Reply(WHOLE),
    "slow": lambda: Reply(3.0, WHOLE),
    "stream": stream,
    "torn": lambda: stream(TOKEN, 1.0),
    "busy": lambda: Reply(b'{"error":{"message":"we are currently busy","code":503}}', status=503),
    "error": lambda: Reply(b"{}", status=500),
    "refused": lambda: Reply(b"{}", status=400),
    "lost": lambda: Reply(ConnectionLostError("lost")),
    "unreached": lambda: ConnectFailedError("no"),
}
REQUESTS = st.tuples(
    st.sampled_from(["m", "big"]),
    st.booleans(),  # streams
    st.sampled_from([4, 500, 5000]),  # output tokens
    st.floats(0, 8),  # seconds until it is sent
    st.none() | st.floats(0, 8),  # seconds until its client leaves
)
CHANGES = st.tuples(st.floats(0, 8), st.sampled_from(["a", "b"]), st.booleans())


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=8),
    answers=st.lists(st.sampled_from(sorted(ANSWERS)), max_size=20),
    changes=st.lists(CHANGES, max_size=4),
    heartbeat=st.sampled_from([None, 0.5]),
)
def test_each_is_answered_once_and_nothing_stays_reserved(requests, answers, changes, heartbeat):
    asyncio.run(_serve(requests, answers, changes, heartbeat))


async def _serve(requests, answers, changes, heartbeat):
    _hurry()
    queue = {"max_requests": 2, "ttl": 2.0, "no_endpoint_ttl": 2.0, "heartbeat": heartbeat}
    keys = [{"name": "n", "key": "k", "limits": {"concurrent": 5}}]
    plane = two(FallbackSettings(model="big"), SERVER, queue=queue, keys=keys)
    planned = iter(answers)

    async def send(base_url, *_request, **_more):
        answer = ANSWERS[next(planned, "whole")]()
        if isinstance(answer, Exception):
            raise answer
        return answer

    plane.send = send

    async def ask(model, streams, tokens, at, leaves):
        await asyncio.sleep(at)
        body = asked(model=model, stream=streams, max_tokens=tokens)
        client = plane.ask(body, authorization="Bearer k", **ALLOW)
        if leaves is not None:
            asyncio.get_running_loop().call_later(leaves, client.leave)
        return await client.ended()

    async def change(at, name, up):
        await asyncio.sleep(at)
        if up:
            plane.up(name, model={"a": "m", "b": "big"}[name], longest={"a": 100, "b": 1000}[name])
        else:
            plane.cores.down(EndpointId(name), "down")

    clients, _ = await asyncio.gather(
        asyncio.gather(*(ask(*one) for one in requests)), asyncio.gather(*(change(*one) for one in changes))
    )
    assert len(plane.lines) == len(requests)
    for client, (*_, leaves) in zip(clients, requests, strict=True):
        starts = [message for message in client.messages if message["type"] == "http.response.start"]
        assert len(starts) == 1 or (leaves is not None and not starts)
    await plane.turns()
    assert plane.in_flight == len(plane.flights) == 0
    assert not any(driver.controller.snapshot(plane.now()).queue.depth for driver in plane.cores.drivers.values())
    assert plane.tenants._accounts["n"].in_flight == {}


def _hurry():
    """Time passes by itself where all wait; as `hurried`, for each example's own loop."""
    loop = asyncio.get_running_loop()
    now, select = loop.time(), loop._selector.select

    def hurry(timeout):
        nonlocal now
        if not (found := select(timeout and 0)):
            now += timeout or 0
        return found

    loop.time = lambda: now
    loop._selector.select = hurry
