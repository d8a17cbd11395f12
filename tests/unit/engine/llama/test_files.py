from pathlib import Path

import pytest

from engine.llama.files import check_gguf, served_name
from engine.plan.hub import CheckpointError


def gguf(path: Path, head: bytes = b"GGUF\x03\0\0\0") -> str:
    path.write_bytes(head)
    return str(path)


def test_a_whole_file_and_a_whole_set_of_parts_are_taken(tmp_path: Path) -> None:
    check_gguf(gguf(tmp_path / "m.gguf"))
    first, _ = (gguf(tmp_path / f"big-0000{n}-of-00002.gguf") for n in (1, 2))
    check_gguf(first)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"", "is empty"),
        (b"GGML....", "is no GGUF file: it begins with b'GGML', not b'GGUF'"),
        (b"version https://git-lfs", "is no GGUF file: it begins with b'vers'"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_way_out(tmp_path: Path, head: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as refused:
        check_gguf(gguf(tmp_path / "m.gguf", head))
    assert "git lfs pull" in refused.value.remedy


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no file .*gone\.gguf"):
        check_gguf(str(tmp_path / "gone.gguf"))
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"folder\.gguf cannot be read: Is a directory"):
        check_gguf(str(folder))


def test_a_missing_part_is_named_and_so_is_the_first(tmp_path: Path) -> None:
    first = gguf(tmp_path / "big-00001-of-00003.gguf")
    with pytest.raises(CheckpointError, match=r"there is no file .*big-00002-of-00003\.gguf"):
        check_gguf(first)
    with pytest.raises(CheckpointError, match="is part 3 of a model") as refused:
        check_gguf(gguf(tmp_path / "big-00003-of-00003.gguf"))
    assert refused.value.remedy == f"Name the first: {first}."


def test_clients_name_a_model_by_its_file(tmp_path: Path) -> None:
    assert served_name("/models/SmolLM2.Q4_1.gguf") == "SmolLM2.Q4_1"
    assert served_name("big-00001-of-00003.gguf") == "big"
