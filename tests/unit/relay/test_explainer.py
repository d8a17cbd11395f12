from types import SimpleNamespace

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Capacity, EndpointId, EndpointUp, RequestId
from gateway.admission.policy import Policy
from gateway.config.settings import ServerSettings
from gateway.relay.asgi import Room
from gateway.relay.clients import Client, Clients
from gateway.relay.explainer import RelayExplainer
from gateway.tokens.count import CountingOverloadedError, PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import INLINE_BYTES, Api
from tests.fakes.paired import paired


class Asked:
    """An explainer of a pool with one endpoint that takes one request at a time; notes whose counting it is."""

    def __init__(self, keys=None):
        self.flows = []
        self.error = None
        admission, self.driver = paired(AdmissionController(Policy()), lambda: 7.0)
        self.driver.handle(EndpointUp(EndpointId("a"), Capacity(max_model_len=100, kv_blocks=100, max_num_seqs=1)))
        pool = SimpleNamespace(
            name="m",
            counter=self,
            admission=admission,
            max_model_len=100,
            endpoints={"a": None},
            takes=lambda _: True,
        )
        pools = {None: pool, "m": pool, "alias": pool}
        plane = SimpleNamespace(
            settings=SimpleNamespace(server=ServerSettings()),
            bodies=Room(lambda: 0),
            clients=Clients(keys or {}, None),
            counting=self,
            key=bytes(32),
            new_request=lambda: RequestId(1),
            directory=SimpleNamespace(lookup=pools.get, undiscovered=lambda: False),
        )
        self.explainer = RelayExplainer(plane)

    async def run(self, flow, _size, work, *args):
        self.flows.append(flow)
        return work(*args)

    async def count(self, request, *, flow, max_model_len):
        self.flows.append(flow)
        if self.error is not None:
            raise self.error
        return PromptCount((3,), Source.LOCAL, Kind(request.api))

    async def explain(self, body, *headers, api=None, flow=None):
        async def receive():
            if body is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body}

        scope = {"headers": list(headers), "client": ("10.0.0.1", 5)}
        return await self.explainer.explain(scope, receive, api=api, flow=flow)


async def test_all_who_ask_have_one_share_of_counting_whatever_flows_they_name():
    asked = Asked()
    asked.error = CountingOverloadedError("full")
    for named in (None, "alice", "bob"):
        answer = await asked.explain(b'{"prompt":""}' + b" " * INLINE_BYTES, flow=named)
        assert answer.status == 429
    assert len(asked.flows) == 9
    assert len(set(asked.flows)) == 1


async def test_what_would_become_of_a_request_is_told_and_nothing_becomes_of_it():
    asked = Asked({"secret": Client("alice", 2)})
    body = b'{"model":"alias","messages":[],"max_tokens":9,"n":2}'
    told = await asked.explain(body, (b"x-kvgate-ttft-ms", b"1500"), flow="alice")
    assert (told.model, told.api, told.flow, told.band) == ("m", Api.CHAT, "alice", 2)
    assert (told.counted, told.prompt_tokens, told.max_tokens, told.sequences) == ("local", 3, 9, 2)
    assert (told.decision.verdict, told.decision.endpoint, told.decision.ttft_target) == ("dispatch", "a", 1.5)
    assert asked.driver.controller.snapshot(7.0).endpoints[0].in_flight == 0
    assert (await asked.explain(body)).flow == "10.0.0.1", "who asks for itself"


@pytest.mark.parametrize(
    ("body", "api", "found"),
    [
        (b'{"prompt":"x"}', None, Api.COMPLETIONS),
        (b'{"input":"x"}', None, Api.RESPONSES),
        (b'{"messages":[],"max_tokens":1}', Api.MESSAGES, Api.MESSAGES),
    ],
)
async def test_the_api_is_the_one_named_or_the_one_its_body_tells(body, api, found):
    assert (await Asked().explain(body, api=api)).api is found


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (None, (), 400, b"invalid_request"),
        (b"[]", (), 400, b"invalid_request"),
        (b'{"messages":[],"max_tokens":0}', (), 400, b"invalid_request"),
        (b'{"messages":[]}', ((b"x-kvgate-ttft-ms", b"soon"),), 400, b"invalid_request"),
        (b'{"messages":[],"chat_template":"x"}', (), 400, b"forbidden_field"),
        (b'{"input":"x","background":true}', (), 400, b"forbidden_field"),
        (b'{"messages":[],"model":"other"}', (), 404, b"model_not_found"),
        (b"x" * (ServerSettings().max_body_bytes + 1), (), 413, b"body_too_large"),
    ],
    ids=["left", "no object", "no tokens", "no time", "template", "background", "unknown model", "too large"],
)
async def test_what_would_be_refused_is_answered_so(body, headers, status, reason):
    answer = await Asked().explain(body, *headers)
    assert (answer.status, dict(answer.headers)[b"x-kvgate-reason"]) == (status, reason)
