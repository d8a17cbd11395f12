import asyncio
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import events, runner
from engine.diagnosis.sign import Diagnosis
from engine.download import Download
from engine.memory_ladder import Stop
from engine.phases import VLLM_SIGNS, StartPhase
from engine.process import GuardedProcess
from engine.program import Program, Refit, Role
from engine.program_lifecycle import Policy, State
from engine.runner import Runner
from engine.start_history import StartHistory

URL = "http://127.0.0.1:9/health"
START = """
print('INFO 11-20 18:04:37 [x.py:68] Starting to load model m...', flush=True)
print('CPU KV cache size: 8,192 tokens', flush=True)
print('ready', flush=True)
import time; time.sleep(600)
"""


def program(
    code: str,
    policy: Policy | None = None,
    *,
    choices: tuple[str, ...] = (),
    refit: Callable[[Diagnosis], Refit | Stop] | None = None,
) -> Program:
    return Program(
        "e",
        Role.ENGINE,
        (sys.executable, "-S", "-c", code),
        dict(os.environ),
        ready_url=URL,
        follows_log=True,
        phases=VLLM_SIGNS,
        policy=policy or Policy(),
        choices=choices,
        refit=refit,
    )


async def run(made: Program, *, says_ready: bool = True) -> tuple[State, list[events.SupervisorEvent]]:
    """Run until it has printed `ready` and, where its probe is answered, is; then stop it."""
    told: list[events.SupervisorEvent] = []
    printed = asyncio.Event()

    def hear(event: events.SupervisorEvent) -> None:
        told.append(event)
        if isinstance(event, events.LinePrinted) and event.text == "ready":
            printed.set()
        if isinstance(event, events.BecameReady) or (printed.is_set() and not says_ready):
            at_work.stop()

    async def probe(url: str) -> bool:
        assert url == URL
        return says_ready and printed.is_set()

    at_work = Runner(made, hear, probe)
    return await asyncio.wait_for(at_work.run(), 15), told


async def test_phases_are_told_while_it_starts() -> None:
    state, told = await run(program(START))
    assert state is State.STOPPED
    assert [e.progress.phase for e in told if isinstance(e, events.Progressed)] == [
        StartPhase.LOADING,
        StartPhase.PROFILING,
    ]
    kinds = [type(e) for e in told if not isinstance(e, events.Progressed | events.LinePrinted)]
    assert kinds == [events.Launched, events.BecameReady, events.Stopping, events.Stopped]


async def test_the_next_start_says_how_long_each_phase_will_take(tmp_path: Path) -> None:
    made = replace(program(START), history=StartHistory("m", (), {"KVGATE_CACHE": str(tmp_path)}))
    first, second = [
        [event for event in (await run(made))[1] if isinstance(event, events.Progressed)] for _ in range(2)
    ]
    assert [event.left for event in first] == [None, None]
    assert [(event.progress.phase, event.takes is None, event.left is None) for event in second] == [
        (phase, False, False) for phase in (StartPhase.IMPORTING, StartPhase.LOADING, StartPhase.PROFILING)
    ]


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

    at_work = Runner(program(code, Policy(max_restarts=0)), hear, probe)
    assert await asyncio.wait_for(at_work.run(), 15) is State.FAILED
    (crashed,) = (e for e in told if isinstance(e, events.Crashed))
    assert crashed.diagnosis.cause == "It ended with exit code 5."


async def crash(code: str) -> tuple[Diagnosis, list[str]]:
    """Why it ended, as it is told, and what it printed."""
    told: list[events.SupervisorEvent] = []

    async def probe(_: str) -> bool:
        return False

    at_work = Runner(program(code, Policy(max_restarts=0)), told.append, probe)
    assert await asyncio.wait_for(at_work.run(), 15) is State.FAILED
    (crashed,) = (e for e in told if isinstance(e, events.Crashed))
    return crashed.diagnosis, [e.text for e in told if isinstance(e, events.LinePrinted)]


PROMPT = "torch.OutOfMemoryError: CUDA out of memory. A secret. "
LOGGED = f"""
print("INFO 11-20 18:04:19 [logger.py:40] Received request a: prompt: '" + {PROMPT!r} * 6_000 + "'", flush=True)
raise SystemExit(3)
"""


async def test_a_long_prompt_in_the_log_of_a_request_is_not_why_it_ends() -> None:
    found, _ = await crash(LOGGED)
    assert str(found) == "It ended with exit code 3."


async def test_of_a_long_line_more_is_shown_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    def diagnose(log: list[str], code: int, *, served: bool) -> Diagnosis:
        kept.extend(log)
        return Diagnosis(f"{code}, {served}")

    monkeypatch.setattr(runner, "diagnose", diagnose)
    _, printed = await crash("print('ab' * 30_000)")
    assert printed == ["ab" * 30_000]
    assert kept == ["ab" * 512]


async def test_while_a_log_is_read_for_the_cause_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, ticked = asyncio.get_running_loop(), threading.Event()

    def diagnose(_log: list[str], _code: int, *, served: bool) -> Diagnosis:
        loop.call_soon_threadsafe(ticked.set)
        return Diagnosis(f"ticked: {ticked.wait(5)}, {served}")

    monkeypatch.setattr(runner, "diagnose", diagnose)
    found, _ = await crash("raise SystemExit(3)")
    assert found.cause == "ticked: True, False"


