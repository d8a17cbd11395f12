import json
from pathlib import Path
from typing import Any

import pytest

from engine.plan.checkpoint import INDEX, Source, read_checkpoint
from engine.plan.hub import CheckpointError
from engine.plan.shape import ModelShape
from tests.unit.engine.plan.hub_server import CONFIG, FakeHub, safetensors, serving

SHARDS = {"model-1.safetensors": safetensors(a=10, b=20), "model-2.safetensors": safetensors(c=30)}
MAP = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}


def index(total: int = 60) -> bytes:
    return json.dumps({"metadata": {"total_size": total}, "weight_map": MAP}).encode()


FILES: dict[str, bytes] = {"config.json": json.dumps(CONFIG).encode(), INDEX: index(), **SHARDS}


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def refused(model: object, environ: dict[str, str] | None = None, **more: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as raised:
        read_checkpoint(str(model), environ or {}, **more)
    assert raised.value.remedy
    return raised.value


def test_a_folder_is_read_by_the_headers_of_the_files_its_index_names(tmp_path: Path) -> None:
    extra = {"consolidated.safetensors": safetensors(again=60), "generation_config.json": b'{"max_new_tokens": 9}'}
    found = read_checkpoint(str(folder_of(tmp_path, {**FILES, **extra})), {})
    assert (found.source, found.weight_bytes, {one.dtype for one in found.tensors}) == (Source.FOLDER, 60, {"BF16"})
    assert found.generation_config == {"max_new_tokens": 9}
    assert found.tokenizer_config is None
    assert found.notes == ()
    assert found.weights(ModelShape.from_config(found.config)).file_bytes == 60


def test_an_index_that_counts_otherwise_is_noted(tmp_path: Path) -> None:
    found = read_checkpoint(str(folder_of(tmp_path, {**FILES, INDEX: index(61)})), {})
    assert found.notes == ("its index says 61 bytes of weights, its files have 60",)


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({"model.safetensors": safetensors(a=10)}, 10),
        ({"consolidated.safetensors": safetensors(a=14)}, 14),
        ({"pytorch_model-1.bin": bytes(100), "pytorch_model-2.bin": bytes(50), "training_args.bin": bytes(9)}, 150),
        ({"model.pt": bytes(70)}, 70),
        ({"model-Q4.gguf": bytes(40), "model-Q8.gguf": bytes(80)}, 80),
        ({}, 0),
    ],
)
def test_each_format_of_weights_is_counted(tmp_path: Path, files: dict[str, bytes], total: int) -> None:
    found = read_checkpoint(str(folder_of(tmp_path, {"config.json": FILES["config.json"], **files})), {})
    assert found.weight_bytes == total


def test_files_without_headers_bring_the_estimate_to_their_size(tmp_path: Path) -> None:
    files = {"config.json": FILES["config.json"], "pytorch_model.bin": bytes(500_000)}
    found = read_checkpoint(str(folder_of(tmp_path, files)), {})
    weights = found.weights(ModelShape.from_config(found.config))
    assert sum(part.bytes for part in weights.parts) == pytest.approx(500_000, rel=1e-3)
    assert not weights.exact


@pytest.mark.parametrize(
    ("files", "cause", "remedy"),
    [
        ({"config.json": None}, "has no config.json", "Transformers format"),
        ({"config.json": None, "params.json": b"{}"}, "has no config.json", "Mistral"),
        ({"config.json": None, "adapter_config.json": b"{}"}, "has no config.json", "LoRA"),
        ({"config.json": None, "m.gguf": b""}, "has no config.json", "GGUF"),
        ({"config.json": b"{"}, "config.json is not JSON", "fetch the model again"),
        ({"config.json": b"[]"}, "no object", "fetch the model again"),
        ({INDEX: b"{}"}, "weight_map", "fetch the model again"),
        ({"model-2.safetensors": None}, "lacks 1 of the 2 files", "download was cut off"),
        ({"model-2.safetensors": SHARDS["model-2.safetensors"][:-1]}, "no whole safetensors", "cut off"),
        ({"model-2.safetensors": SHARDS["model-2.safetensors"][:20]}, "within its header", "cut off"),
        ({"model-2.safetensors": b"version https://git-lfs"}, "no whole safetensors", "fetch it again"),
    ],
)
def test_a_broken_folder_says_what_is_broken(
    tmp_path: Path, files: dict[str, bytes | None], cause: str, remedy: str
) -> None:
    merged = {name: data for name, data in {**FILES, **files}.items() if data is not None}
    error = refused(folder_of(tmp_path, merged))
    assert cause in error.cause
    assert remedy in error.remedy


