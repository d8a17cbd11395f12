from types import SimpleNamespace

from gateway.config.settings import ServerSettings
from gateway.relay.asgi import Room
from gateway.relay.clients import Clients
from gateway.relay.explainer import RelayExplainer
from gateway.tokens.count import CountingOverloadedError
from gateway.wire.request import INLINE_BYTES


async def test_all_who_ask_have_one_share_of_counting_whatever_flows_they_name():
    flows = []

    class Counting:
        async def run(self, flow, _size, work, *args):
            flows.append(flow)
            return work(*args)

    class Counter:
        async def count(self, _request, *, flow, max_model_len):
            flows.append(flow)
            raise CountingOverloadedError(max_model_len)

    pool = SimpleNamespace(counter=Counter(), max_model_len=1)
    plane = SimpleNamespace(
        settings=SimpleNamespace(server=ServerSettings()),
        arriving=Room(lambda: 0),
        clients=Clients({}, None),
        counting=Counting(),
        directory=SimpleNamespace(lookup=lambda _model: pool),
    )

    async def receive():
        return {"type": "http.request", "body": b'{"prompt":""}' + b" " * INLINE_BYTES}

    for named in (None, "alice", "bob"):
        answer = await RelayExplainer(plane).explain({"headers": []}, receive, api=None, flow=named)
        assert answer.status == 429
    assert len(flows) == 9
    assert len(set(flows)) == 1
