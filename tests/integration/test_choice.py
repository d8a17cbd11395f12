"""The ways down that a CPU has, chosen by kvgate and run: vLLM with another checkpoint, and llama-server."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from engine.demo_model import smollm2_gguf
from tests.integration.kvgate import PATIENT, Kvgate, serving
from tests.ports import free_port
from tests.unit.engine.plan.models import LLAMA_8B

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp", reason="there is no build of it for this machine", exc_type=ImportError)

SMALL = ["--max-model-len", "2048", "--dtype", "float32", "--enforce-eager"]
START = 300.0


def too_large(folder: Path) -> str:
    """A model whose weights no machine has room for: a file with a hole of 2 TiB."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    rows = 2**28
    header = {"lm_head.weight": {"dtype": "BF16", "shape": [rows, 4096], "data_offsets": [0, rows * 8192]}}
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + rows * 8192)
    return str(folder)


@pytest.fixture(scope="module")
def kvgate(quick_python: Path, random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    folder = tmp_path_factory.mktemp("choice")
    env = {"VLLM_CPU_KVCACHE_SPACE": 1}
    of_vllm = {"choice": "auto", "args": SMALL, "python": str(quick_python), "env": env}
    large = too_large(folder / "large")
    models = [
        {"name": "other", "engine": {**of_vllm, "model": large, "alternatives": [str(random_model)]}},
        {"name": "down", "engine": {**of_vllm, "model": large, "alternatives": [str(smollm2_gguf())]}},
    ]
    config = folder / "kvgate.yaml"
    config.write_text(yaml.safe_dump({"models": models}))
    with serving(folder / "log", free_port(), "--config", str(config), environ=PATIENT) as running:
        running.wait_healthy(2, START)
        yield running


@pytest.mark.parametrize(("model", "kind"), [("other", "vllm"), ("down", "llama-server")])
def test_each_way_answers_under_the_name_of_its_model(kvgate: Kvgate, model: str, kind: str) -> None:
    asked = {"model": model, "prompt": "Once upon a time", "max_tokens": 4}
    answer = httpx.post(f"{kvgate.url}/v1/completions", json=asked, timeout=START, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["model"], answer.json()["usage"]["completion_tokens"]) == (model, 4)
    (endpoint,) = (endpoint for endpoint in kvgate.state()["endpoints"] if endpoint["model"] == model)
    assert endpoint["kind"] == kind


def test_the_ladder_is_told_with_what_was_taken_and_why(kvgate: Kvgate) -> None:
    lines = [json.loads(line) for line in kvgate.log.read_text().splitlines() if line.startswith("{")]
    of_model = {line["event"].partition(":")[0]: line for line in lines if "rungs" in line}
    taken = {
        name: [rung["name"].partition(":")[0] for rung in line["rungs"] if rung["remark"] == "taken"]
        for name, line in of_model.items()
    }
    assert taken == {"other": ["vLLM, alternative"], "down": ["llama-server, all on the host"]}
    assert all(line["rungs"][0]["remark"].endswith("short") for line in of_model.values())
    assert "an alternative that was named" in of_model["down"]["event"]
