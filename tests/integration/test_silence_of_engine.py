"""A real vLLM whose event loop stands still: nothing is sent again, and every answer arrives."""

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest
import yaml

from engine.diagnosis.look import listener
from tests.conftest import Vllm
from tests.integration.kvgate import Kvgate, answered_by, serving
from tests.ports import free_port
from tests.until import until

pytestmark = pytest.mark.engine

HUNG_AFTER = 5.0
STOPPED = 7.5
"""Seconds: longer than `HUNG_AFTER`, shorter than twice that."""
COMPLETIONS = "/v1/completions"


async def test_a_large_answer_and_a_stopped_server_are_waited_for_and_nothing_is_sent_twice(
    random_vllm: Vllm, tmp_path: Path
) -> None:
    engine = random_vllm
    settings = {
        "health": {"interval": 0.2, "timeout": 0.5, "hung_after": HUNG_AFTER},
        "admission": {"ttft_target": "none"},
        "counting": {"hand_over_from": "none"},  # or kvgate's own probes were among what it has answered
        "models": [{"endpoints": [{"url": engine.url}]}],
    }
    file = tmp_path / "kvgate.yaml"
    file.write_text(yaml.safe_dump(settings))
    unasked = answered_by(engine.url)
    with serving(tmp_path / "kvgate.log", free_port(), "--config", str(file)) as kvgate:
        kvgate.wait_healthy(1)
        kvgate.wait_asked(engine.url, unasked)
        async with httpx.AsyncClient(timeout=600) as client:
            before = answered_by(engine.url)
            large = await client.post(
                f"{kvgate.url}{COMPLETIONS}",
                json={
                    "model": "random",
                    "prompt": [100 + number % 900 for number in range(1500)],
                    "max_tokens": 1,
                    "n": 4,
                    "prompt_logprobs": 20,
                },
            )
            assert large.status_code == httpx.codes.OK, large.text[:300]
            print(f"\n{len(large.content) / 1e6:.0f} MB took {large.elapsed.total_seconds():.1f} s")
            assert answered_by(engine.url) == before + 1

            streams = [asyncio.create_task(stream(client, kvgate.url, number)) for number in range(3)]
            await until(lambda: kvgate.state()["endpoints"][0]["in_flight"] == 3)
            await stopped(engine.url, STOPPED)
            assert await asyncio.gather(*streams) == [True] * 3
            assert answered_by(engine.url) == before + 4
            found = changes(kvgate)
            assert found[-2:] == ["blocked", "up"]
            assert set(found) == {"blocked", "up"}, "the large answer may have blocked it for long enough too"


async def stream(client: httpx.AsyncClient, url: str, number: int) -> bool:
    """Whether a whole answer came."""
    asked = {"model": "random", "prompt": [200 + number] * 20, "max_tokens": 400, "ignore_eos": True, "stream": True}
    text = (await client.post(f"{url}{COMPLETIONS}", json=asked)).text
    return text.endswith("data: [DONE]\n\n") and '"error"' not in text


async def stopped(url: str, seconds: float) -> None:
    """Stop the API server, and only it, for so long."""
    found = listener(int(url.rpartition(":")[2]))
    assert found is not None
    assert found.pid is not None
    os.kill(found.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        while time.monotonic() - began < seconds:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    finally:
        os.kill(found.pid, signal.SIGCONT)


def changes(kvgate: Kvgate) -> list[str]:
    """The states that the endpoint came to be in after it was up."""
    states = re.findall(r'"state":"(\w+)".*"event":"endpoint changed"', kvgate.log.read_text())
    return states[states.index("up") + 1 :]
