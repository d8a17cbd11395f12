"""vLLM as a kind of engine: what its gateway has to know of it, and what kvgate chooses."""

import os
from pathlib import Path

import pytest

from engine.host_memory import total_bytes
from engine.memory_ladder import Bounds
from engine.spec import EngineSpec
from engine.vllm.command import KV_SPACE, cpu_kv_gib
from engine.vllm.kind import VLLM


def spec(*args: str) -> EngineSpec:
    return EngineSpec(VLLM, "m/0", "org/m", "m", 18000, Path("/python"), args=args)


def test_its_gateway_counts_with_its_tokenizer() -> None:
    assert VLLM.fronted("org/m", ()).tokenizer == "org/m"
    given = VLLM.fronted("org/m", ("--tokenizer=org/t", "--chat-template", "c.jinja", "--max-num-seqs", "7"))
    assert (given.tokenizer, given.chat_template, given.max_num_seqs) == ("org/t", "c.jinja", 7)


def test_each_data_parallel_rank_runs_as_many_sequences():
    assert VLLM.fronted("org/m", ("--max-num-seqs", "8", "-dp", "2")).max_num_seqs == 16
    assert VLLM.fronted("org/m", ("--data-parallel-size=2",)).max_num_seqs is None


@pytest.mark.parametrize("limit", ["1k", "lots", "0"])
def test_a_limit_that_it_refuses_is_no_limit(limit: str) -> None:
    assert VLLM.fronted("org/m", ("--max-num-seqs", limit)).max_num_seqs is None


def test_clients_name_it_by_folder_or_id(tmp_path: Path) -> None:
    assert VLLM.served_name(f"{tmp_path}/.") == tmp_path.name
    assert VLLM.served_name("org/m") == "org/m"


def test_its_cache_on_a_cpu_may_shrink_only_where_kvgate_chose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KV_SPACE, raising=False)
    tuned, bounds = VLLM.tuned(spec(), Bounds())
    chosen = cpu_kv_gib(total_bytes())
    assert (tuned.env, bounds) == ({KV_SPACE: str(chosen)}, Bounds(kv_space=chosen))
    given = spec("--kv-cache-memory-bytes", "2G")
    assert VLLM.tuned(given, Bounds()) == (given, Bounds())


def test_what_a_second_one_takes_is_not_known_of_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    missing = EngineSpec(VLLM, "m", str(tmp_path), "m", 1, Path("/python"))
    assert VLLM.shortage(missing, os.environ, (), 1 << 60) == "the size of its weights is not known"
