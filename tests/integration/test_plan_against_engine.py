"""A plan's KV cache and weights against what a real vLLM makes of the same models, in one process of its own."""

import json
from pathlib import Path

import pytest

from engine.plan.checkpoint import read_checkpoint
from engine.plan.shape import ModelShape
from tests.proof.plan_accuracy import Row, measure, table
from tests.proof.plan_models import ARGS, CASES, Case

pytestmark = pytest.mark.engine

TOLERANCE = 0.02
FAMILIES = 24
"""Of the cases vLLM must have answered; another CPU may lack the kernels of one or two."""


@pytest.fixture(scope="module")
def rows(quick_python: Path, random_model: Path) -> dict[str, Row]:
    config = json.loads((random_model / "config.json").read_text())
    real = Case("random", "a checkpoint with files", config, {**ARGS, "dtype": "float32"})
    measured = measure(quick_python, (*CASES, real))
    print(table(measured))
    return {row.name: row for row in measured}


def test_the_tokens_of_kv_cache_are_what_vllm_logs(rows: dict[str, Row]) -> None:
    started = [row for row in rows.values() if not row.error]
    assert len(started) >= FAMILIES, [row.error for row in rows.values() if row.error]
    assert {row.name: row.off for row in started if abs(row.off) > TOLERANCE} == {}


def test_weights_estimated_from_a_config_are_near_what_vllm_loads(rows: dict[str, Row]) -> None:
    dense = ("llama-gqa", "qwen3", "mixtral", "gemma3", "deepseek-v3", "phi3", "gpt-oss", "llama-tp2", "gemma3-pp2")
    assert {name: rows[name].weights_off for name in dense if abs(rows[name].weights_off) > TOLERANCE} == {}


def test_weights_read_from_files_are_exactly_what_vllm_loads(rows: dict[str, Row], random_model: Path) -> None:
    checkpoint = read_checkpoint(str(random_model))
    shape = ModelShape.from_config(checkpoint.config)
    loaded = checkpoint.weights(shape).per_rank(shape, dtype="float32")
    assert loaded == (checkpoint.weight_bytes,) == (rows["random"].engine_bytes,)
