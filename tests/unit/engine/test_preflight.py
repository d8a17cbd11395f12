from pathlib import Path

import pytest

from engine.arguments import Arguments
from engine.plan.hub import CheckpointError
from engine.preflight import check_model, is_downloaded
from tests.unit.engine.hub import cached, hub

OTHER_SOURCES = ("--load-format=runai_streamer", "--config-format=mistral", "--hf-config-path=x", "--config=x.yaml")


@pytest.mark.parametrize(
    ("model", "more", "says"),
    [
        ("org/gated", {}, "org/gated is gated, and no token is set"),
        ("org/gated", {"HF_TOKEN": "t"}, "org/gated is gated, and your token has no access to it"),
        ("org/missing", {}, "has no model org/missing"),
        ("org/gone", {"HF_HUB_OFFLINE": "1"}, "is not in the hub cache"),
        ("no/such/folder", {}, "there is no folder no/such/folder"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused_with_the_way_out(
    model: str, more: dict[str, str], says: str, tmp_path: Path
) -> None:
    with hub(tmp_path, **more) as environ, pytest.raises(CheckpointError, match=says) as refused:
        check_model(model, Arguments(), environ)
    assert refused.value.remedy


def test_a_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    with pytest.raises(CheckpointError, match=r"127\.0\.0\.1:9 could not be reached"):
        check_model("org/any", Arguments(), environ)


def test_what_is_on_this_machine_needs_no_hub(tmp_path: Path) -> None:
    cached(tmp_path, "org/here", whole=True)
    check_model("org/here", Arguments(), {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)})


def test_a_folder_cut_off_in_its_download_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((500).to_bytes(8, "little"))
    with pytest.raises(CheckpointError, match="no whole safetensors file"):
        check_model(str(tmp_path), Arguments(), {})


def test_a_folder_without_weights_is_refused_unless_they_are_to_be_made_up(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(CheckpointError, match="there are no weights in") as refused:
        check_model(str(tmp_path), Arguments(), {})
    assert "--load-format dummy" in refused.value.remedy
    check_model(str(tmp_path), Arguments.parse(["--load-format", "dummy"]), {})
    (tmp_path / "consolidated.00.pth").write_bytes(b"0")
    check_model(str(tmp_path), Arguments(), {})


@pytest.mark.parametrize(
    ("model", "args", "environ"),
    [
        ("s3://bucket/model", (), {}),
        ("org/gone:Q4_K_M", (), {}),
        ("org/gone", (), {"VLLM_USE_MODELSCOPE": "True"}),
        *(("org/gone", (argument,), {}) for argument in OTHER_SOURCES),
    ],
)
def test_what_engines_load_in_other_ways_is_left_to_them(
    model: str, args: tuple[str, ...], environ: dict[str, str], tmp_path: Path
) -> None:
    with hub(tmp_path) as of_hub:
        check_model(model, Arguments.parse(args), {**of_hub, **environ})
        with pytest.raises(CheckpointError):
            check_model("org/gone", Arguments(), of_hub)


def test_a_model_in_one_file_is_left_to_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    check_model(str(file), Arguments(), {})


def test_mistrals_own_format_lacks_nothing_that_an_engine_needs(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    check_model(str(tmp_path), Arguments(), {})


def test_only_a_whole_model_counts_as_downloaded(tmp_path: Path) -> None:
    cached(tmp_path, "org/half", whole=False)
    cached(tmp_path, "org/whole", whole=True)
    environ = {"HF_HOME": str(tmp_path)}
    assert [is_downloaded(f"org/{name}", environ) for name in ("none", "half", "whole")] == [False, False, True]
