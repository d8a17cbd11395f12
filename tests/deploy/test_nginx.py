"""The shipped nginx file, run by a real nginx, in front of real kvgates, in front of a fake vLLM."""

import asyncio
import json
import os
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.config.settings import Settings
from tests.deploy.stack import Kvgate, find_nginx, kvgate, nginx, until
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind, SeenRequest
from tests.ports import free_port

pytestmark = [pytest.mark.network, pytest.mark.asyncio(loop_scope="module")]

CHAT = "/v1/chat/completions"
SLOW = FakeSettings(step_seconds=0.05, output_tokens=1000)


@pytest.fixture(scope="module")
def binary() -> str:
    return find_nginx()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        yield client


@dataclass(frozen=True)
class Stack:
    fake: FakeVllm
    gateway: Kvgate
    url: str
    """nginx's."""
    nginx_log: Path

    @property
    def seen(self) -> SeenRequest:
        """The last request of a client that the engine got."""
        return generations(self.fake)[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(binary: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One kvgate behind nginx, shared by the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("stack")
    environ = {"KVGATE_SERVER__TRUSTED_FLOW_HEADER": "x-kvgate-flow"}
    async with (
        FakeVllm(SLOW) as fake,
        kvgate(folder, fake.url, environ=environ) as gateway,
        nginx(binary, folder, [gateway.port]) as url,
    ):
        yield Stack(fake, gateway, url, folder / "nginx" / "log")


def asked(*, stream: bool = True, tokens: int = 20) -> dict[str, Any]:
    messages = [{"role": "user", "content": "one two three"}]
    return {"model": "fake", "messages": messages, "stream": stream, "max_tokens": tokens}


def generations(fake: FakeVllm) -> list[SeenRequest]:
    """What clients asked the engine for; kvgate asks it things of its own."""
    return [seen for seen in fake.seen if seen.path == CHAT]


def contents(events: list[str]) -> list[str]:
    """The events that carry text."""
    return [event for event in events if '"content":' in event and '"role"' not in event]


async def events_of(response: httpx.Response) -> list[str]:
    return [line async for line in response.aiter_lines() if line]


async def test_an_event_arrives_before_the_next_is_made(stack: Stack, client: httpx.AsyncClient) -> None:
    await check_nothing_is_held_back(stack.url, stack.fake, client)


async def test_the_file_alone_sees_to_that(
    stack: Stack, binary: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    # vLLM itself does not ask a proxy for it, as kvgate does.
    async with nginx(binary, tmp_path, [stack.fake.port]) as url:
        await check_nothing_is_held_back(url, stack.fake, client)


async def check_nothing_is_held_back(url: str, fake: FakeVllm, client: httpx.AsyncClient) -> None:
    """The engine makes an event only when the one before has arrived."""

    def step() -> None:
        fake.thaw()
        fake.freeze()  # once this step is over

    async def arrive() -> list[int]:
        events = []
        async with client.stream("POST", url + CHAT, json=asked(tokens=20)) as response:
            async for piece in response.aiter_raw():
                if count := piece.count(b'"content":" '):
                    events.append(count)
                    step()
        return events

    fake.freeze()
    try:
        arriving = asyncio.create_task(arrive())
        await until(lambda: bool(fake.scheduler.unfinished), "the engine has the request")
        step()
        assert await arriving == [1] * 20
    finally:
        fake.thaw()


@pytest.mark.parametrize("moment", ["in a stream", "before the first event", "without a stream"])
async def test_a_client_that_leaves_frees_the_engine_through_both(
    moment: str, stack: Stack, client: httpx.AsyncClient
) -> None:
    if moment == "before the first event":
        stack.fake.faults.add(Fault(FaultKind.SLOW_PREFILL, seconds=60, path=CHAT))
    streaming = asyncio.Event()

    async def ask() -> None:
        asking = asked(stream=moment != "without a stream", tokens=1000)
        async with client.stream("POST", stack.url + CHAT, json=asking) as response:
            async for _ in response.aiter_raw():
                streaming.set()

    before = len(generations(stack.fake))
    task = asyncio.create_task(ask())
    await until(lambda: len(generations(stack.fake)) > before, "the engine has the request")
    if moment == "in a stream":
        await streaming.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    left = asyncio.get_running_loop().time()
    await until(lambda: stack.seen.client_gone_at is not None, "the engine's client is gone")
    assert stack.seen.client_gone_at is not None
    assert stack.seen.client_gone_at - left < 0.5
    assert stack.fake.scheduler.unfinished == 0


async def completed(client: httpx.AsyncClient, gateway: Kvgate) -> int:
    metrics = (await client.get(f"{gateway.url}/metrics")).text
    found = re.search(r'^kvgate_requests_total\{model="fake",outcome="completed"\} (\S+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


async def test_two_gateways_share_the_work_and_the_death_of_one_fails_nobody(
    binary: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with (
        FakeVllm() as fake,
        kvgate(tmp_path, fake.url) as first,
        kvgate(tmp_path, fake.url) as second,
        nginx(binary, tmp_path, [first.port, second.port]) as url,
    ):

        async def ask() -> int:
            return (await client.post(url + CHAT, json=asked(stream=False))).status_code

        assert await asyncio.gather(*(ask() for _ in range(20))) == [200] * 20
        shares = [await completed(client, first), await completed(client, second)]
        assert sum(shares) == 20
        assert min(shares) >= 5

        fake.faults.add(Fault(FaultKind.SLOW_PREFILL, seconds=60, path=CHAT))
        waiting = asyncio.create_task(finish_by_sdk(url))
        await until(lambda: len(generations(fake)) == 21, "the engine has the request")
        states = [(await client.get(f"{gateway.url}/kvgate/state")).json() for gateway in (first, second)]
        in_flight = [state["endpoints"][0]["in_flight"] for state in states]
        assert sorted(in_flight) == [0, 1]
        (first, second)[in_flight.index(1)].kill()

        # It had not begun to stream: the SDK asks again by itself.
        assert await waiting == "length"
        # Who comes now finds the other gateway.
        assert [await ask() for _ in range(10)] == [200] * 10
        assert await asyncio.gather(*(ask() for _ in range(20))) == [200] * 20


async def finish_by_sdk(url: str) -> str | None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:
        stream = await sdk.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "one two"}], max_tokens=5, stream=True
        )
        return [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices][-1]


@pytest.mark.parametrize("kept", [0, 1], ids=["the first", "the second"])
async def test_a_gateway_fails_no_request_while_it_shuts_down_and_once_it_has_gone(
    kept: int, binary: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with (
        FakeVllm(FakeSettings(step_seconds=0.01, output_tokens=300)) as fake,
        kvgate(tmp_path, fake.url) as first,
        kvgate(tmp_path, fake.url) as second,
        nginx(binary, tmp_path, [first.port, second.port]) as url,
    ):
        stays, leaves = (first, second)[kept], (first, second)[1 - kept]
        statuses: list[int] = []
        over = asyncio.Event()

        async def ask_on() -> None:
            while not over.is_set():
                statuses.append((await client.post(url + CHAT, json=asked(stream=False, tokens=5))).status_code)

        def refused() -> int:
            return [line["outcome"] for line in leaves.lines("request")].count("draining")

        # A long answer keeps it for a while.
        async with client.stream("POST", leaves.url + CHAT, json=asked(tokens=300)) as answer:
            asking = [asyncio.create_task(ask_on()) for _ in range(8)]
            await until(lambda: len(statuses) > 50, "clients are served by both")
            leaves.process.terminate()
            await until(lambda: refused() > 10, "it refuses, and nginx asks the other")
            while_it_shut_down = list(statuses)
            assert leaves.process.returncode is None
            assert (await events_of(answer))[-1] == "data: [DONE]"
        await leaves.process.wait()
        gone = len(statuses) + len(asking)  # those may have met its end
        await until(lambda: len(statuses) > gone + 50, "clients are served without it")
        over.set()
        await asyncio.gather(*asking)
    assert set(while_it_shut_down) == {200}
    assert set(statuses[gone:]) == {200}
    assert len(stays.lines("request")) > 50


async def test_clients_are_told_apart_by_what_a_trusted_proxy_says_and_by_nobody_else(
    stack: Stack, binary: str, tmp_path: Path
) -> None:
    def behind(text: str) -> str:
        return text.replace("#proxy ", "").replace("10.0.0.0/24", "127.0.0.2")

    async with nginx(binary, tmp_path, [stack.gateway.port], behind) as url:
        for address in ("127.0.0.2", "127.0.0.3"):
            async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address=address)) as client:
                headers = {"x-forwarded-for": "10.9.9.9, 192.0.2.7", "x-request-id": f"from-{address}"}
                await client.post(url + CHAT, json=asked(stream=False), headers=headers)

    def flows() -> dict[str, str]:
        lines = [line for line in stack.gateway.lines("request") if line["request_id"].startswith("from-")]
        return {line["request_id"]: line["flow"] for line in lines}

    await until(lambda: len(flows()) == 2, "both are logged")
    assert flows() == {"from-127.0.0.2": "192.0.2.7", "from-127.0.0.3": "127.0.0.3"}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For 127.0.0.1; its key is beside it."""
    file = tmp_path / "tls.crt"
    files = ["-keyout", str(tmp_path / "tls.key"), "-out", str(file)]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *kind, *name, *files], check=True, capture_output=True)
    return file


async def test_the_example_of_tls_serves(stack: Stack, binary: str, certificate: Path, tmp_path: Path) -> None:
    port = free_port()

    def with_tls(text: str) -> str:
        text = text.replace("#tls ", "").replace("listen 8443 ", f"listen 127.0.0.1:{port} ")
        return text.replace("/etc/nginx/tls/", f"{certificate.parent}/")

    trusts = ssl.create_default_context(cafile=str(certificate))
    async with nginx(binary, tmp_path, [stack.gateway.port], with_tls), httpx.AsyncClient(verify=trusts) as client:
        answer = await client.post(f"https://127.0.0.1:{port}{CHAT}", json=asked(stream=False))
    assert answer.status_code == 200


async def test_a_request_that_a_gateway_took_to_its_grave_is_not_sent_to_another(
    binary: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    taken = []

    async def take_and_die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            taken.append(head)
        writer.close()

    first = await asyncio.start_server(take_and_die, "127.0.0.1", 0)
    second = await asyncio.start_server(take_and_die, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (first, second)]
    async with first, second, nginx(binary, tmp_path, ports) as url:
        response = await client.post(url + CHAT, json=asked(), headers={"x-request-id": "mine"})
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_error"
    assert response.headers["x-request-id"] == "mine"
    assert len(taken) == 1


async def test_the_error_that_ends_a_broken_stream_arrives(stack: Stack, client: httpx.AsyncClient) -> None:
    stack.fake.faults.add(Fault(FaultKind.RESET_MID_STREAM, after=3, path=CHAT))
    async with client.stream("POST", stack.url + CHAT, json=asked()) as response:
        events = [line async for line in response.aiter_lines() if line]
    assert response.status_code == 200
    assert len(contents(events)) == 3
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "upstream_error"


async def test_a_refusal_arrives_with_the_time_to_come_back(
    binary: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    full = {"KVGATE_ADMISSION__QUEUE__MAX_REQUESTS": "0"}
    settings = {"max_num_seqs": 1}
    models = json.dumps([{"endpoints": [{"url": "URL", **settings}]}])
    async with FakeVllm(SLOW) as fake:
        environ = full | {"KVGATE_MODELS": models.replace("URL", fake.url)}
        async with (
            kvgate(tmp_path, environ=environ) as gateway,
            nginx(binary, tmp_path, [gateway.port]) as url,
            client.stream("POST", url + CHAT, json=asked(tokens=1000)) as response,
        ):
            assert response.status_code == 200
            refused = await client.post(url + CHAT, json=asked())
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    assert int(refused.headers["retry-after-ms"]) > 0


async def test_ids_and_flows_reach_the_gateway_and_flows_cannot_be_forged(stack: Stack) -> None:
    somebody = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(transport=somebody) as client:
        named = {"x-request-id": "mine", "x-kvgate-flow": "the boss"}
        mine = await client.post(stack.url + CHAT, json=asked(stream=False), headers=named)
        assert stack.seen.header("x-request-id") == mine.headers["x-request-id"] == "mine"
        other = await client.post(stack.url + CHAT, json=asked(stream=False))
        minted = other.headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", minted)
        assert stack.seen.header("x-request-id") == minted
    assert mine.headers["x-accel-buffering"] == "no"

    def flows() -> list[str]:
        return [line["flow"] for line in stack.gateway.lines("request") if line["request_id"] in {"mine", minted}]

    await until(lambda: len(flows()) == 2, "both are logged")
    assert flows() == ["127.0.0.2", "127.0.0.2"]


CLOSED = (
    "/metrics", "/kvgate/state", "/openapi.json", "/docs", "/livez", "/", "/v1/../metrics", "/v1/%2e%2e/metrics",
    "/v1/..%2fkvgate/state", "//metrics", "/metrics/", "/v1/./../kvgate/state",
)  # fmt: skip


@pytest.mark.parametrize("path", CLOSED)
async def test_a_path_that_is_not_for_clients_is_closed(path: str, stack: Stack) -> None:
    # By hand: a client library would tidy the path up.
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(stack.url).port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, body = (await reader.read()).split(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 404 ")
    assert json.loads(body)["error"]["code"] == "not_found"


async def test_the_paths_of_clients_are_open(stack: Stack, client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{stack.url}/readyz")).status_code == 200
    assert (await client.get(f"{stack.url}/v1/models")).json()["data"][0]["id"] == "fake"
    assert (await client.post(f"{stack.url}/tokenize", json={"model": "fake", "prompt": "a b"})).json()["count"] == 2


async def test_nginx_refuses_what_kvgate_would_in_the_same_shape(stack: Stack, client: httpx.AsyncClient) -> None:
    large = await client.post(stack.url + CHAT, content=b" " * (Settings().server.max_body_bytes + 1))
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "body_too_large"
    assert large.headers["x-should-retry"] == "false"
    heavy = await client.get(f"{stack.url}/v1/models", headers={"a": "a" * 20_000})
    assert heavy.status_code == 431
    assert heavy.json()["error"]["type"] == "invalid_request_error"


async def test_a_large_prompt_is_not_written_to_disk(stack: Stack, client: httpx.AsyncClient) -> None:
    padded = json.dumps(asked(stream=False, tokens=2)).encode() + b" " * 4_000_000
    assert (await client.post(stack.url + CHAT, content=padded)).status_code == 200
    assert "temporary file" not in stack.nginx_log.read_text()


async def test_connections_to_a_gateway_are_kept(binary: str, client: httpx.AsyncClient, tmp_path: Path) -> None:
    async with FakeVllm() as fake, nginx(binary, tmp_path, [fake.port]) as url:
        for _ in range(12):
            assert (await client.post(url + CHAT, json=asked(stream=False))).status_code == 200
    workers = len(os.sched_getaffinity(0))
    assert len({seen.connection for seen in generations(fake)}) <= max(workers, 2)
