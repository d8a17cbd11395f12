import os
import shutil
from pathlib import Path

import pytest

from gateway.tokens.hub import digest


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "tokenizer.model"])
def test_other_contents_have_another_digest_though_size_and_time_are_the_same(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    without = digest(tmp_path, cached=False)
    (tmp_path / name).write_text("[1]")
    one = digest(tmp_path, cached=False)
    (tmp_path / name).write_text("[2]")
    os.utime(tmp_path / name, ns=(0, 0))
    other = digest(tmp_path, cached=False)
    (tmp_path / name).write_text("[1]")
    assert len({without, one, other}) == 3
    assert digest(tmp_path, cached=False) == one


def test_what_makes_no_tokenizer_changes_no_digest(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "copy")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "README.md").write_text("read me")
    assert digest(folder, cached=False) == digest(tokenizer_folder, cached=False)


def test_what_others_add_to_a_hubs_cache_changes_no_digest(tokenizer_folder: Path, tmp_path: Path) -> None:
    """An engine that shares the cache may fetch all of a model later."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "snapshot")
    before = digest(folder, cached=True)
    (folder / "merges.txt").touch()
    assert digest(folder, cached=True) == before != digest(folder, cached=False)
