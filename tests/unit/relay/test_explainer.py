import asyncio
from types import SimpleNamespace

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Capacity, Demand, EndpointId, EndpointUp, RequestId, Verdict
from gateway.admission.limits.limit import Exceeded, Limit, Limits
from gateway.admission.limits.tenants import Tenants
from gateway.admission.policy import Policy
from gateway.config.settings import ServerSettings
from gateway.relay.client_identity import Client, Clients
from gateway.relay.explainer import RelayExplainer
from gateway.relay.payload import Room
from gateway.runtime.turnstile import Turnstile
from gateway.tokens.count import CountingOverloadedError, PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import INLINE_BYTES, Api
from tests.fakes.paired import paired


class Asked:
    """An explainer of a pool with one endpoint that takes one request at a time; notes whose counting it is."""

    def __init__(self, keys=None, limits=None):
        self.flows = []
        self.error = None
        self.endless = False
        self.left = asyncio.Event()
        self.counting_began = asyncio.Event()
        self.admission, self.driver = paired(AdmissionController(Policy()), lambda: 7.0, tenants=Tenants(limits or {}))
        self.driver.handle(EndpointUp(EndpointId("a"), Capacity(max_model_len=100, kv_blocks=100, max_num_seqs=1)))
        pool = SimpleNamespace(
            overriding=frozenset(),
            flow_of=lambda _: None,
            name="m",
            counter=self,
            admission=self.admission,
            max_model_len=100,
            shortest_for=lambda _: 100,
            least_length=lambda prompt, limit: prompt + limit,
            endpoints={"a": None},
            takes=lambda *_: True,
            default_max_tokens=lambda _: None,
            ignored=frozenset(),
            ends_completions=True,
            caseless=False,
        )
        pools = {None: pool, "m": pool, "alias": pool}
        plane = SimpleNamespace(
            settings=SimpleNamespace(server=ServerSettings()),
            bodies=Room(lambda: 0),
            clients=Clients(keys or {}, None),
            counting=self,
            hash_key=bytes(32),
            new_request=lambda: RequestId(1),
            turnstile=Turnstile(),
            directory=SimpleNamespace(lookup=pools.get, undiscovered=lambda _model: False),
        )
        self.explainer = RelayExplainer(plane)

    async def run(self, flow, _size, work, *args):
        self.flows.append(flow)
        return work(*args)

    async def count(self, request, *, flow, max_model_len):
        self.flows.append(flow)
        if self.endless:
            self.counting_began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.flows.append("ended")
                raise
        if self.error is not None:
            raise self.error
        return PromptCount((3,), Source.LOCAL, Kind(request.api))

    async def explain(self, body, *headers, api=None, flow=None):
        sent = [{"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body}]

        async def receive():
            if not sent:
                await self.left.wait()
                return {"type": "http.disconnect"}
            return sent.pop()

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


ALICE = (b"authorization", b"Bearer secret")
ASKS = b'{"messages":[]}'


async def test_who_asks_with_its_key_is_told_what_a_request_with_that_key_would_meet():
    asked = Asked({"secret": Client("alice", models=frozenset({"m"}), max_tokens=7)})
    told = await asked.explain(ASKS, ALICE)
    assert (told.flow, told.max_tokens) == ("alice", 7)
    assert (await asked.explain(ASKS, ALICE, flow="bob")).max_tokens == 97, "who is asked about counts"
    assert (await asked.explain(ASKS, (b"authorization", b"Bearer admin"))).flow == "10.0.0.1"
    for body, status, reason in (
        (b'{"messages":[],"max_tokens":8}', 400, b"invalid_request"),
        (b'{"messages":[],"model":"alias"}', 404, b"model_not_found"),
    ):
        answer = await asked.explain(body, ALICE)
        assert (answer.status, dict(answer.headers)[b"x-kvgate-reason"]) == (status, reason)


async def test_a_limit_that_it_would_be_over_is_named_with_when_it_frees_and_asking_costs_nothing():
    limits = {"alice": Limits(requests_per_minute=2, tokens_per_minute=1000)}
    asked = Asked({"secret": Client("alice")}, limits)
    for number in range(2):
        assert (await asked.explain(ASKS, ALICE)).decision.verdict == "dispatch"
        request = RequestId(10 + number)
        await asked.admission.admit(Arrived(request, Demand((3,), 1), flow="alice"))
        asked.admission.finish(request, Verdict.DONE, 1)
    decision = (await asked.explain(ASKS, ALICE)).decision
    assert (decision.verdict, decision.rule, decision.endpoint) == ("rate_limit_exceeded", "limit", None)
    assert decision.exceeded == Exceeded(Limit.REQUESTS, 2, 1, 30.0)
    assert decision.retry_after == 30.0
    assert (await asked.explain(ASKS)).decision.exceeded is None


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


async def test_who_leaves_takes_the_counting_along():
    asked = Asked()
    asked.endless = True
    answer = asyncio.create_task(asked.explain(b'{"messages":[]}'))
    await asyncio.wait_for(asked.counting_began.wait(), 60)
    asked.left.set()
    assert (await asyncio.wait_for(answer, 60)).status == 400
    assert asked.flows[-1] == "ended"
