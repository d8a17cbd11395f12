"""A kvgate whose engine gets slower is asked for advice while it runs; time is ours, and nobody waits for it."""

import asyncio
import time
from types import SimpleNamespace

from gateway.advice.history import running
from gateway.advice.rules import ENOUGH, advise
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.fakes.vllm.scheduler import Sequence
from tests.integration.relaying import gateway

AT_ONCE = 8
LOOK = 5
"""Seconds between two looks at the engine."""


async def test_an_engine_that_gets_slower_under_steady_load_is_told_by_advise(monkeypatch):
    """Eight are always on it, of 20 tokens each, and it computes ever fewer steps a second."""
    began, passed = time.monotonic(), 0
    monkeypatch.setattr("gateway.app.application.time", SimpleNamespace(monotonic=lambda: began + passed))
    async with FakeVllm(FakeSettings(step_seconds=0)) as fake, gateway(fake, health={"interval": 3600}) as kvgate:
        await asyncio.gather(*(kvgate.post(tokens=1) for _ in range(ENOUGH)))
        (monitor,) = kvgate.application._core.monitors.values()

        async def works(seconds, steps):
            nonlocal passed
            for _ in range(seconds // LOOK):
                for _ in range(steps * LOOK):
                    fake.scheduler.step()
                    if fake.scheduler.unfinished < AT_ONCE:
                        fake.scheduler.add(Sequence(30, 20))
                fake._observe()
                passed += LOOK
                await monitor.probe()

        async def told():
            (past,) = await asyncio.to_thread(running, f"http://127.0.0.1:{kvgate.port}", None)
            return {finding.subject: finding for finding in advise(past)}

        assert "pace" not in await told()
        await works(300, 20)
        assert (await told())["pace"].change is None
        await works(300, 12)
        await works(300, 4)
        found = (await told())["pace"]
        assert found.seen == (
            f"{monitor.status.id} completed 7.95 requests a second in the first 5 minutes and 1.6 in the last 5, "
            "with 8 and 8 in flight, prompts and answers alike (on average 30 and 20 tokens); "
            "its KV cache was 6% full, then 6%"
        )
        assert "nvidia-smi" in found.change
        assert found.gain.startswith("5.0 times")
