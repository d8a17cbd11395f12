import os
import stat
from dataclasses import replace

import pytest

from gateway.admission.events import Learned, Outputs
from gateway.record.learned import LearnedFiles, revision, state_folder
from tests.full_disk import needs_root, small_disk

LEARNED = Learned((5, None, 70), (Outputs(12, 11, tools=True, streamed=False, lengths=(5, None)),))


@pytest.fixture
def files(tmp_path):
    return LearnedFiles(tmp_path / "state")


def kept(tmp_path):
    return [path for path in (tmp_path / "state").rglob("*") if path.is_file()]


def test_what_was_kept_is_read_again(files):
    files.write("m", "org/model", LEARNED)
    assert files.read("m", "org/model") == LEARNED


def test_another_model_or_root_has_a_file_of_its_own(files):
    files.write("m", "org/model", LEARNED)
    assert files.read("n", "org/model") is None
    assert files.read("m", "org/other") is None


def test_another_model_in_the_same_folder_has_learned_nothing(files, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"a": 1}')
    files.write("m", str(tmp_path), LEARNED)
    assert files.read("m", str(tmp_path)) == LEARNED
    config.write_text('{"a": 2}')
    assert files.read("m", str(tmp_path)) is None
    assert revision("org/model") == revision("no\0path") == ""


def test_nobody_else_may_read_it(files, tmp_path):
    umask = os.umask(0)
    try:
        files.write("m", None, LEARNED)
    finally:
        os.umask(umask)
    (file,) = kept(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_that_is_none_is_done_without(files, tmp_path):
    files.write("m", None, LEARNED)
    (file,) = kept(tmp_path)
    file.write_bytes(b'{"everything": "x"}')
    assert files.read("m", None) is None


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path, capsys):
    (tmp_path / "state").write_text("in the way")
    files = LearnedFiles(tmp_path / "state")
    files.write("m", None, LEARNED)
    files.write("m", None, LEARNED)
    assert capsys.readouterr().out.count("what was learned cannot be kept") == 1


@needs_root
def test_on_a_disk_without_room_the_one_before_is_kept(tmp_path, capsys):
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        files = LearnedFiles(disk)
        files.write("m", None, LEARNED)
        files.write("m", None, replace(LEARNED, everything=(1000,) * 40_000))
        assert files.read("m", None) == LEARNED
    assert "No space left on device" in capsys.readouterr().out


def test_the_folder_is_systemds_or_by_xdg():
    assert str(state_folder({"STATE_DIRECTORY": "/var/lib/kvgate:/x", "XDG_STATE_HOME": "/s"})) == "/var/lib/kvgate"
    assert str(state_folder({"XDG_STATE_HOME": "/s", "HOME": "/h"})) == "/s/kvgate"
    assert str(state_folder({"HOME": "/h"})) == "/h/.local/state/kvgate"


@pytest.mark.parametrize(
    "content",
    [
        b'{"everything":[],"x":' + b"[" * 100_000,
        b'{"everything":[-5]}',
        b'{"everything":[1' + 400 * b"0" + b"]}",
        b'{"everything":[],"outputs":[{"prompt":1,"max_tokens":1,"tools":true,"streamed":true,"lengths":[-1]}]}',
        b'{"everything":[]' + b" " * 2**20 + b"}",
        b"\xff",
    ],
    ids=["nested", "negative", "huge", "negative of a kind", "too long", "no text"],
)
def test_a_file_that_holds_what_was_never_learned_is_done_without(files, tmp_path, content):
    files.write("m", None, LEARNED)
    (file,) = kept(tmp_path)
    file.write_bytes(content)
    assert files.read("m", None) is None


def test_nobody_waits_for_a_pipe_or_reads_a_device(files, tmp_path):
    files.write("m", None, LEARNED)
    (file,) = kept(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert files.read("m", None) is None
    file.unlink()
    file.symlink_to("/dev/zero")
    assert files.read("m", None) is None
