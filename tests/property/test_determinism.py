"""The same events give the same commands, whenever and wherever they are told."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.policy import Band, Policy, Rule
from gateway.simulation.contenders import Contender
from gateway.simulation.machine import Machine
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Request

MACHINE = Machine(kv_tokens=6000, block_size=16)
POLICIES = {
    "default": Policy(),
    "gate": Policy(rule=Rule.HYSTERESIS, max_passes=0, ttft_target=None),
    "forecast": Policy(rule=Rule.FORECAST, weights={"b": 2.0}, bands={0: Band(ttft_target=2.0)}),
}


def crowd(requests=400):
    """More than the machine can do, of three flows, half of them with a common prefix."""
    random = Random(3)  # noqa: S311 - the same load every time
    return tuple(
        Request(
            arrival=number * 0.05,
            prompt=random.randint(150, 500),
            output=random.randint(5, 300),
            max_tokens=random.choice((100, 300, 1000)),
            shared=((random.randrange(2), 128),) if random.random() < 0.5 else (),
            flow=random.choice("abc"),
        )
        for number in range(requests)
    )


class Recorder:
    """A controller, and what it was told and said."""

    def __init__(self, policy):
        self.controller = AdmissionController(policy)
        self.heard = []

    def handle(self, event, now):
        commands = self.controller.handle(event, now)
        self.heard.append((event, now, list(commands)))
        return commands


def record(name):
    recorder = Recorder(POLICIES[name])
    simulate(crowd(), MACHINE, Contender(name, lambda *_: recorder))
    return recorder.heard


def digest(heard):
    return sha256(repr(heard).encode()).hexdigest()


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
    code = f"from tests.property.test_determinism import *; print(digest(record({name!r})))"
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
