"""A gateway goes by other settings while it serves: each that can change does, and no request fails for it."""

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path

import httpx
import pytest

from gateway.config.errors import ConfigurationError
from gateway.config.reloadable import NEEDS, Needs
from gateway.config.secrets import revealed
from gateway.config.settings import Settings
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.load import Load
from tests.integration.relaying import CHAT, body, gateway, until

TLS = ("server.tls_cert", "server.tls_key")
CERTIFICATES = Path(__file__).parents[1] / "unit" / "config" / "certificates"
SLOW = FakeSettings(step_seconds=0.01)
ONE_AT_A_TIME = FakeSettings(step_seconds=0.01, max_num_seqs=1)


@pytest.fixture
async def fakes():
    """Starts fake engines."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(settings=SLOW):
            return await stack.enter_async_context(FakeVllm(settings))

        yield start


async def change(running, **sections):
    """Lay these settings over those in force; what was said of it."""

    def laid(below, above):
        both = {name: laid(below[name], value) for name, value in above.items() if isinstance(below.get(name), dict)}
        return {**below, **above, **both}

    values = laid(revealed(running.application.settings), sections)
    return await running.application.change(Settings.model_validate(values))


def address(fake):
    return fake.url.removeprefix("http://")


def endpoints(*fakes, **fields):
    return [{"endpoints": [{"url": fake.url, **fields} for fake in fakes], "tokenizer": "/nonexistent"}]


async def test_every_setting_that_is_live_changes_under_load_and_no_request_fails(fakes, tmp_path):
    """All of them at once, there and back, while clients of every kind go on."""
    first, second = await fakes(), await fakes()
    (tmp_path / "key").write_text("k")
    of_endpoint = {"max_num_seqs": 50, "kv_tokens": 9_000, "api_key_file": tmp_path / "key"}
    of_endpoint |= {"kind": "vllm", "max_model_len": 2000}
    other = {
        "server": {
            "max_body_bytes": 10_000,
            "max_header_bytes": 9_000,
            "body_timeout": 9,
            "shutdown_timeout": 9,
            "body_min_rate": 1,
            "max_connections": 500,
            "trusted_objectives": {"batch": 2},
            "allowed_origins": ["https://chat.example.com"],
        },
        "models": [
            {
                **endpoints(second, **of_endpoint)[0],
                "fallbacks": ["http://127.0.0.1:1"],
                "default_max_tokens": 9,
                "lora": [{"name": "sql", "path": "/nonexistent"}],
                "lora_flows": True,
            }
        ],
        "admission": {
            "policy": "forecast",
            "kv_high": 0.7,
            "kv_low": 0.5,
            "ttft_target": 20,
            "max_passes": 1,
            "bands": {1: {"ttft_target": 9, "reserved": 0.2}},
            "queue": {"max_requests": 50, "max_bytes": 10**6, "ttl": 30, "no_endpoint_ttl": 30, "heartbeat": 5},
        },
        "counting": {"process_bytes": 10_000, "max_pending_bytes": 10**6, "hand_over_from": 100},
        "health": {"timeout": 3, "failures": 5, "hung_after": 20},
        "upstream": {
            "connect_timeout": 3,
            "first_byte_timeout": 50,
            "idle_timeout": 50,
            "keepalive": 1,
            "relay_concurrency": 9,
            "retry_share": 0.5,
        },
        "auth": {"keys": [{"name": "k", "key_file": tmp_path / "key", "weight": 2}], "admin_key": "a"},
    }
    async with gateway(first) as running:
        before = revealed(running.application.settings)
        named = {"server.trusted_flow_header", *TLS}  # see below
        async with Load(str(running.client.base_url).rstrip("/")) as load:
            for mode in ("observe", "enforce") * 2:
                told = await change(running, **{**other, "admission": {**other["admission"], "mode": mode}})
                assert told.later == {}
                named.update(told.live)
                await load.more(15)
                await running.application.change(Settings.model_validate(before))
                await load.more(15)
        assert load.failures == []
        of_models = ("models[].endpoints", "models[].fallbacks", "models[].lora_flows", "models[].lora")
        lists = (*of_models, "auth.keys", "admission.bands")
        live = {path for path, needs in NEEDS.items() if needs is Needs.NOTHING and path != "auth.admin_key_file"}
        live = {path for path in live if not path.startswith("models[].discover")}  # see test_discovery.py
        assert {next((one for one in lists if path.startswith(one)), path) for path in live} == named


async def test_keys_weights_and_the_admin_key_are_those_of_now(fakes, tmp_path):
    key = tmp_path / "key"
    key.write_text("first")
    async with gateway(
        await fakes(), auth={"keys": [{"name": "a", "key_file": key}], "admin_key": "x"}, ready=False
    ) as g:

        async def status(path, key):
            headers = {"authorization": f"Bearer {key}"}
            if path == CHAT:
                return (await g.client.post(path, json=body(), headers=headers)).status_code
            return (await g.client.get(path, headers=headers)).status_code

        assert (await status(CHAT, "first"), await status(CHAT, "second")) == (200, 401)
        key.write_text("second")
        await change(g)
        assert (await status(CHAT, "first"), await status(CHAT, "second")) == (401, 200)
        await change(g, auth={"admin_key": "y"})
        assert (await status("/metrics", "x"), await status("/metrics", "y")) == (401, 200)
        key.unlink()
        with pytest.raises(ConfigurationError, match="cannot read the key"):
            await change(g, auth={"admin_key": "z"})
        assert (await status("/metrics", "z"), await status(CHAT, "second")) == (401, 200), "nothing was changed"
        assert g.application.settings.auth.admin_key.get_secret_value() == "y"


async def test_observe_for_a_moment_lets_those_who_wait_go(fakes):
    fake = await fakes(ONE_AT_A_TIME)
    async with gateway(fake, models=endpoints(fake, max_num_seqs=1)) as running:
        asked = [asyncio.create_task(running.post(tokens=100)) for _ in range(4)]
        depth = lambda state: sum(queue["depth"] for queue in state["queues"])  # noqa: E731

        async def waits():
            return depth(await running.state()) == 3

        await until(waits)
        told = await change(running, admission={"mode": "observe"})
        assert told.live == ("admission.mode",)
        state = await running.state()
        assert (state["mode"], depth(state)) == ("observe", 0)
        assert 'kvgate_would_total{decision="queued",model="fake"} 3.0' in (await running.client.get("/metrics")).text
        await change(running, admission={"mode": "enforce"})
        late = asyncio.create_task(running.post(tokens=5))
        await until(lambda: waits_one(running))
        assert [(await answer).status_code for answer in (*asked, late)] == [200] * 5


async def test_tls_begins_changes_its_certificate_and_ends_and_no_connection_for_it(fakes, tmp_path):
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}

    def put(name):
        shutil.copy(CERTIFICATES / f"{name}.pem", files["tls_cert"])
        shutil.copy(CERTIFICATES / f"{name}.key", files["tls_key"])

    async def ready(ca):
        trusted = ssl.create_default_context(cafile=CERTIFICATES / ca)
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            return (await client.get(f"https://localhost:{running.port}/readyz")).status_code

    put("localhost")
    async with gateway(await fakes()) as running:
        # Its client speaks plain HTTP on a connection that it opened before.
        stream = asyncio.create_task(running.post(tokens=200, stream=True))
        await until(lambda: running.application.active == 1)
        assert (await change(running, server=files)).live == TLS
        assert await ready("ca.pem") == 200
        put("other")
        await change(running)
        assert await ready("other.pem") == 200
        files["tls_key"].write_text("no key")
        with pytest.raises(ConfigurationError, match=r"server\.tls_key: expected a private key in PEM"):
            await change(running, admission={"mode": "observe"})
        assert await ready("other.pem") == 200
        assert running.application.settings.admission.mode == "enforce", "nothing was changed"
        await change(running, server=dict.fromkeys(files))
        assert (await running.post()).status_code == 200
        assert (await stream).text.rstrip().endswith("[DONE]")


async def waits_one(running):
    return [queue["depth"] for queue in (await running.state())["queues"]] == [1]


async def test_an_endpoint_that_is_removed_ends_what_it_has_and_is_forgotten(fakes):
    first, second = await fakes(), await fakes()
    async with gateway(first, second) as running:
        streams = [asyncio.create_task(running.post(tokens=60, stream=True)) for _ in range(6)]
        await until(lambda: len(first.scheduler.running) + len(second.scheduler.running) == 6)
        seen = len(first.seen)
        await change(running, models=endpoints(second))
        assert [(await running.post()).headers["x-kvgate-endpoint"] for _ in range(4)] == [address(second)] * 4
        answers = [await stream for stream in streams]
        assert all(answer.text.rstrip().endswith("[DONE]") for answer in answers)
        assert {answer.headers["x-kvgate-endpoint"] for answer in answers} == {address(first), address(second)}

        async def forgotten():
            return [endpoint["id"] for endpoint in (await running.state())["endpoints"]] == [address(second)]

        await until(forgotten)
        assert address(first) not in (await running.client.get("/metrics")).text
        assert len([one for one in first.seen[seen:] if one.path == CHAT]) == 0


async def test_the_only_endpoint_is_exchanged_for_another_while_requests_wait(fakes):
    first, second = await fakes(ONE_AT_A_TIME), await fakes()
    async with gateway(first, models=endpoints(first, max_num_seqs=1)) as running:
        asked = [asyncio.create_task(running.post(tokens=60)) for _ in range(5)]
        await until(lambda: len(first.scheduler.running) == 1)
        await change(running, models=endpoints(second))
        assert [(await one).status_code for one in asked] == [200] * 5
        await until(lambda: len(running.application.endpoints) == 1)
        assert (await running.post()).headers["x-kvgate-endpoint"] == address(second)


async def test_an_endpoint_that_comes_back_before_it_has_gone_stays(fakes):
    first, second = await fakes(), await fakes()
    async with gateway(first, second) as running:
        streams = [asyncio.create_task(running.post(tokens=100, stream=True)) for _ in range(4)]
        await until(lambda: first.scheduler.running and second.scheduler.running)
        await change(running, models=endpoints(second))
        await change(running, models=endpoints(first, second))
        await until(lambda: all(one.healthy for one in running.application.endpoints))
        for stream in streams:
            assert (await stream).text.rstrip().endswith("[DONE]")
        assert len(running.application.endpoints) == 2


async def test_what_cannot_change_stays_and_is_named_each_time(fakes):
    async with gateway(await fakes()) as running:
        for _ in range(2):
            told = await change(running, server={"port": 1}, counting={"threads": 5}, health={"hung_after": 7})
            assert told.told() == ["server.port: needs a restart", "counting.threads: needs a restart"]
        assert (running.application.settings.server.port, running.application.settings.counting.threads) == (0, 2)
        assert (await running.post()).status_code == 200


async def test_limits_on_what_a_client_sends_are_those_of_now(fakes):
    async with gateway(await fakes()) as running:
        await change(running, server={"max_body_bytes": 100, "max_header_bytes": 1000})
        assert (await running.post(padding="x" * 200)).status_code == 413
        long = await running.client.get("/livez", headers={"x-long": "x" * 2000})
        assert long.status_code == 431
