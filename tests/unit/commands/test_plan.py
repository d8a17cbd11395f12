import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from engine.gpu import Gpu, Holder
from engine.plan.hub import CheckpointError
from gateway.cli import command_line
from gateway.commands.plan import DOES_NOT_FIT
from gateway.runtime.failure import USAGE_ERROR
from tests.unit.engine.plan.models import LLAMA_3_70B, LLAMA_8B
from tests.unit.engine.plan.written import LLAMA, tensors, written

GIB = 2**30


@pytest.fixture
def folder(tmp_path):
    """A model by its config alone: the weights are estimated."""
    path = tmp_path / "llama-8b"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA_8B))
    return path


@pytest.fixture(autouse=True)
def cards(monkeypatch):
    """The cards of this machine: none, until a test puts some there."""
    here = []
    monkeypatch.setattr("gateway.serve.hardware.gpus", lambda: tuple(here))
    monkeypatch.setattr("gateway.serve.hardware.holders", lambda index: (Holder(4711, GIB),) if index == 0 else ())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return here


def run(*arguments):
    return CliRunner().invoke(command_line(), ["plan", *map(str, arguments)])


def planned(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code in {0, DOES_NOT_FIT}, result.output
    return json.loads(result.stdout)


def test_a_card_that_is_not_here_is_planned_for(folder):
    result = run(folder, "--gpu", "h100")
    assert result.exit_code == 0, result.output
    assert "on 1 x h100 (79.19 GiB): fits" in " ".join(result.output.split())


def test_a_context_that_does_not_fit_is_a_change_with_its_flag(folder):
    told = planned(folder, "--gpu", "rtx-4090")
    assert told["verdict"] == "fits with changes"
    assert told["command"][:3] == ["vllm", "serve", str(folder)]
    assert "--max-model-len" in told["command"]


def test_what_stands_after_two_dashes_is_left_as_it_is(folder):
    result = run(folder, "--gpu", "rtx-4090", "--gpus", 2, "--json", "--", "--max-model-len", "8k", "--enforce-eager")
    told = json.loads(result.stdout)
    assert told["verdict"] == "fits"
    assert told["command"][3:] == ["--max-model-len", "8k", "--enforce-eager", "--tensor-parallel-size", "2"]
    assert told["settings"]["tensor_parallel"] == 2


def test_what_does_not_fit_ends_with_1(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_70B))
    result = run(tmp_path, "--vram", "8GiB")
    assert result.exit_code == DOES_NOT_FIT
    assert "does not fit" in result.output
    assert "The nearest that fits" in result.output


def test_traffic_decides(folder, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival,prompt,output", *(f"{n * 0.1},{1000 + n},200" for n in range(200))]))
    told = planned(folder, "--gpu", "rtx-4090", "--traffic", trace)
    assert told["settings"]["max_model_len"] == 1536
    assert told["traffic"]["requests"] == 200


def test_the_cards_of_this_machine_are_read_with_what_is_free(folder, cards):
    cards += [
        Gpu(0, "NVIDIA H100 80GB HBM3", 81559 * 2**20, 30 * GIB),
        Gpu(1, "NVIDIA H100 80GB HBM3", 81559 * 2**20, 79 * GIB),
    ]
    told = planned(folder)
    assert told["hardware"]["name"] == "h100"
    assert (told["hardware"]["count"], told["hardware"]["processes"]) == (1, []), "the busy one is left alone"
    both = planned(folder, "--gpus", 2)
    assert both["hardware"]["free_bytes"] == 30 * GIB
    assert both["hardware"]["processes"] == [{"pid": 4711, "used_bytes": GIB}]
    assert "--gpu-memory-utilization" in both["command"]


def test_cards_that_are_hidden_are_not_planned_with(folder, cards, monkeypatch):
    cards += [Gpu(index, "NVIDIA L4", 23034 * 2**20, 22 * GIB) for index in range(4)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert planned(folder)["hardware"]["count"] == 2


def test_without_a_card_it_is_planned_for_the_cpu(folder):
    result = run(folder, "--", "--kv-cache-memory-bytes", "2G", "--max-model-len", "4096")
    assert "on a CPU" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a MODEL"),
        (("no/such/model/folder",), "no/such/model/folder"),
        (("FOLDER", "--gpu", "h1000"), "the nearest are"),
        (("FOLDER", "--gpu", "h100", "--vram", "80GiB"), "give one"),
        (("FOLDER", "--vram", "much"), "write 24GiB"),
        (("FOLDER", "--gpus", "2"), "name one with --gpu or --vram"),
        (("FOLDER", "--gpu", "h100", "--", "-tp", "2"), "there is 1"),
        (("FOLDER", "--gpu", "h100", "--gpus", "3", "--", "-tp", "3"), "32 attention heads"),
        (("FOLDER", "--gpu", "h100", "--", "--max-model-len", "long"), "--max-model-len long"),
        (("FOLDER", "--gpu", "h100", "--traffic", "/missing.csv"), "/missing.csv"),
    ],
)
def test_what_cannot_be_planned_is_told(folder, arguments, said):
    result = run(*(str(folder) if word == "FOLDER" else word for word in arguments))
    assert result.exit_code == USAGE_ERROR
    assert said in result.stderr
    assert result.stdout == ""


