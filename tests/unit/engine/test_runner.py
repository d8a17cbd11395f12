import asyncio
import os
import sys
from pathlib import Path

from engine import events
from engine.lifecycle import Policy, State
from engine.phases import Phase
from engine.program import Program, Role
from engine.runner import Runner

URL = "http://127.0.0.1:9/health"
START = """
print('INFO 11-20 18:04:37 [x.py:68] Starting to load model m...', flush=True)
print('CPU KV cache size: 8,192 tokens', flush=True)
print('ready', flush=True)
import time; time.sleep(600)
"""


def program(code: str, policy: Policy | None = None) -> Program:
    argv = (sys.executable, "-S", "-c", code)
    return Program("e", Role.ENGINE, argv, dict(os.environ), None, URL, follows_log=True, policy=policy or Policy())


async def run(made: Program, *, says_ready: bool = True) -> tuple[State, list[events.SupervisorEvent]]:
    """Run until it has printed `ready` and, where its probe is answered, is; then stop it."""
    told: list[events.SupervisorEvent] = []
    printed = asyncio.Event()

    def hear(event: events.SupervisorEvent) -> None:
        told.append(event)
        if isinstance(event, events.LinePrinted) and event.text == "ready":
            printed.set()
        if isinstance(event, events.BecameReady) or (printed.is_set() and not says_ready):
            runner.stop()

    async def probe(url: str) -> bool:
        assert url == URL
        return says_ready and printed.is_set()

    runner = Runner(made, hear, probe)
    return await asyncio.wait_for(runner.run(), 15), told


async def test_phases_are_told_while_it_starts() -> None:
    state, told = await run(program(START))
    assert state is State.STOPPED
    assert [e.progress.phase for e in told if isinstance(e, events.Progressed)] == [Phase.LOADING, Phase.PROFILING]
    kinds = [type(e) for e in told if not isinstance(e, events.Progressed | events.LinePrinted)]
    assert kinds == [events.Launched, events.BecameReady, events.Stopping, events.Stopped]


async def test_a_process_whose_probe_is_silent_is_not_ready() -> None:
    state, told = await run(program(START), says_ready=False)
    assert state is State.STOPPED
    assert not [e for e in told if isinstance(e, events.BecameReady)]


async def test_what_was_printed_before_it_ran_is_not_why_it_ends_later(tmp_path: Path) -> None:
    code = f"""
import pathlib, sys, time
print("ValueError: a fallback was taken", flush=True)
print("ready", flush=True)
while not pathlib.Path({str(tmp_path / "go")!r}).exists(): time.sleep(0.01)
sys.exit(5)
"""
    told: list[events.SupervisorEvent] = []

    def hear(event: events.SupervisorEvent) -> None:
        told.append(event)
        if isinstance(event, events.BecameReady):
            (tmp_path / "go").touch()

    async def probe(_: str) -> bool:
        return any(isinstance(e, events.LinePrinted) and e.text == "ready" for e in told)

    runner = Runner(program(code, Policy(max_restarts=0)), hear, probe)
    assert await asyncio.wait_for(runner.run(), 15) is State.FAILED
    (crashed,) = (e for e in told if isinstance(e, events.Crashed))
    assert crashed.diagnosis.cause == "It ended with exit code 5."
