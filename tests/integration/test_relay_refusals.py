"""What is refused, how that is told, and that nobody else notices."""

import asyncio
import itertools
import json
from typing import Any

import pytest

from tests.clock import unhindered
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.relaying import APIS, CHAT, COMPLETIONS, MESSAGES, RESPONSES, body, gateway, http, raw, until
from tests.until import PATIENCE

QUICKLY = 3.0
"""Seconds, on a machine that does much else."""
LIMIT = 2 << 20

MANY = [{"role": "user" if number % 2 == 0 else "assistant", "content": "w"} for number in range(10_000)]
NESTED = b'{"model":"fake","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
DEEP_CONTENT = b'{"model":"fake","messages":[{"role":"user","content":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}"

MALFORMED = {
    "nothing": b"",
    "half a document": b'{"model":"fake","messages":[',
    "a list": b"[1,2]",
    "a number": b"7",
    "nested deeply": NESTED,
    "invalid UTF-8": b'{"model":"fake","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "invalid UTF-8 in a name": b'{"\xff":1}',
    "half a surrogate pair": b'{"model":"fake","messages":[{"role":"user","content":"\\ud800"}]}',
    "a number with 5,000 digits": b'{"model":"fake","max_tokens":' + b"9" * 5000 + b"}",
    "no number": b'{"model":"fake","max_tokens":NaN}',
    "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}

WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model": 5}, "model"),
    ({"stream": "maybe"}, "stream"),
    ({"stream_options": 1}, "stream_options"),
    ({"n": 0}, "n"),
    ({"n": 10**6}, "n"),
    ({"priority": []}, "priority"),
)


def one_error(answer, path, status):
    """The error of an answer, checked to have the shape of its API."""
    assert answer.status_code == status, answer.text[:300]
    found = answer.json()
    if path == MESSAGES:
        assert found["type"] == "error"
        assert found["error"]["message"]
        return found["error"]["type"]
    assert set(found["error"]) == {"message", "type", "param", "code"}
    assert found["error"]["message"]
    return found["error"]["code"]


