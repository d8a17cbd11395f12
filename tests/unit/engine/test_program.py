import os
from pathlib import Path

import pytest

from engine import program
from engine.command import GIB, EngineSpec
from engine.lifecycle import Policy
from engine.program import Program, Role, memory_bytes


def spec(model: str) -> EngineSpec:
    return EngineSpec("m/0", model, "m", 18000, Path("/venv/bin/python"), env={"TOKEN": "s3cret"})


def test_an_engine_is_probed_where_it_listens_and_its_log_is_followed() -> None:
    made = Program.engine(spec("org/model"), Policy(max_restarts=1))
    assert (made.name, made.role, made.ready_url) == ("m/0", Role.ENGINE, "http://127.0.0.1:18000/health")
    assert made.follows_log
    assert made.policy.max_restarts == 1
    assert made.env["PATH"] == os.environ["PATH"]


def test_the_hub_is_not_asked_about_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert Program.engine(spec(str(tmp_path)), Policy()).env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in Program.engine(spec("org/model"), Policy()).env


def test_what_an_environment_holds_is_not_printed() -> None:
    assert "s3cret" not in repr(Program.engine(spec("m"), Policy()))


@pytest.mark.parametrize(("limit", "memory"), [("1073741824\n", GIB), ("max\n", 7 * GIB), (None, 7 * GIB)])
def test_a_containers_limit_counts_as_its_memory(
    limit: str | None, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(program, "_CGROUP_LIMIT", file)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 7 * GIB // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory_bytes() == memory