def test_a_folder_that_is_not_there_is_no_name_on_a_hub(tmp_path: Path) -> None:
    assert "there is no folder" in refused(tmp_path / "missing").cause


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert "is a file" in refused(tmp_path / "m.gguf").cause


def test_a_model_on_the_hub_is_read_by_small_requests(tmp_path: Path) -> None:
    with serving(FakeHub({**FILES, "tokenizer_config.json": b'{"model_max_length": 8}'})) as hub:
        found = read_checkpoint("owner/name", {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)})
    assert (found.source, found.where, found.weight_bytes) == (Source.HUB, hub.url, 60)
    assert found.config == CONFIG
    assert found.tokenizer_config == {"model_max_length": 8}


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({"model.safetensors": safetensors(a=10)}, 10),
        ({"weights-a.safetensors": safetensors(a=10), "weights-b.safetensors": safetensors(b=4)}, 14),
        ({"pytorch_model.bin": bytes(100)}, 100),
    ],
)
def test_a_model_on_the_hub_without_an_index_is_read_by_what_it_lists(
    tmp_path: Path, files: dict[str, bytes], total: int
) -> None:
    with serving(FakeHub({"config.json": FILES["config.json"], **files})) as hub:
        found = read_checkpoint("owner/name", {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)})
    assert found.weight_bytes == total


def test_a_revision_is_asked_for(tmp_path: Path) -> None:
    with serving(FakeHub(FILES, revision="v2")) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
        assert read_checkpoint("owner/name", environ, revision="v2").weight_bytes == 60
        assert "no revision main" in refused("owner/name", environ).cause


@pytest.mark.parametrize(
    ("missing", "cause"), [("config.json", "has no config.json"), ("model-2.safetensors", "names model-2.safetensors")]
)
def test_a_model_on_the_hub_that_lacks_a_file_says_which(tmp_path: Path, missing: str, cause: str) -> None:
    files = {name: data for name, data in FILES.items() if name != missing}
    with serving(FakeHub(files)) as hub:
        assert cause in refused("owner/name", {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}).cause


def cached(home: Path, files: dict[str, bytes]) -> None:
    repository = home / "hub" / "models--owner--name"
    folder_of(repository / "snapshots" / "abc", files)
    folder_of(repository / "refs", {"main": b"abc"})


def test_a_model_in_the_hubs_cache_needs_no_network(tmp_path: Path) -> None:
    cached(tmp_path, FILES)
    environ = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}
    found = read_checkpoint("owner/name", environ)
    assert (found.source, found.weight_bytes) == (Source.CACHE, 60)
    assert read_checkpoint("owner/name", environ, revision="abc").source is Source.CACHE


def test_a_cache_without_all_weights_is_completed_from_the_hub(tmp_path: Path) -> None:
    cached(tmp_path, {"config.json": FILES["config.json"], INDEX: FILES[INDEX]})
    with serving(FakeHub(FILES)) as hub:
        found = read_checkpoint("owner/name", {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url})
    assert (found.source, found.weight_bytes) == (Source.HUB, 60)


def test_offline_a_model_that_is_not_cached_is_said_without_asking_a_network(tmp_path: Path) -> None:
    error = refused(
        "owner/name", {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:1"}
    )
    assert "HF_HUB_OFFLINE" in error.cause
    assert "Unset" in error.remedy


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("models/lama", "Did you mean models/llama?"),
        ("models/other", "Check the path."),
        ("lama-3", "Did you mean llama-3?"),
        ("./models/lama", "Did you mean models/llama?"),
        ("no/such/folder", "Check the path."),
        ("~/no-such-folder-at-all", ""),
    ],
)
def test_a_mistyped_folder_is_no_such_folder_and_the_network_is_not_asked(
    given: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("models/llama", "llama-3"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    error = refused(given, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert error.cause == f"there is no folder {given}"
    assert error.remedy.startswith(near)


def test_where_the_hub_is_out_of_reach_a_missing_folder_is_said_first(tmp_path: Path) -> None:
    error = refused("owner/name", {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)})
    assert error.cause.startswith("there is no folder owner/name here, and http://127.0.0.1:9 could not be reached")
