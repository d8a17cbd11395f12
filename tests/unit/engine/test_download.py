from pathlib import Path

from engine.download import Download
from tests.unit.engine.hub import cached


def download(home: Path) -> Download:
    made = Download.of("org/m", {"HF_HOME": str(home)})
    assert made is not None
    return made


def test_one_launch_at_a_time_downloads(tmp_path: Path) -> None:
    first, second = download(tmp_path), download(tmp_path)
    assert first.take()
    assert first.take()
    assert not second.take()
    first.give_back()
    assert second.take()
    second.give_back()
    second.give_back()


def test_what_is_there_is_waited_for_by_nobody(tmp_path: Path) -> None:
    first, second = download(tmp_path), download(tmp_path)
    assert first.take()
    cached(tmp_path, "org/m", whole=True)
    assert second.take()
    first.give_back()


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("a file where a folder should be")
    assert download(tmp_path).take()


def test_folders_are_not_downloaded(tmp_path: Path) -> None:
    assert Download.of(str(tmp_path), {}) is None
    assert Download.of("no/such/folder", {}) is None
