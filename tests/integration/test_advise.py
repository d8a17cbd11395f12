"""`kvgate advise` beside a kvgate that served a load: what is wrong is named, what is right is left alone."""

import asyncio
import json
import subprocess
import sys
import time

import httpx
import pytest

from gateway.advice.rules import ENOUGH
from gateway.advice.traffic import read_traffic
from tests.integration.kvgate import serving
from tests.integration.relaying import CHAT, body, fake_processes
from tests.ports import free_port

pytestmark = pytest.mark.slow


WORDS = [{"role": "user", "content": " ".join(["word"] * 8)}]


def advise(*options):
    argv = [sys.executable, "-m", "gateway", "advise", *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def findings(*options):
    done = advise("--json", *options)
    assert done.returncode == 0, done.stderr
    (history,) = json.loads(done.stdout)["histories"]
    return history, {finding["subject"]: finding for finding in history["findings"]}


@pytest.fixture
def kvgate(tmp_path, monkeypatch, request):
    """A kvgate in front of a fake with these options; its event log is `tmp_path / "events"`."""
    monkeypatch.setenv("KVGATE_HEALTH__INTERVAL", "0.1")
    monkeypatch.setenv("KVGATE_AUTH__ADMIN_KEY", "sesame")
    with fake_processes(1, *request.param) as [(url, _)]:
        config = tmp_path / "kvgate.yaml"
        limit = request.param[request.param.index("--max-num-seqs") + 1]
        endpoint = {"url": url, "max_num_seqs": int(limit)}
        config.write_text(json.dumps({"models": [{"endpoints": [endpoint], "tokenizer": "/nonexistent"}]}))
        options = ("--config", str(config), "--event-log", str(tmp_path / "events"))
        with serving(tmp_path / "log", free_port(), *options) as running:
            wait_ready(running)
            yield running


def wait_ready(running):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and running.process.poll() is None:
        try:
            if httpx.get(f"{running.url}/readyz?strict=1", timeout=60).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(running.log.read_text()[-4000:])


async def load(url, requests, *, at_once, tokens=20):
    """So many requests, answered all."""
    turns = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:

        async def one():
            async with turns:
                return await client.post(CHAT, json=body(tokens=tokens, messages=WORDS))

        answers = await asyncio.gather(*(one() for _ in range(requests)))
    assert {answer.status_code for answer in answers} == {200}


LARGE = ("--max-model-len", "8192", "--max-num-seqs", "256")
RIGHT = ("--max-model-len", "128", "--num-blocks", "57", "--block-size", "16", "--max-num-seqs", "16")


@pytest.mark.parametrize("kvgate", [LARGE], indirect=True)
async def test_what_is_far_too_large_is_named_with_what_it_should_be(kvgate, tmp_path):
    url = ("--url", kvgate.url, "--admin-key", "sesame")
    await load(kvgate.url, 10, at_once=2)
    assert f"10 requests were answered, {ENOUGH} are wanted" in advise(*url).stdout

    await load(kvgate.url, ENOUGH, at_once=2)
    history, found = findings(*url)
    assert history["traffic"]["requests"] == ENOUGH + 10
    assert found["context length"]["change"].startswith("--max-model-len 128 ")
    assert found["sequences"]["change"] == "--max-num-seqs 8"
    assert "at most 2 at once" in found["sequences"]["seen"]
    assert "8,192 tokens" in found["KV cache"]["seen"]
    shown = advise(*url).stdout
    assert "change  --max-model-len 128" in shown
    assert "Nothing to change" not in shown

    recorded, by_log = findings("--event-log", str(tmp_path / "events"))
    assert recorded["traffic"]["total_tokens"]["p99"] == {"low": 28, "high": 28}
    assert by_log["context length"]["change"] == found["context length"]["change"]
    assert by_log["sequences"]["change"] == found["sequences"]["change"]
    assert "alternatives" in by_log["admission settings"]["seen"]

    live = read_traffic(kvgate.url, key="sesame")
    assert live.concurrency is not None
    assert live.concurrency.most.low == 2
    assert live.total_tokens.p99.low <= 28 <= live.total_tokens.p99.high


@pytest.mark.parametrize("kvgate", [RIGHT], indirect=True)
async def test_what_fits_is_left_alone_and_a_wrong_key_is_told(kvgate):
    await load(kvgate.url, ENOUGH, at_once=12, tokens=40)
    done = advise("--url", kvgate.url, "--admin-key", "sesame")
    assert "Nothing to change." in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0

    refused = advise("--url", kvgate.url, "--admin-key", "guess")
    assert refused.returncode == 2
    assert f"{kvgate.url}/kvgate/state: answered 401, it wants an admin key, and not the one given" in refused.stderr
