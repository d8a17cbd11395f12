import asyncio
import json
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.app.apart import FrontSpec
from gateway.app.application import Application
from gateway.app.together import Together
from gateway.config.settings import Settings
from gateway.endpoints.identity import Identity
from gateway.tokens.engine_count import Target
from tests.until import until

CERTIFICATES = Path(__file__).parents[1] / "config" / "certificates"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
ANSWERS = {
    "/health": "",
    "/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n',
    "/v1/models": json.dumps({"data": [{"id": "m", "max_model_len": 1000}]}),
    "/version": '{"version": "0"}',
    "/tokenize": '{"count": 3}',
    "/v1/chat/completions": json.dumps(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
    ),
}


class PrivateEngine:
    """A server whose certificate is of a CA that the system does not know, and that wants a key."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self) -> asyncio.Server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATES / "localhost.pem", CERTIFICATES / "localhost.key")
        return await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=context)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((int(line[15:]) for line in head.splitlines() if line.startswith("content-length:")), 0)
        await reader.readexactly(length)
        path = head.split(" ")[1]
        body = ANSWERS.get(path)
        status = "404 Not Found" if body is None else "200 OK"
        if "authorization: bearer k\r\n" not in head:
            status = "401 Unauthorized"
        elif body is not None:
            self.asked.append(path)
        kind = "content-type: application/json\r\nconnection: close\r\n"
        writer.write(f"HTTP/1.1 {status}\r\n{kind}content-length: {len(body or '')}\r\n\r\n{body or ''}".encode())
        await writer.drain()
        writer.close()


async def test_an_engine_with_a_certificate_of_its_own_is_asked_to_count() -> None:
    engine = PrivateEngine()
    async with await engine.serve() as listening:
        port = listening.sockets[0].getsockname()[1]
        endpoint = {"url": f"https://localhost:{port}", "api_key": "k", "tls": {"ca_file": CERTIFICATES / "ca.pem"}}
        application = Application(
            Settings.model_validate(
                {
                    "server": {"host": "127.0.0.1", "port": 0},
                    "models": [{"endpoints": [endpoint]}],
                    "counting": {"processes": 0},
                    "admission": {"queue": {"no_endpoint_ttl": 10}},
                }
            )
        )
        await application.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{application.port}", timeout=60) as client:

                async def ready() -> bool:
                    return (await client.get("/readyz")).is_success

                await until(ready)
                answer = await client.post("/v1/chat/completions", json=CHAT)
        finally:
            await application.stop()
    assert answer.status_code == httpx.codes.OK, answer.text
    assert "/tokenize" in engine.asked


async def test_an_endpoint_of_which_a_front_hears_that_it_is_down_is_not_asked_to_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front that joins its owner hears that each endpoint is up, and then that one that sleeps is down."""
    asked: list[str] = []

    async def clamps(target: Target, identity: Identity) -> bool | None:
        asked.append(target.url)
        return None

    monkeypatch.setattr("gateway.app.application.clamps", clamps)
    models = [{"endpoints": [{"url": "http://127.0.0.1:1"}], "tokenizer": "/nonexistent"}]
    settings = Settings.model_validate({"server": {"port": 0}, "models": models, "counting": {"processes": 0}})
    application = Application(settings, spec=FrontSpec(1, tmp_path / "owner", bytes(16)))
    (endpoint,) = application._directory.endpoints

    identity = Identity(("m",), (), None, 1000, "0.32.0")
    application._directory.up(endpoint, "m", identity)
    application._directory.down(endpoint)
    await asyncio.sleep(0)
    assert asked == []
    application._directory.up(endpoint, "m", identity)
    await asyncio.sleep(0)
    assert asked == ["http://127.0.0.1:1"]
    await application.stop()


async def test_each_gateway_has_a_key_of_its_own_and_numbers_its_requests() -> None:
    """Who has its event log cannot test which bodies were sent."""
    settings = Settings.model_validate({"server": {"host": "127.0.0.1", "port": 0}, "counting": {"processes": 0}})
    keys = set()
    for _ in range(2):
        application = Application(settings)
        keys.add(application._plane.hash_key)
        assert [application._plane.new_request() for _ in range(3)] == [1, 2, 3]
        await application.stop()
    assert len(keys) == 2
    assert all(len(key) >= 16 for key in keys)


async def test_the_monitors_have_stopped_before_the_work_they_start_is_ended() -> None:
    """Otherwise an endpoint that comes up meanwhile would start work that nobody ends."""
    models = [{"endpoints": [{"url": "http://127.0.0.1:1"}]}]
    settings = {"server": {"host": "127.0.0.1", "port": 0}, "models": models, "counting": {"processes": 0}}
    application = Application(Settings.model_validate(settings))
    core = application._core
    assert isinstance(core, Together)
    watched: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            watched.extend(not task.done() for task in core.monitors._watching.values())

    await application.start()
    application._background.spawn("work", work)
    await asyncio.sleep(0)
    await application.stop()
    assert watched == [False]