@pytest.mark.slow
async def test_bad_input_is_answered_clearly_and_a_healthy_stream_keeps_its_pace():
    step = 0.02
    settings, server = FakeSettings(step_seconds=step), {"max_body_bytes": LIMIT}
    async with FakeVllm(settings) as fake, gateway(fake, server=server) as kvgate:
        gaps, bad_input_over = [], asyncio.Event()

        async def healthy():
            arrived = None
            while not bad_input_over.is_set():
                asked = body(tokens=1500, stream=True)
                async with kvgate.client.stream("POST", CHAT, json=asked) as answer:
                    async for _ in answer.aiter_raw():
                        if arrived is not None:
                            gaps.append(unhindered() - arrived)
                        arrived = unhindered()
                        if bad_input_over.is_set():
                            return

        stream = asyncio.create_task(healthy())
        await until(lambda: len(gaps) > 5)
        for path, (what, content) in itertools.product(APIS, MALFORMED.items()):
            started = unhindered()
            answer = await kvgate.client.post(path, content=content)
            assert unhindered() - started < QUICKLY, what
            assert one_error(answer, path, 400).startswith("invalid_request"), what
            assert answer.headers["x-should-retry"] == "false"
            assert len(answer.content) < 1000, what
        for path, (fields, param) in itertools.product(APIS, WRONG):
            answer = await kvgate.post(path, **fields)
            one_error(answer, path, 400)
            assert param in answer.text
        for path in APIS:
            limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
            for value in (-1, 0, "many", 1.5, [], {}, "9" * 5000):
                one_error(await kvgate.post(path, **{limit: value}), path, 400)
            assert one_error(await kvgate.post(path, model="other"), path, 404) in {
                "model_not_found",
                "not_found_error",
            }
            huge = await kvgate.client.post(path, content=b"x" * (LIMIT + 1))
            assert one_error(huge, path, 413) in {"body_too_large", "request_too_large"}
            missing = await kvgate.client.post(path, json={"model": "fake", "max_tokens": 5})
            assert missing.status_code == 400
            forbidden = await kvgate.post(path, kv_transfer_params={"prompt_token_ids": [1]})
            one_error(forbidden, path, 400)
        bad_input_over.set()
        await stream
        assert len(gaps) > 20
        worst = sorted(gaps)[-1 - len(gaps) // 100]
        assert worst < step + 0.25, "other requests' tokens were late"
        assert "internal_error" not in await kvgate.outcomes()
        await kvgate.until_idle()


async def test_ten_thousand_messages_are_an_ordinary_request():
    async with FakeVllm(FakeSettings(max_model_len=16_384, num_blocks=1000)) as fake, gateway(fake) as kvgate:
        started = unhindered()
        answer = await kvgate.post(messages=MANY)
        assert answer.json()["usage"]["prompt_tokens"] == 10_000
        assert unhindered() - started < QUICKLY
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.post(messages=MANY)
        assert one_error(answer, CHAT, 400) == "context_length_exceeded"
        assert not [request for request in fake.seen if request.path == CHAT]


async def test_what_is_too_long_is_refused_with_both_numbers():
    async with FakeVllm(FakeSettings(max_model_len=100)) as fake, gateway(fake) as kvgate:
        answer = await kvgate.post(COMPLETIONS, prompt="w " * 150)
        assert one_error(answer, COMPLETIONS, 400) == "context_length_exceeded"
        assert "100 tokens" in answer.json()["error"]["message"]
        assert "150 tokens" in answer.json()["error"]["message"]
        assert (answer.json()["error"]["param"], answer.headers["x-should-retry"]) == ("prompt", "false")
        absurd = await kvgate.post(COMPLETIONS, tokens=10**30)
        assert one_error(absurd, COMPLETIONS, 400) == "context_length_exceeded"
        assert absurd.json()["error"]["param"] == "max_tokens"
        clamped = await kvgate.post(COMPLETIONS, tokens=99)
        assert clamped.json()["usage"]["completion_tokens"] == 64
        assert not [request for request in fake.seen if len(request.body) > 200], "the engine saw none of them"


async def test_an_output_limit_that_only_a_longer_endpoint_takes_is_served_there():
    async with FakeVllm(FakeSettings(max_model_len=100)) as short, FakeVllm() as long, gateway(short, long) as kvgate:
        for api in APIS:
            answer = await kvgate.post(api, tokens=300)
            assert answer.status_code == 200, answer.text
        assert CHAT not in {request.path for request in short.seen}
        sent = [request.path for request in long.seen]
        assert all(api in sent for api in APIS)


async def test_a_deeply_nested_field_is_an_error_and_no_defect():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        answer = await kvgate.client.post(CHAT, content=DEEP_CONTENT)
        assert answer.status_code in {200, 400}
        assert "internal_error" not in await kvgate.outcomes()


async def test_half_a_body_ends_with_an_error_and_a_closed_connection():
    server = {"body_timeout": 0.3}
    async with FakeVllm() as fake, gateway(fake, server=server) as kvgate:
        request = http(CHAT, json.dumps(body()).encode())
        reader, writer = await raw(kvgate.port, request[:-5])
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"nothing came for 0.3 s" in answer
        assert b"connection: close" in answer.lower()


async def test_a_body_that_trickles_is_given_up():
    server = {"body_timeout": 0.3, "body_min_rate": 1000}
    async with FakeVllm() as fake, gateway(fake, server=server) as kvgate:
        request = http(CHAT, json.dumps(body()).encode() + b" " * 10_000)
        reader, writer = await raw(kvgate.port, request[:-10_000])
        answer = asyncio.create_task(reader.read())
        async with asyncio.timeout(PATIENCE):
            while not answer.done():
                writer.write(b" ")
                await asyncio.sleep(0.02)
        writer.close()
        assert answer.result().startswith(b"HTTP/1.1 400 ")
        assert b"less than 1000 bytes a second" in answer.result()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * (80 << 10) + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\n" + b"".join(b"x-%d: aaaaaaaaaa\r\n" % n for n in range(9000)) + b"\r\n", 431),
        (b"GET /" + b"a" * (80 << 10) + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-endless: " + b"a" * (80 << 10), 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n", 400),
        (b"POST /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-sl", 408),
    ],
)
async def test_a_bad_head_is_answered_and_closed(sent, status):
    server = {"body_timeout": 0.3}
    async with gateway(models=[{"endpoints": [{"url": "http://127.0.0.1:9"}]}], server=server, ready=False) as kvgate:
        reader, writer = await raw(kvgate.port, sent)
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        head, _, payload = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), head
        assert set(json.loads(payload)["error"]) == {"message", "type", "param", "code"}


