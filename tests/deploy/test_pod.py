"""A kvgate with the settings of a pod answers the pod's probes, and its end breaks no stream."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.helm import kvgate_of, mounted, of_kind, pod_of, template
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.integration.kvgate import serving
from tests.integration.relaying import CHAT, body
from tests.ports import free_port
from tests.until import until

pytestmark = pytest.mark.network

KEY = {"authorization": "Bearer key-of-app"}


async def test_probes_answer_and_a_pods_end_breaks_no_stream(tmp_path: Path) -> None:
    async with FakeVllm(FakeSettings(step_seconds=0.02)) as fake, httpx.AsyncClient(trust_env=False) as client:
        resources = template(
            {
                "models": [{"endpoints": [{"url": fake.url}], "tokenizer": "/nonexistent"}],
                "secrets": ["kvgate"],
                "adminKey": {"secret": "kvgate"},
                "podMonitor": {"enabled": True},
                "config": {"auth": {"keys": [{"name": "app", "key_file": "/run/secrets/kvgate/app"}]}},
            }
        )
        _, environ = mounted(resources, tmp_path)
        container, ports = kvgate_of(resources), {"http": free_port(), "admin": free_port()}

        async def get(port: str, path: str, **headers: str) -> int | None:
            with contextlib.suppress(httpx.TransportError):
                url = f"http://127.0.0.1:{ports[port]}{path}"
                return (await client.get(url, headers=headers, timeout=5)).status_code
            return None

        async def probe(name: str) -> bool:
            asked: dict[str, Any] = container[name]["httpGet"]
            return await get(asked["port"], asked["path"]) == httpx.codes.OK

        async def ask(tokens: int) -> httpx.Response:
            url = f"http://127.0.0.1:{ports['http']}{CHAT}"
            return await client.post(url, json=body(tokens=tokens, stream=True), headers=KEY, timeout=60)

        log = tmp_path / "log"
        with serving(log, ports["http"], "--admin-port", str(ports["admin"]), environ=environ) as kvgate:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                await until(partial(probe, name))
            (monitor,) = of_kind(resources, "PodMonitor")
            (scraped,) = monitor["spec"]["podMetricsEndpoints"]
            assert scraped["authorization"] == {"credentials": {"name": "kvgate", "key": "admin"}}
            allowed = {"authorization": "Bearer key-of-admin"}
            assert await get(scraped["port"], scraped["path"]) == httpx.codes.UNAUTHORIZED
            assert await get(scraped["port"], scraped["path"], **allowed) == httpx.codes.OK
            assert await get("http", "/metrics", **allowed) == httpx.codes.NOT_FOUND, "clients have no way to it"

            # Kubernetes sleeps (preStop), and sends SIGTERM then. Until that, whoever still comes is served.
            running = asyncio.create_task(ask(tokens=100))
            await until(lambda: fake.scheduler.running)
            kvgate.process.terminate()
            await until(partial(unready, probe))
            assert await probe("livenessProbe"), "it is not killed before its streams have ended"
            refused = await ask(tokens=1)
            assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
            assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
            assert (await running).text.endswith("data: [DONE]\n\n")
            grace = pod_of(resources)["terminationGracePeriodSeconds"]
            assert await asyncio.to_thread(kvgate.process.wait, grace) == 0


async def unready(probe: Callable[[str], Awaitable[bool]]) -> bool:
    return not await probe("readinessProbe")
