"""What an engine, the kvgate before it and its event log tell of one load is the same load."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import pytest

from gateway.advice.rules import ENOUGH
from gateway.advice.traffic import read_traffic
from gateway.endpoints.exposition import parse
from tests.integration.kvgate import PATIENT, answered_by, serving
from tests.integration.relaying import COMPLETIONS
from tests.ports import free_port

pytestmark = pytest.mark.engine

WHICH = ("p50", "p99", "most")


def test_three_sources_tell_of_one_load(random_vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("KVGATE_HEALTH__INTERVAL", "0.2")
    monkeypatch.setenv("KVGATE_COUNTING__HAND_OVER_FROM", "none")  # or kvgate's own probes were load, too
    unasked = answered_by(random_vllm.url)
    events = tmp_path / "events"
    options = ("--endpoint", random_vllm.url, "--event-log", str(events))
    with serving(tmp_path / "log", free_port(), *options, environ=PATIENT) as kvgate:
        kvgate.wait_healthy(1)
        kvgate.wait_asked(random_vllm.url, unasked)
        before, completed_before = read_traffic(random_vllm.url), completed(random_vllm.url)
        usages = asyncio.run(load(kvgate.url, random_vllm.model))
        generated = sum(usage[1] for usage in usages)
        deadline = time.monotonic() + 10
        while kvgate.state()["endpoints"][0]["engine"]["generated_tokens"] < generated:
            assert time.monotonic() < deadline, f"the engine's {generated} tokens were not seen"
            time.sleep(0.1)
        live, engine = read_traffic(kvgate.url), read_traffic(f"{random_vllm.url}/metrics")
        advice = subprocess.run(
            [sys.executable, "-m", "gateway", "advise", "--json", "--url", kvgate.url, "--event-log", str(events)],
            capture_output=True,
            text=True,
            check=True,
        )
    recorded = read_traffic(str(events))
    assert (live.requests, recorded.requests, engine.requests - before.requests) == (ENOUGH, ENOUGH, ENOUGH)
    for position, name in enumerate(("prompt_tokens", "output_tokens")):
        was = sorted(usage[position] for usage in usages)
        exact, told = getattr(recorded, name), getattr(live, name)
        assert [getattr(exact, which).low for which in WHICH] == [was[len(was) // 2 - 1], was[-2], was[-1]]
        for which in WHICH:
            assert getattr(told, which).low <= getattr(exact, which).low <= getattr(told, which).high
    gained = [now - then for now, then in zip(completed(random_vllm.url), completed_before, strict=True)]
    assert gained == [ENOUGH, *map(sum, zip(*usages, strict=True))]
    assert recorded.concurrency.most.exact
    assert live.concurrency.most == recorded.concurrency.most
    assert engine.total_tokens.most.high <= 2048
    assert 0 <= live.hit_rate <= 1
    running, by_log = json.loads(advice.stdout)["histories"]
    assert running["enough"]
    assert by_log["enough"]
    assert {finding["subject"] for finding in running["findings"]} >= {"context length", "preemptions", "KV cache"}


def completed(url):
    """What a pace is read from: sequences, and tokens of their prompts and outputs."""
    metrics = parse(httpx.get(f"{url}/metrics").content)
    return metrics.completed, metrics.completed_prompt, metrics.completed_output


async def load(url, model):
    """Prompts and outputs of many lengths; returns what usage said of each."""
    turns = asyncio.Semaphore(6)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:

        async def one(prompt, tokens):
            asked = {"model": model, "prompt": "a " * prompt, "max_tokens": tokens, "ignore_eos": True}
            async with turns:
                usage = (await client.post(COMPLETIONS, json=asked)).json()["usage"]
            return usage["prompt_tokens"], usage["completion_tokens"]

        return await asyncio.gather(*(one(5 + 37 * i % 200, 2 + 23 * i % 60) for i in range(ENOUGH)))
