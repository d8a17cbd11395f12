import json

import pytest

from engine.gpu import Gpu
from gateway.config.engine import EngineSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.serve.foresight import foreseen
from tests.unit.engine.plan.models import LLAMA_3_70B, LLAMA_8B

GIB = 2**30


@pytest.fixture
def cards(monkeypatch):
    """The cards of this machine: one RTX 4090, nothing on it."""
    here = [Gpu(0, "NVIDIA GeForce RTX 4090", 24564 * 2**20, 24000 * 2**20)]
    monkeypatch.setattr("gateway.serve.hardware.gpus", lambda: tuple(here))
    monkeypatch.setattr("gateway.serve.hardware.holders", lambda _: ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    return here


@pytest.fixture
def said(tmp_path):
    def say(config, *args, **more):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        engine = EngineSettings(model=str(folder), args=args, **more)
        return list(foreseen(Settings(models=(ModelSettings(engine=engine),))))

    return say


def test_what_fits_is_not_spoken_of(cards, said):
    assert said(LLAMA_8B, "--max-model-len", "8192") == []


def test_a_context_that_does_not_fit_is_foreseen_with_what_would(cards, said):
    (line,) = said(LLAMA_8B)
    assert line.startswith("model: it does not fit on 1 x rtx-4090 as it is described, by ")
    assert "it would with --" in line
    assert "--max-model-len" in line


def test_a_share_that_serve_fills_in_is_not_spoken_of(cards, said):
    cards[0] = Gpu(0, cards[0].name, cards[0].total_bytes, 22000 * 2**20)
    assert said(LLAMA_8B, "--max-model-len", "8192") == []


def test_a_model_that_nothing_makes_fit_names_what_would_hold_it(cards, said):
    (line,) = said(LLAMA_3_70B)
    assert "does not fit on 1 x rtx-4090" in line
    assert "the nearest that fits: 8 x rtx-4090" in line


def test_what_vllm_refuses_whatever_the_memory_is_said_as_that(cards, said):
    cards += [Gpu(n, cards[0].name, cards[0].total_bytes, cards[0].free_bytes) for n in (1, 2)]
    (line,) = said(LLAMA_8B, "--tensor-parallel-size", "3")
    assert "vLLM will refuse it" in line


def test_a_cpu_with_a_small_cache_is_foreseen(cards, said):
    cards.clear()
    (line,) = said(LLAMA_8B | {"max_position_embeddings": 65536}, env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert "on 1 x the CPU" in line


def test_of_what_nobody_can_tell_nothing_is_said(cards, said):
    assert said({"architectures": ["Strange"], "model_type": "strange"}) == []
    assert list(foreseen(Settings(models=(ModelSettings(engine=EngineSettings(model="no/such/model")),)))) == []
