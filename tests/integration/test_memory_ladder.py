"""A real engine whose KV cache cannot hold the context it is asked for: with less where that is allowed, else told."""

import asyncio
from pathlib import Path

import httpx
import pytest

from engine import events
from engine.assembly import assembled
from engine.memory_ladder import Bounds
from engine.program import Program
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM
from tests.integration.test_engine_supervision import START, running
from tests.ports import free_port

pytestmark = pytest.mark.engine

# 12 blocks of 32 tokens, of which vLLM keeps one to itself.
TOO_SMALL = ("--max-model-len", "2048", "--block-size", "32", "--dtype", "float32", "--enforce-eager")
BLOCKS = ("--num-gpu-blocks-override", "12")
POLICY = Policy(start_timeout=START, stop_timeout=30, max_restarts=2, backoff=0.5)


def program(python: Path, model: Path, *, min_model_len: int | None) -> tuple[EngineSpec, Program]:
    spec = EngineSpec(VLLM, "random", str(model), "random", free_port(), python, args=(*TOO_SMALL, *BLOCKS))
    return spec, assembled(spec, POLICY, fit=Bounds(VLLM.flags(spec.args), min_model_len))


async def test_a_context_that_may_be_shorter_is_shortened_to_what_fits_and_that_is_said(
    quick_python: Path, random_model: Path
) -> None:
    spec, made = program(quick_python, random_model, min_model_len=256)
    async with running(made) as at_work:
        await at_work.until(events.BecameReady)
        (refitted,) = at_work.of(events.Refitted)
        assert "the context is 352 tokens long instead of 2,048" in str(refitted)
        async with httpx.AsyncClient(trust_env=False) as client:
            (served,) = (await client.get(f"{spec.url}/v1/models")).json()["data"]
        assert served["max_model_len"] == 352
        assert not at_work.of(events.Retrying)
        at_work.stop.set()
        assert await asyncio.wait_for(at_work.task, 60) == 0


async def test_without_permission_it_stops_and_names_the_numbers(quick_python: Path, random_model: Path) -> None:
    _, made = program(quick_python, random_model, min_model_len=None)
    async with running(made) as at_work:
        assert await asyncio.wait_for(at_work.task, START) == 1
        (gave_up,) = at_work.of(events.GaveUp)
        assert not at_work.of(events.Refitted)
        assert len(at_work.of(events.Launched)) == 1
        assert "2048 tokens does not fit" in gave_up.diagnosis.cause
        assert "engine.min_model_len: 352" in gave_up.diagnosis.remedy
