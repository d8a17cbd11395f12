import os
import stat

import pytest

from gateway.runtime.private_file import open_private


@pytest.fixture(autouse=True)
def generous():
    """A umask that lets everybody read what is made."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("mode", ["wb", "ab", "ab+"])
def test_only_its_owner_may_read_a_new_file(tmp_path, mode):
    with open_private(tmp_path / "new", mode) as file:
        file.write(b"a")
    assert (tmp_path / "new").read_bytes() == b"a"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_without_a_buffer_what_is_written_is_there_at_once(tmp_path):
    with open_private(tmp_path / "new", "ab", buffering=0) as file:
        file.write(b"a")
        assert (tmp_path / "new").read_bytes() == b"a"


def test_a_file_that_is_there_keeps_its_mode(tmp_path):
    (tmp_path / "old").write_bytes(b"a")
    (tmp_path / "old").chmod(0o640)
    with open_private(tmp_path / "old", "ab") as file:
        file.write(b"b")
    assert (tmp_path / "old").read_bytes() == b"ab"
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o640