async def test_large_headers_within_the_limit_pass_however_they_arrive():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        payload = json.dumps(body()).encode()
        request = http(CHAT, payload, "x-large: " + "a" * (30 << 10), "x-larger: " + "b" * (20 << 10))
        reader, writer = await asyncio.open_connection("127.0.0.1", kvgate.port)
        for start in range(0, len(request), 16 << 10):
            writer.write(request[start : start + (16 << 10)])
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_other_paths_and_methods_are_refused_in_openais_shape():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for method, path, status, code in (
            ("GET", CHAT, 405, "method_not_allowed"),
            ("DELETE", "/v1/models", 405, "method_not_allowed"),
            ("POST", "/v1/fine_tuning/jobs", 404, "not_found"),
            ("GET", "/v1/chat/completions/", 404, "not_found"),
            ("GET", "/", 404, "not_found"),
            ("POST", "/sleep", 404, "not_found"),
            ("POST", "/v1/audio/%2e%2e/%2e%2e/sleep", 404, "not_found"),
            ("POST", "/v1/load_lora_adapter", 404, "not_found"),
        ):
            answer = await kvgate.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        assert (await kvgate.client.get(CHAT)).headers["allow"] == "POST"
        assert fake.seen == []
        assert fake.awake


async def test_head_is_answered_as_get_without_its_body():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        for path in ("/livez", "/readyz", "/health", "/version", "/v1/models", "/v1/models/fake", "/tokenizer_info"):
            got, head = [await kvgate.client.request(method, path) for method in ("GET", "HEAD")]
            assert (head.status_code, head.content) == (got.status_code, b""), path
            assert head.headers.get("content-length") == got.headers.get("content-length")
            assert got.content
        assert {seen.method for seen in fake.seen} <= {"GET"}
        for path, status in ((CHAT, 405), ("/nothing", 404)):
            head = await kvgate.client.head(path)
            assert (head.status_code, head.content) == (status, b"")
        for path in ("/v1/models", "/livez"):
            assert (await kvgate.client.options(path)).headers["allow"] == "GET, HEAD"
        assert (await kvgate.client.get("/livez")).status_code == 200


KEYS = {
    "keys": [{"name": "alice", "key": "key-a"}, {"name": "bob", "key": "key-b", "priority": 3}],
    "admin_key": "key-admin",
}


async def test_with_keys_only_those_who_have_one_are_served():
    async with FakeVllm() as fake, gateway(fake, auth=KEYS, ready=False) as kvgate:

        async def ready():
            return (await kvgate.client.get("/readyz")).status_code == 200

        await until(ready)
        for headers in ({}, {"authorization": "Bearer key-x"}, {"authorization": "Basic key-a"}, {"x-api-key": ""}):
            for path in (*APIS, "/tokenize"):
                answer = await kvgate.client.post(path, json=body(path), headers=headers)
                assert one_error(answer, path, 401) in {"invalid_api_key", "authentication_error"}
                assert answer.headers["x-should-retry"] == "false"
            assert (await kvgate.client.get("/v1/models", headers=headers)).status_code == 401
        fake.seen.clear()
        for headers in ({"authorization": "Bearer key-a"}, {"authorization": "bearer key-a"}, {"x-api-key": "key-a"}):
            assert (await kvgate.client.post(CHAT, json=body(), headers=headers)).status_code == 200
        bob = {"authorization": "Bearer key-b"}
        assert (await kvgate.client.post(CHAT, json=body(), headers=bob)).status_code == 200
        assert [request.header("authorization") for request in fake.seen] == [None] * 4, "a key stays here"
        assert [request.header("x-vllm-priority") for request in fake.seen] == [None, None, None, "3"]


