"""The same events give the same commands, whenever and wherever they are told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.admission import controller
from gateway.admission.commands import Dispatch, Reject
from gateway.admission.controller import AdmissionController
from tests.property.told import POLICIES, digest, record, tumult


@pytest.mark.parametrize("name", POLICIES)
def test_told_again_it_decides_the_same(name):
    heard = record(name)
    said = [command for *_, commands in heard for command in commands]
    assert sum(isinstance(command, Dispatch) for command in said) > 100
    if POLICIES[name].ttft_target is not None:
        assert any(isinstance(command, Reject) for command in said)
    again = AdmissionController(POLICIES[name])
    for event, now, commands in heard:
        assert again.handle(event, now) == commands


@pytest.mark.parametrize("name", POLICIES)
def test_another_interpreter_decides_the_same(name):
    """Neither how strings hash nor where objects lie decides anything."""
    code = f"from tests.property.told import *; print(digest(record({name!r})))"
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == digest(record(name))


def test_the_tumult_has_every_fate():
    said = [command for _, _, commands in tumult(1) for command in commands]
    assert sum(isinstance(command, Dispatch) for command in said) > 50
    assert len({command.outcome for command in said if isinstance(command, Reject)}) > 2


@pytest.mark.parametrize("seed", range(29, 49))
def test_while_all_is_shut_it_decides_as_if_it_were_asked_at_each_event(seed, monkeypatch):
    """Progress is not followed by an offer while every endpoint surely stays closed."""
    all_closed_until, asked = controller.all_closed_until, []

    def until(endpoints, now):
        asked.append(now)
        return all_closed_until(endpoints, now)

    monkeypatch.setattr(controller, "all_closed_until", until)
    short, times = digest(tumult(seed)), len(asked)
    monkeypatch.setattr(controller, "all_closed_until", lambda endpoints, now: min(until(endpoints, now), now))
    assert digest(tumult(seed)) == short
    assert len(asked) - times > times, "it was spared some questions"


@pytest.mark.parametrize("seed", range(20))
def test_past_the_empty_queue_it_decides_as_if_it_had_been_queued(seed, monkeypatch):
    """A request that nobody waits before is neither entered nor offered: what it leaves behind is the same."""
    bypass, passed = AdmissionController._bypass_queue, []

    def noted(self, request, now):
        passed.append(bypass(self, request, now))
        return passed[-1]

    monkeypatch.setattr(AdmissionController, "_bypass_queue", noted)
    short = digest(tumult(seed))
    assert any(passed)
    monkeypatch.setattr(AdmissionController, "_bypass_queue", lambda *_: False)
    assert digest(tumult(seed)) == short
