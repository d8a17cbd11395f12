"""Another model answers what one cannot, as a client meets it: two fake engines, and a third one elsewhere."""

import asyncio
import contextlib

import httpx
import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.fakes.vllm.faults import Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, RESPONSES, body, gateway, until

pytestmark = pytest.mark.slow

ALLOW = {"x-kvgate-fallback": "allow"}
SLOW = {"step_seconds": 0.02, "output_tokens": 1000}
SMALL = FakeSettings(model="small", max_num_seqs=1, max_model_len=1000, **SLOW)
BIG = FakeSettings(model="big", max_model_len=8000, num_blocks=300)


def models(small, big, *fallbacks):
    nobody = {"tokenizer": "/nonexistent"}
    return [
        {"name": "small", "endpoints": [{"url": small.url, "max_num_seqs": 1}], "fallbacks": fallbacks, **nobody},
        {"name": "big", "endpoints": [{"url": big.url}], **nobody},
    ]


@contextlib.asynccontextmanager
async def serving(*fallbacks, small=SMALL, big=BIG, **sections):
    sections.setdefault("admission", {"queue": {"max_requests": 0}})
    async with (
        FakeVllm(small) as one,
        FakeVllm(big) as other,
        gateway(one, other, models=models(one, other, *(fallbacks or ("big",))), **sections) as running,
    ):
        yield running, one, other


async def post(running, path=CHAT, *, allow=True, **fields):
    asked = body(path, **{"model": "small", **fields})
    return await running.client.post(path, json=asked, headers=ALLOW if allow else {})


@contextlib.asynccontextmanager
async def full(running, small):
    """While the only place of the small model is taken."""
    held = asyncio.create_task(post(running, allow=False, tokens=900))
    await until(lambda: len(small.scheduler.running) == 1)
    try:
        yield
    finally:
        held.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await held


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize("stream", [False, True])
async def test_in_each_api_the_other_model_answers(path, stream):
    async with serving() as (running, small, big):
        async with full(running, small):
            assert (await post(running, path, allow=False)).status_code == 429
            answer = await post(running, path, stream=stream)
            assert answer.status_code == 200
            assert answer.headers["x-kvgate-fallback"] == "big"
            assert '"big"' in answer.text
            assert [request.path for request in big.seen if request.path == path] == [path]
        await running.until_idle()
        text = (await running.client.get("/metrics")).text
        assert 'kvgate_fallbacks_total{model="small",outcome="completed",reason="queue_full",to="big"} 1.0' in text


async def test_openais_client_gets_a_longer_answer_than_its_model_can_give():
    import openai

    async with serving() as (running, _, _):
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key="x", max_retries=0)
        said = [{"role": "user", "content": "w " * 2000}]
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(model="small", messages=said, max_tokens=5)
        assert raised.value.code == "context_length_exceeded"
        answer = await client.chat.completions.create(
            model="small", messages=said, max_tokens=5, extra_headers={"x-kvgate-fallback": "allow"}
        )
        assert answer.model == "big"
        await client.close()


async def test_an_engine_that_dies_is_no_end_for_those_who_let_another_answer():
    async with serving() as (running, small, _):
        await small.close()

        async def noticed():
            return any(not endpoint["healthy"] for endpoint in (await running.state())["endpoints"])

        await until(noticed)
        assert (await post(running)).headers["x-kvgate-fallback"] == "big"


async def test_a_server_elsewhere_gets_its_own_key_and_the_clients_stays_here(tmp_path):
    key = tmp_path / "key"
    key.write_text("theirs\n")
    async with FakeVllm(FakeSettings(model="remote")) as elsewhere:
        fallback = {"url": f"{elsewhere.url}/v1", "model": "remote", "api_key_file": str(key)}
        keys = [{"name": "n", "key": "mine", "limits": {"concurrent": 2}}]
        auth = {"keys": keys, "admin_key": "a"}
        async with serving(fallback, auth=auth, ready=False) as (running, small, _):
            running.client.headers["authorization"] = "Bearer mine"

            async def ready():
                return (await post(running, allow=False, tokens=1)).status_code == 200

            await until(ready)
            async with full(running, small):
                answer = await post(running, stream=True)
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-kvgate-fallback"] == elsewhere.url.removeprefix("http://")
                assert answer.text.rstrip().endswith("[DONE]")
                key.write_text("another")
                await running.application.change(running.application.settings)
                elsewhere.faults.add(Fault(FaultKind.STATUS, status=401))
                refused = await post(running)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
                keys = [dict(request.headers)["authorization"] for request in elsewhere.seen]
                assert keys == ["Bearer theirs", "Bearer another"], "its file is read again"
                assert "mine" not in str([request.headers for request in elsewhere.seen])


async def test_a_mix_of_clients_is_answered_once_each_and_leaves_nothing_reserved():
    queue = {"max_requests": 4, "ttl": 1.0}
    async with serving(admission={"queue": queue, "ttft_target": 1}) as (running, _, _):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(post(running, allow=number % 3 > 0, tokens=5 + number, stream=number % 2 == 0))
                for number in range(40)
            ]
            await asyncio.sleep(0.1)
            left = tasks[::7]
            for task in left:
                task.cancel()
        answers = [task.result() for task in tasks if task not in left]
        assert {answer.status_code for answer in answers} <= {200, 429}
        allowed = [answer for answer in answers if answer.request.headers.get("x-kvgate-fallback")]
        assert all(answer.status_code == 200 for answer in allowed)
        await running.until_idle()
        assert (await running.outcomes())["completed"] >= sum(answer.status_code == 200 for answer in answers)


async def test_fallbacks_come_and_go_while_it_serves():
    async with serving() as (running, small, _):
        settings = running.application.settings
        without = [model.model_copy(update={"fallbacks": ()}) for model in settings.models]
        async with full(running, small):
            assert (await post(running)).status_code == 200
            change = await running.application.change(settings.model_copy(update={"models": tuple(without)}))
            assert (change.live, change.later) == (("models[].fallbacks",), {})
            assert (await post(running)).status_code == 429
            await running.application.change(settings)
            assert (await post(running)).status_code == 200


async def test_a_stored_response_is_asked_for_where_it_was_made():
    async with serving() as (running, small, big), full(running, small):
        made: httpx.Response = await post(running, RESPONSES, store=True)
        assert made.headers["x-kvgate-fallback"] == "big"
        found = await running.client.get(f"/v1/responses/{made.json()['id']}")
        assert found.headers.get("x-kvgate-fallback") is None
        assert any(request.path.startswith("/v1/responses/") for request in big.seen)
