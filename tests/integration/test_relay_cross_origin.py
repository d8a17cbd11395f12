"""Web pages of other sites, in a browser."""

import json

import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import CHAT, body, gateway, http, raw, until

PAGE = {"origin": "https://chat.example.com"}
ANY = {"allowed_origins": ["*"]}
ASKING_FIRST = PAGE | {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def test_a_page_of_a_permitted_origin_is_answered_and_sees_refusals_too():
    keys = [{"name": "page", "key": "key"}]
    server = {"allowed_origins": [PAGE["origin"]]}
    async with FakeVllm() as fake, gateway(fake, server=server, auth={"keys": keys}, ready=False) as kvgate:

        async def ready():
            return (await kvgate.client.get("/readyz")).is_success

        await until(ready)
        asked = await kvgate.client.options(CHAT, headers=ASKING_FIRST)
        assert asked.is_success
        assert asked.headers["access-control-allow-origin"] == PAGE["origin"]
        assert asked.headers["access-control-allow-methods"] == "POST"
        assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
        keyed = PAGE | {"authorization": "Bearer key"}
        answers = [
            await kvgate.client.post(CHAT, json=body(stream=streamed), headers=headers)
            for streamed in (False, True)
            for headers in (keyed, PAGE)
        ]
        answers.append(await kvgate.client.get("/v1/models", headers=keyed))
        assert [answer.status_code for answer in answers] == [200, 401, 200, 401, 200]
        for answer in answers:
            assert answer.headers.get_list("access-control-allow-origin") == [PAGE["origin"]]
        assert answers[2].text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("origins", [[], ["https://other.example.com"]])
async def test_a_page_of_another_origin_is_not_let_in(origins):
    async with FakeVllm() as fake, gateway(fake, server={"allowed_origins": origins}) as kvgate:
        asked = await kvgate.client.options(CHAT, headers=ASKING_FIRST)
        assert asked.status_code == 405
        assert "access-control-allow-origin" not in asked.headers


async def test_no_page_of_another_site_is_let_in_to_the_admin_routes():
    async with FakeVllm() as fake, gateway(fake, server=ANY) as kvgate:
        for path in ("/kvgate/state", "/metrics", "/kvgate/explain", "/kvgate/endpoints/a/drain"):
            asked = await kvgate.client.options(path, headers=ASKING_FIRST)
            seen = await kvgate.client.get(path, headers=PAGE)
            assert "access-control-allow-origin" not in {**asked.headers, **seen.headers}


async def test_a_page_that_leaves_takes_its_request_with_it():
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as fake, gateway(fake, server=ANY) as kvgate:
        asked = json.dumps(body(stream=True, tokens=1500, ignore_eos=True)).encode()
        reader, writer = await raw(kvgate.port, http(CHAT, asked, f"origin: {PAGE['origin']}"))
        while b" 3" not in await reader.readuntil(b"\n\n"):
            pass
        writer.close()
        await until(lambda: fake.scheduler.unfinished == 0)
        assert await kvgate.outcomes() == {"client_closed": 1}
        await kvgate.until_idle()