def test_a_model_of_unknown_shape_is_told(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    result = run(tmp_path, "--gpu", "h100")
    assert result.exit_code == USAGE_ERROR
    assert "cannot be planned" in result.stderr


def test_published_starts_are_printed():
    result = run("--published")
    assert result.exit_code == 0
    assert "within the range" in result.output


def test_other_commands_do_not_load_it():
    code = "import sys; from gateway.cli import command_line; command_line()"
    code += "; sys.exit('engine.plan.planner' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_revision_that_is_given_is_planned(monkeypatch):
    def read(model, *, revision):
        raise CheckpointError(f"{model} at {revision}", "")

    monkeypatch.setattr("engine.plan.checkpoint.read_checkpoint", read)
    assert "org/m at v2" in run("org/m", "--", "--revision", "v2").output


def test_what_is_moved_to_the_host_must_fit_into_what_is_free_there(folder, cards, monkeypatch):
    cards.append(Gpu(0, "NVIDIA GeForce RTX 4090", 24564 * 2**20, 24000 * 2**20))
    asked = []
    monkeypatch.setattr("engine.host_memory.free_bytes", lambda: asked.append(None) or GIB)
    planned(folder)
    assert asked


@pytest.fixture
def gguf(tmp_path):
    return written(tmp_path / "m.gguf", LLAMA, tensors())


def test_a_gguf_file_is_planned_for_llama_server(gguf):
    result = run(gguf, "--gpu", "rtx3060")
    assert result.exit_code == 0, result.output
    assert f"llama-server --model {gguf} --fit off --gpu-layers 5" in result.output
    assert "all on the host" in result.output


def test_what_is_given_for_llama_server_stays(gguf):
    told = json.loads(run(gguf, "--vram", "8GiB", "--json", "--", "-ngl", "2", "-c", "1024").stdout)
    assert (told["settings"]["gpu_layers"], told["settings"]["context"]) == (2, 1024)
    assert told["command"][-4:] == ["-ngl", "2", "-c", "1024"]


def test_a_gguf_file_is_planned_on_this_machine(gguf, cards, monkeypatch):
    monkeypatch.setattr("engine.host_cores.cores", lambda: 6)
    assert planned(gguf)["settings"]["threads"] == 6, "the host computes"
    cards.append(Gpu(0, "NVIDIA GeForce RTX 3060", 12288 * 2**20, 9 * GIB))
    told = planned(gguf)
    assert told["machine"]["hardware"]["free_bytes"] == 9 * GIB
    assert (told["settings"]["gpu_layers"], told["settings"]["threads"]) == (5, None)


def test_a_gguf_file_for_which_there_is_no_room_ends_with_1(gguf, cards, monkeypatch):
    monkeypatch.setattr("engine.host_memory.free_bytes", lambda: 0)
    cards.append(Gpu(0, "NVIDIA GeForce RTX 3060", 12288 * 2**20, GIB))
    result = run(gguf)
    assert result.exit_code == DOES_NOT_FIT
    assert "does not fit" in result.output


def test_traffic_decides_the_context_and_slots_of_a_llama_server(gguf, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["arrival,prompt,output", *(f"{n * 0.1},{1000 + n},200" for n in range(200))]))
    told = planned(gguf, "--gpu", "rtx3060", "--traffic", trace)
    assert told["tokens"] == 1399
    assert told["settings"]["context"] == 1536


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no GGUF file"), (b"version https://git-lfs", "git lfs pull"), (None, "there is no file")],
)
def test_a_gguf_file_that_cannot_be_planned_is_told(tmp_path, content, said):
    path = tmp_path / "m.gguf"
    if content is not None:
        path.write_bytes(content)
    result = run(path, "--gpu", "rtx3060")
    assert result.exit_code == USAGE_ERROR
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("given", "said"), [(("-c", "long"), "-c long"), (("-ctk", "f17"), "none of")])
def test_an_argument_for_llama_server_that_cannot_be_read_is_told(gguf, given, said):
    result = run(gguf, "--gpu", "rtx3060", "--", *given)
    assert result.exit_code == USAGE_ERROR
    assert said in result.stderr


def test_a_file_that_is_no_language_model_is_told(tmp_path):
    path = written(tmp_path / "mmproj.gguf", LLAMA | {"general.architecture": "clip"}, tensors())
    result = run(path, "--gpu", "rtx3060")
    assert result.exit_code == USAGE_ERROR
    assert "--mmproj" in result.stderr


def test_the_ladder_has_the_rungs_of_both_engines(folder, gguf):
    told = planned(folder, "--gpu", "rtx-4090", "--ladder", "--alternative", gguf)
    assert {rung["engine"] for rung in told["rungs"]} == {"vllm", "llama-server"}
    assert told["rungs"][told["taken"]]["name"] == "vLLM"
    assert "taken" in run(folder, "--gpu", "rtx-4090", "--ladder").output


def test_what_is_allowed_is_taken(folder):
    assert run(folder, "--vram", "8GiB", "--ladder").exit_code == DOES_NOT_FIT
    told = planned(folder, "--gpu", "rtx-4080", "--ladder", "--allow", "weights", "--allow", "kv-cache")
    assert "--quantization" in told["rungs"][told["taken"]]["command"]


def test_the_ladder_of_a_gguf_file_is_llama_servers(gguf):
    told = planned(gguf, "--gpu", "rtx3060", "--ladder")
    assert {rung["engine"] for rung in told["rungs"]} == {"llama-server"}


def test_a_gguf_file_that_cannot_be_read_is_told_in_the_ladder(folder, tmp_path):
    result = run(folder, "--gpu", "h100", "--ladder", "--alternative", tmp_path / "none.gguf")
    assert result.exit_code == USAGE_ERROR
    assert "there is no file" in result.stderr
