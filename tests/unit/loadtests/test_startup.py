import os
import re
import sys
from pathlib import Path

import pytest

from loadtests import startup
from loadtests.startup import memory, role
from tests.fakes.tokenizer import make_tokenizer


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m gateway serve --endpoint http://a", "gateway or its parent"),
        ("python -P -m gateway.serve.child --listen=3 --owner-at=/run/x", "front"),
        ("python -P -m gateway.serve.child --owner=4 --fronts=2", "owner"),
        ("python -c from multiprocessing.spawn import spawn_main; spawn_main(x=1)", "counting"),
        ("python -c from multiprocessing.resource_tracker import main;main(5)", "resource tracker"),
        ("sleep 5", "other"),
    ],
)
def test_processes_are_told_apart_by_their_command_line(command: str, name: str) -> None:
    assert role(command.split(" ")) == name


def test_memory_is_that_of_a_process_and_of_all_below_it() -> None:
    found = memory(os.getpid())
    own = [size for name, size in found.items() if name.startswith("RSS MB")]
    assert own
    assert all(size > 1 for size in own)
    assert found["PSS MB, all"] <= sum(own)


async def test_a_start_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "IDLE_SECONDS", 0.1)
    measured = await startup.measure(f"{sys.executable} -m gateway", make_tokenizer(tmp_path), "alone")
    assert 0 < measured["CPU s to listening"] <= measured["CPU s to prompts counted"] < 60
    assert [name for name in measured if re.match("RSS MB, gateway", name)]
