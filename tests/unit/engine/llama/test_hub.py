"""GGUF files of a hub, which is played by a server on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.llama.hub import fetched, is_on_hub
from engine.plan.gguf import is_gguf
from engine.plan.hub import CheckpointError
from tests.gguf_hub import gguf_hub

FILES = {
    "m-Q4_K_M.gguf": b"GGUF four",
    "m-Q8_0.gguf": b"GGUF eight",
    "m-Q4_K_M-long.gguf.md5": b"none",
    "mmproj-Q8_0.gguf": b"GGUF eyes",
    "big-F16-00001-of-00002.gguf": b"GGUF first",
    "big-F16-00002-of-00002.gguf": b"GGUF second",
}


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def environ(asked: list[str], tmp_path: Path) -> Iterator[dict[str, str]]:
    with gguf_hub(FILES, tmp_path, asked) as environ:
        yield environ


def quiet(_: str) -> None: ...


@pytest.mark.parametrize("name", ["owner/m-GGUF:Q4_K_M", "owner/m-GGUF:m-Q4_K_M.gguf", "owner/m-GGUF:q4_k_m"])
def test_a_file_is_named_whole_or_by_its_bits(environ: dict[str, str], name: str) -> None:
    assert is_gguf(name)
    assert is_on_hub(name)
    assert Path(fetched(name, environ, quiet)).read_bytes() == b"GGUF four"


def test_what_is_there_is_not_asked_for_again(environ: dict[str, str], asked: list[str]) -> None:
    said: list[str] = []
    first = fetched("owner/m-GGUF:Q8_0", environ, said.append)
    assert said == ["fetching m-Q8_0.gguf of owner/m-GGUF: 0.0 GiB"]
    asked.clear()
    assert fetched("owner/m-GGUF:Q8_0", {**environ, "HF_HUB_OFFLINE": "1"}, said.append) == first
    assert asked == []


def test_all_parts_come_along_and_the_first_is_named(environ: dict[str, str]) -> None:
    first = Path(fetched("owner/m-GGUF:F16", environ, quiet))
    assert first.name == "big-F16-00001-of-00002.gguf"
    assert (first.parent / "big-F16-00002-of-00002.gguf").read_bytes() == b"GGUF second"


@pytest.mark.parametrize("wanted", ["Q4", "Q2_K", "mmproj-Q8_0.gguf"])
def test_what_names_no_one_model_is_told_with_what_there_is(environ: dict[str, str], wanted: str) -> None:
    with pytest.raises(CheckpointError, match=rf"no one GGUF file named {wanted}\n.*m-Q4_K_M.gguf, m-Q8_0.gguf"):
        fetched(f"owner/m-GGUF:{wanted}", environ, quiet)


def test_offline_says_so(environ: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        fetched("owner/m-GGUF:Q4_K_M", {**environ, "HF_HUB_OFFLINE": "1"}, quiet)


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    with pytest.raises(CheckpointError, match="could not be reached"):
        fetched("owner/m-GGUF:Q4_K_M", nowhere, quiet)


@pytest.mark.parametrize("name", ["owner/name", "m.gguf", "http://a/b:c", "/models/m:x"])
def test_other_names_mean_no_file_of_a_hub(name: str) -> None:
    assert not is_on_hub(name)


def test_a_path_that_exists_is_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name:v1").mkdir()
    assert not is_on_hub("owner/name:v1")
    assert not is_gguf("owner/name:v1")
