"""The table of a profile, and kvgate profiled for a moment."""

import os

import pytest

from loadtests import profile, relay_cost
from loadtests.profile import REST, by_stage, dearest, profiled, read, stage
from loadtests.relay_cost import Bench, Load
from loadtests.sampler import LOOP
from tests.fakes.tokenizer import make_tokenizer

SERVE = "gateway.relay.gateway:Gateway._serve"
COUNT = "gateway.tokens.local_count:count_body"
DUMP = "json.encoder:dumps"


@pytest.mark.parametrize(
    ("stack", "at"),
    [
        ((SERVE,), "the way between them"),
        ((SERVE, COUNT), "count: the rest"),
        ((SERVE, COUNT, DUMP), "count: the rest"),
        ((SERVE, COUNT, "gateway.tokens.tokenizer:backend_encoded"), "count: tokenize"),
        ((SERVE, "gateway.admission.controller:AdmissionController.handle"), "admission core"),
        ((LOOP,), "event loop and kernel, reading"),
        ((DUMP,), REST),
    ],
)
def test_a_stack_is_at_the_stage_of_its_innermost_frame_that_has_one(stack, at):
    assert stage(stack) == at


def test_stages_and_functions_are_summed_the_dearest_first():
    stacks = {(SERVE,): 1.0, (SERVE, COUNT): 2.0, (SERVE, COUNT, DUMP): 3.0, (DUMP,): 0.5}
    assert list(by_stage(stacks).items()) == [("count: the rest", 5.0), ("the way between them", 1.0), (REST, 0.5)]
    assert dearest(stacks, 2) == {COUNT: 5.0, SERVE: 1.0}


async def test_kvgate_is_profiled_from_socket_to_socket(monkeypatch, tmp_path):
    core = min(os.sched_getaffinity(0))
    for module, name in ((relay_cost, "LOAD_CORE"), (profile, "PROXY_CORE")):
        monkeypatch.setattr(module, name, core)
    monkeypatch.setattr(profile, "WARM_UP_SECONDS", 0.1)
    bench = Bench("", str(make_tokenizer(tmp_path)), 1.0)
    requests, out = await profiled(bench, Load(0, rate=200.0), tmp_path)
    stacks = read(out, requests)
    assert requests > 0
    assert any(frame.startswith("gateway.relay.gateway:Gateway") for stack in stacks for frame in stack)
    assert not any(frame.startswith("asyncio.runners:") for stack in stacks for frame in stack)
    assert by_stage(stacks).keys() <= {name for _, name in profile.STAGES} | {REST}
