"""What makes two programs the same, and what of one may be printed."""

from dataclasses import replace
from pathlib import Path

from engine.assembly import assembled
from engine.memory_ladder import Bounds
from engine.program import Program, Role
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.kind import VLLM

SPEC = EngineSpec(VLLM, "m/0", "org/model", "m", 18000, Path("/venv/bin/python"), env={"TOKEN": "s3cret"})


def test_neither_an_environment_nor_an_input_is_printed() -> None:
    """A gateway reads its settings, with every key, from its input."""
    assert "s3cret" not in repr(assembled(SPEC, Policy()))
    gateway = Program("gateway", Role.GATEWAY, ("python",), {"TOKEN": "s3cret"}, stdin=b'{"api_key": "sk-0123"}')
    assert "gateway" in repr(gateway)
    assert "s3cret" not in repr(gateway)
    assert "sk-0123" not in repr(gateway)


def test_what_is_made_anew_for_each_launch_makes_no_other_program() -> None:
    """A reload would replace an engine for its download, its history or its refit, which are objects of their own."""
    made, again = (assembled(SPEC, Policy(), fit=Bounds(), described="d") for _ in range(2))
    assert made.download is not again.download
    assert made == again
    assert assembled(replace(SPEC, env={"TOKEN": "new"}), Policy(), fit=Bounds(), described="d") != made
    assert replace(again, described="other") != made
