from pathlib import Path

import pytest

from engine.phases import StartPhase
from engine.start_history import StartHistory
from engine.start_times import StartTimes

TIMES = StartTimes({StartPhase.LOADING: 40.04, StartPhase.SERVING: 1.0})


def test_the_next_kvgate_knows_what_the_last_start_took(tmp_path: Path) -> None:
    environ = {"KVGATE_CACHE": str(tmp_path)}
    StartHistory("org/m", ("--x",), environ).write(TIMES)
    assert StartHistory("org/m", ("--x",), environ).read().seconds == {
        StartPhase.LOADING: 40.0,
        StartPhase.SERVING: 1.0,
    }
    assert StartHistory("org/m", ("--y",), environ).read() == StartTimes()
    assert len(list((tmp_path / "starts").iterdir())) == 1


@pytest.mark.parametrize("kept", ["", "[]", '{"NO_PHASE": 1}', '{"LOADING": "x"}', '{"LOADING": null}'])
def test_what_cannot_be_read_is_done_without(kept: str, tmp_path: Path) -> None:
    history = StartHistory("m", (), {"KVGATE_CACHE": str(tmp_path)})
    history.write(TIMES)
    (file,) = (tmp_path / "starts").iterdir()
    file.write_text(kept)
    assert history.read() == StartTimes()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "starts").write_text("a file where a folder should be")
    history = StartHistory("m", (), {"KVGATE_CACHE": str(tmp_path)})
    history.write(TIMES)
    assert history.read() == StartTimes()