async def test_with_keys_the_admin_routes_need_the_admin_key():
    async with FakeVllm() as fake, gateway(fake, auth=KEYS, ready=False) as kvgate:
        for path in ("/metrics", "/kvgate/state"):
            for key, status in ((None, 401), ("key-a", 401), ("key-admin", 200)):
                headers = {"authorization": f"Bearer {key}"} if key else {}
                assert (await kvgate.client.get(path, headers=headers)).status_code == status, (path, key)
        for path in ("/livez", "/version"):
            assert (await kvgate.client.get(path)).status_code == 200
        admin = await kvgate.client.post(CHAT, json=body(), headers={"authorization": "Bearer key-admin"})
        assert admin.status_code == 401, "the admin key is no client's"


async def test_an_admin_port_takes_the_admin_routes_from_the_clients():
    from tests.ports import free_port

    admin_port = free_port()
    server = {"admin_port": admin_port}
    async with FakeVllm() as fake, gateway(fake, server=server, ready=False) as kvgate:
        assert (await kvgate.client.get("/metrics")).status_code == 404
        assert (await kvgate.client.get("/kvgate/state")).status_code == 404
        assert (await kvgate.client.get("/livez")).status_code == 200
        for path in ("/metrics", "/kvgate/state", "/livez"):
            assert (await kvgate.client.get(f"http://127.0.0.1:{admin_port}{path}")).status_code == 200
        assert (await kvgate.client.post(f"http://127.0.0.1:{admin_port}{CHAT}", json=body())).status_code == 404


async def test_a_full_queue_says_when_to_come_back():
    async with FakeVllm(FakeSettings(step_seconds=0.02)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models, admission={"queue": {"max_requests": 1, "ttl": 1.0}}) as kvgate:
            running = asyncio.create_task(kvgate.post(tokens=63))
            await until(lambda: fake.scheduler.running)
            waiting = asyncio.create_task(kvgate.post())

            async def queued():
                return (await kvgate.state())["queues"][0]["depth"] == 1

            await until(queued)
            for path in (CHAT, MESSAGES):
                full = await kvgate.post(path)
                assert one_error(full, path, 429) in {"queue_full", "rate_limit_error"}
                assert 1 <= int(full.headers["retry-after"]) <= 60
                assert 0 < int(full.headers["retry-after-ms"]) <= 60_000
                assert "x-should-retry" not in full.headers
            timed_out = await waiting
            assert one_error(timed_out, CHAT, 429) == "queue_timeout"
            assert int(timed_out.headers["retry-after"]) >= 1
            assert (await running).status_code == 200
            assert await kvgate.outcomes() == {"completed": 1, "queue_full": 2, "queue_timeout": 1}


