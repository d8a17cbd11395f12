"""`/kvgate/explain`: read and counted as any request, asked about, and sent to nobody."""

from dataclasses import replace

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived
from gateway.admission.explanation import Candidate, Explanation
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, body, gateway, until

EXPLAIN = "/kvgate/explain"
API_OF = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}


@pytest.fixture
def asked(monkeypatch):
    """What the core is asked, whatever it would say."""
    arrivals = []

    def explain(self, arrival, now):
        arrivals.append(arrival)
        candidate = Candidate("e", True, "fits", None, None, 0.1, 0.2, 0.3, 0)
        return Explanation("dispatch", "fits", None, "e", 2, 1, 5, 0.0, 0.1, arrival.ttft_target, None, (candidate,))

    monkeypatch.setattr(AdmissionController, "explain", explain, raising=False)
    return arrivals


@pytest.fixture
def told(monkeypatch):
    """What the core is told of real requests."""
    arrivals = []
    handle = AdmissionController.handle

    def listen(self, event, now):
        if isinstance(event, Arrived):
            arrivals.append(event)
        return handle(self, event, now)

    monkeypatch.setattr(AdmissionController, "handle", listen)
    return arrivals


async def test_a_request_is_asked_about_exactly_as_it_would_be_made(asked, told):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in APIS:
            request = body(path, priority=2, stream=True, tools=[{"type": "function"}])
            headers = {"x-kvgate-ttft-ms": "1500"}
            explained = await kvgate.client.post(f"{EXPLAIN}?api={API_OF[path]}", json=request, headers=headers)
            assert explained.status_code == 200, explained.text
            sent = await kvgate.client.post(path, json=request, headers=headers)
            assert sent.status_code == 200
            question, answer = asked.pop(), explained.json()
            real = told.pop()
            assert replace(question, request=real.request) == real
            assert (answer["model"], answer["api"], answer["band"]) == ("fake", API_OF[path], 2)
            assert answer["flow"] == "127.0.0.1"
            assert answer["counted"] in {"engine", "estimate"}
            assert str(answer["prompt_tokens"]) == sent.headers["x-kvgate-prompt-tokens"]
            assert answer["decision"]["ttft_target"] == 1.5
            assert answer["decision"]["candidates"][0]["rule"] == "fits"


async def test_nothing_is_sent_but_to_count(asked):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in APIS:
            await kvgate.client.post(EXPLAIN, json=body(path), params={"api": API_OF[path]})
        assert {request.path for request in fake.seen} <= {"/tokenize", "/v1/messages/count_tokens"}
        assert await kvgate.outcomes() == {}
        assert len(asked) == len(APIS)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_the_body_tells_whose_request_it_is(asked, path):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        assert (await kvgate.client.post(EXPLAIN, json=body(path))).json()["api"] == API_OF[path]


async def test_what_would_be_refused_is_refused_here_in_the_same_words(asked):
    async with FakeVllm(FakeSettings(max_model_len=50)) as fake, gateway(fake) as kvgate:
        for fields, headers in (
            ({"prompt": "w " * 90}, {}),
            ({"max_tokens": 0}, {}),
            ({"model": "other"}, {}),
            ({"chat_template": "x"}, {}),
            ({}, {"x-kvgate-ttft-ms": "soon"}),
        ):
            request = body(COMPLETIONS, **fields)
            explained = await kvgate.client.post(EXPLAIN, json=request, headers=headers)
            sent = await kvgate.client.post(COMPLETIONS, json=request, headers=headers)
            assert sent.status_code >= 400
            assert (explained.status_code, explained.json()) == (sent.status_code, sent.json())
            assert explained.headers["x-kvgate-reason"] == sent.headers["x-kvgate-reason"]
        assert (await kvgate.client.post(EXPLAIN, content=b"[")).status_code == 400
        assert asked == []


async def test_a_body_that_is_too_large_is_refused(asked):
    async with FakeVllm() as fake, gateway(fake, server={"max_body_bytes": 100}) as kvgate:
        answer = await kvgate.client.post(EXPLAIN, content=b"x" * 101)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_without_an_endpoint_to_count_the_answer_comes_at_once(asked):
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await kvgate.client.post(f"/kvgate/endpoints/{fake.url.removeprefix('http://')}/drain")
        answer = await kvgate.client.post(EXPLAIN, json=body())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_endpoint")


async def test_it_needs_the_admin_key_and_can_be_asked_for_any_client(asked):
    keys = [{"name": "alice", "key": "a", "priority": 4}]
    async with FakeVllm() as fake, gateway(fake, auth={"keys": keys, "admin_key": "x"}, ready=False) as kvgate:

        async def ready():
            return (await kvgate.client.get("/readyz")).status_code == 200

        await until(ready)
        for key, status in (("a", 401), ("x", 200)):
            headers = {"authorization": f"Bearer {key}"}
            answer = await kvgate.client.post(f"{EXPLAIN}?flow=alice", json=body(), headers=headers)
            assert answer.status_code == status
        assert (answer.json()["flow"], answer.json()["band"]) == ("alice", 4)