TOO_SMALL = "import sys; sys.exit('ValueError: No available memory for the cache blocks. Try increasing')"


async def test_a_start_that_does_not_fit_is_followed_at_once_by_the_one_with_less() -> None:
    asked: list[Diagnosis] = []

    def refit(diagnosis: Diagnosis) -> Refit:
        asked.append(diagnosis)
        return Refit(program(START), "less of it", 1)

    state, told = await run(program(TOO_SMALL, choices=("--x 1: so",), refit=refit))
    assert state is State.STOPPED
    kinds = [type(e) for e in told if not isinstance(e, events.Progressed | events.LinePrinted)]
    assert kinds == [
        *(events.Chosen, events.Launched, events.Crashed, events.Refitted, events.BecameReady),
        *(events.Stopping, events.Stopped),
    ]
    assert [diagnosis.cause for diagnosis in asked] == [
        event.diagnosis.cause for event in told if isinstance(event, events.Crashed)
    ]


async def test_where_nothing_is_left_to_try_the_last_words_say_what_would_help() -> None:
    state, told = await run(program(TOO_SMALL, refit=lambda _: Stop("384 tokens would fit.")))
    assert state is State.FAILED
    (gave_up,) = (e for e in told if isinstance(e, events.GaveUp))
    assert gave_up.diagnosis.remedy.endswith("384 tokens would fit.")


async def test_what_fails_twice_for_one_reason_before_it_ever_ran_is_given_up() -> None:
    code = "import os, sys; sys.exit(f'OSError: process {os.getpid()} found no network')"
    state, told = await run(program(code, Policy(backoff=0.01)))
    assert state is State.FAILED
    assert len([e for e in told if isinstance(e, events.Launched)]) == 2


async def test_a_start_that_takes_too_long_says_how_far_it_came() -> None:
    code = START.replace("print('ready', flush=True)", "")
    state, told = await run(program(code, Policy(start_timeout=3, max_restarts=0)))
    assert state is State.FAILED
    (gave_up,) = (e for e in told if isinstance(e, events.GaveUp))
    assert "not ready 3 s after its launch, and was killed while sizing the KV cache: 8,192" in gave_up.diagnosis.cause


async def test_time_that_runs_out_during_the_launch_itself_ends_the_process_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(GuardedProcess):
        @classmethod
        async def launch(cls, *args: Any, **more: Any) -> "Slow":
            launched = await super().launch(*args, **more)
            await overdue.wait()
            return launched

    overdue, told = asyncio.Event(), list[events.SupervisorEvent]()

    def hear(event: events.SupervisorEvent) -> None:
        told.append(event)
        if isinstance(event, events.Overdue):
            overdue.set()

    async def probe(_: str) -> bool:
        return False

    monkeypatch.setattr(runner, "GuardedProcess", Slow)
    late = Runner(program("import time; time.sleep(600)", Policy(start_timeout=0.1, max_restarts=0)), hear, probe)
    assert await asyncio.wait_for(late.run(), 15) is State.FAILED


class Busy(Download):
    """Somebody else downloads, until it is asked for the third time."""

    def __init__(self, patience: int = 3) -> None:
        super().__init__("org/m", {})
        self.asked, self.given_back, self._patience = 0, 0, patience

    def take(self) -> bool:
        self.asked += 1
        return self.asked >= self._patience

    def give_back(self) -> None:
        self.given_back += 1


async def test_a_launch_waits_while_another_downloads_and_holds_the_turn_until_it_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "_TURN_INTERVAL", 0.01)
    busy = Busy()
    state, told = await run(replace(program(START), download=busy))
    assert state is State.STOPPED
    (waiting,) = (e for e in told if isinstance(e, events.Waiting))
    assert "another launch downloads org/m" in str(waiting)
    assert (busy.asked, busy.given_back) == (3, 3)  # loading, sizing the KV cache, the end


async def test_a_launch_that_waits_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_TURN_INTERVAL", 0.01)

    def hear(event: events.SupervisorEvent) -> None:
        if isinstance(event, events.Waiting):
            at_work.stop()

    async def probe(_: str) -> bool:
        return False

    at_work = Runner(replace(program(START), download=Busy(10**9)), hear, probe)
    assert await asyncio.wait_for(at_work.run(), 15) is State.STOPPED


async def test_a_launch_that_waited_too_long_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_TURN_INTERVAL", 0.01)
    told: list[events.SupervisorEvent] = []

    async def probe(_: str) -> bool:
        return False

    impatient = Policy(start_timeout=0.05, max_restarts=0)
    at_work = Runner(replace(program(START, impatient), download=Busy(10**9)), told.append, probe)
    assert await asyncio.wait_for(at_work.run(), 15) is State.FAILED
    (gave_up,) = (event for event in told if isinstance(event, events.GaveUp))
    assert "still downloading its model after 0.05 s" in gave_up.diagnosis.cause