async def test_observe_lets_through_what_it_would_have_refused():
    admission = {"mode": "observe", "queue": {"max_requests": 1}}
    async with FakeVllm(FakeSettings(step_seconds=0.005, max_model_len=100)) as fake:
        models = [{"endpoints": [{"url": fake.url, "max_num_seqs": 1}], "tokenizer": "/nonexistent"}]
        async with gateway(fake, models=models, admission=admission) as kvgate:
            answers = await asyncio.gather(*(kvgate.post(tokens=30) for _ in range(5)))
            assert [answer.status_code for answer in answers] == [200] * 5
            too_long = await kvgate.post(COMPLETIONS, prompt="w " * 150)
            assert too_long.status_code == 400
            assert "exceeds this limit" in too_long.json()["error"]["message"], "the engine's own refusal"
            metrics = (await kvgate.client.get("/metrics")).text
            would = {
                line.split('decision="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
                for line in metrics.splitlines()
                if line.startswith("kvgate_would_total{") and not line.endswith(" 0.0")
            }
            assert would.keys() == {"queued", "context_length_exceeded"}, metrics
            await kvgate.until_idle()


async def test_a_drained_endpoint_gets_nothing_new_and_finishes_what_it_has():
    def chats(fake):
        return sum(request.path == CHAT for request in fake.seen)

    settings = FakeSettings(step_seconds=0.01)
    async with FakeVllm(settings) as one, FakeVllm(settings) as two, gateway(one, two) as kvgate:
        running = [asyncio.create_task(kvgate.post(tokens=200, stream=number % 2 == 0)) for number in range(4)]
        await until(lambda: len(one.scheduler.running) + len(two.scheduler.running) == 4)
        leaves = max(one, two, key=chats)
        has = chats(leaves)
        drained = (await kvgate.client.post(f"/kvgate/endpoints/127.0.0.1:{leaves.port}/drain")).json()
        assert (drained["state"], drained["healthy"]) == ("draining", False)
        assert (await kvgate.post()).status_code == 200
        assert (await kvgate.post()).status_code == 200
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200] * 4
        assert chats(leaves) == has
        assert (await kvgate.client.post(f"/kvgate/endpoints/127.0.0.1:{leaves.port}/undrain")).status_code == 200

        async def has_more():
            await asyncio.gather(kvgate.post(tokens=20), kvgate.post(tokens=20))
            return chats(leaves) > has

        await until(has_more)
        assert all(endpoint["healthy"] for endpoint in (await kvgate.state())["endpoints"])
        unknown = await kvgate.client.post("/kvgate/endpoints/nobody/drain")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "endpoint_not_found")


async def test_after_a_change_of_model_the_old_one_is_not_there():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await fake.refuse()

        async def down():
            return (await kvgate.state())["endpoints"][0]["state"] == "down"

        await until(down)
        fake.settings = FakeSettings(model="other")
        await fake.listen()

        async def changed():
            return [card["id"] for card in (await kvgate.client.get("/v1/models")).json()["data"]] == ["other"]

        await until(changed)
        for path in APIS:
            assert one_error(await kvgate.post(path), path, 404) in {"model_not_found", "not_found_error"}
        assert (await kvgate.client.post(CHAT, json={**body(), "model": None})).status_code == 200


async def test_a_response_in_the_background_is_refused_unless_we_only_observe():
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        refused = await kvgate.post(RESPONSES, background=True)
        assert one_error(refused, RESPONSES, 400) == "forbidden_field"
        assert refused.json()["error"]["param"] == "background"
        assert not [seen for seen in fake.seen if seen.path == RESPONSES]
        for value in (False, None):
            assert (await kvgate.post(RESPONSES, background=value)).status_code == 200
    async with FakeVllm() as fake, gateway(fake, admission={"mode": "observe"}) as kvgate:
        assert (await kvgate.post(RESPONSES, background=True)).status_code == 200
        assert 'decision="forbidden_field"' in (await kvgate.client.get("/metrics")).text


async def test_large_bodies_that_never_end_do_not_fill_the_memory():
    begun = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + bytes(100_000)
    words = {"content": "w" * 100_000}
    async with FakeVllm() as fake, gateway(fake, admission={"queue": {"max_bytes": 150_000}}) as kvgate:
        _, held = await asyncio.open_connection("127.0.0.1", kvgate.port)
        held.write(begun)
        for path in (CHAT, "/kvgate/explain"):

            async def refused(path=path):
                answer = await kvgate.post(path, messages=[{"role": "user", **words}])
                return answer.status_code == 503 and answer.json()["error"]["code"] == "gateway_full"

            await until(refused)
        assert (await kvgate.post()).status_code == 200, "a small one has room"
        held.close()
        await until(lambda: not kvgate.application.active)
        assert (await kvgate.post(messages=[{"role": "user", **words}])).status_code != 503
