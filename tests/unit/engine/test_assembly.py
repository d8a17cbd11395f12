import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engine.assembly import assembled, moved
from engine.diagnosis.sign import Diagnosis, Kind
from engine.host_memory import total_bytes
from engine.memory_ladder import Bounds
from engine.program import Engine, Refit, Role
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.command import KV_SPACE, cpu_kv_gib
from engine.vllm.kind import VLLM


def spec(model: str) -> EngineSpec:
    return EngineSpec(VLLM, "m/0", model, "m", 18000, Path("/venv/bin/python"))


def test_an_engine_is_probed_where_it_listens_and_its_log_is_followed() -> None:
    made = assembled(spec("org/model"), Policy(max_restarts=1))
    assert (made.name, made.role, made.ready_url) == ("m/0", Role.ENGINE, "http://127.0.0.1:18000/health")
    assert made.follows_log
    assert made.policy.max_restarts == 1
    assert made.env["PATH"] == os.environ["PATH"]


def test_the_hub_is_not_asked_about_a_folder_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert assembled(spec(str(tmp_path)), Policy()).env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in assembled(spec("org/model"), Policy()).env


def test_what_kvgate_chooses_is_part_of_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KV_SPACE, raising=False)
    made = assembled(spec("org/model"), Policy(), fit=Bounds())
    assert made.spec.env[KV_SPACE] == made.env[KV_SPACE] == str(cpu_kv_gib(total_bytes()))
    assert KV_SPACE not in assembled(replace(spec("m"), args=("--kv-cache-mem=2G",)), Policy()).env


def test_a_try_with_less_is_described_as_it_runs() -> None:
    bounds = Bounds(on_gpus=True)
    made = assembled(spec("org/model"), Policy(), fit=bounds, choices=("why",), described="d")
    assert made.refit is not None
    refit = made.refit(Diagnosis("CUDA out of memory", kind=Kind.MEMORY))
    assert isinstance(refit, Refit)
    less = refit.program
    assert isinstance(less, Engine)
    assert less.argv[-2:] == less.spec.args[-2:] == ("--max-num-seqs", "128")
    assert (less.described, less.choices) == ("d", ("why",))


def test_an_engine_that_moves_changes_its_port_and_nothing_else() -> None:
    """A length that happens to be the port stays what it was."""
    args = ("--max-model-len", "40960")
    made = assembled(replace(spec("org/model"), port=40960, args=args), Policy(), fit=Bounds(), described="d")
    made = replace(made, place="card", shares=True)
    back = moved(made, 18001)
    assert back.ready_url == "http://127.0.0.1:18001/health"
    assert back.argv == tuple("18001" if before == "--port" else word for before, word in pairwise(("", *made.argv)))
    assert back.argv[-2:] == args
    assert (back.env, back.described, back.refit) == (made.env, "d", None)
    assert (back.place, back.shares) == ("card", True)
