import os
import re

import pytest

from gateway.config.errors import ConfigurationError
from gateway.tier.key_file import LONGEST, read_key
from gateway.tier.seal import SHORTEST_KEY

SECRET = b"0123456789abcdef" * 2


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    return file


def refused(file, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as error:
        read_key(file)
    assert str(error.value).startswith(f"{file}: ")
    assert SECRET[:8].decode() not in str(error.value)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_end_of_a_line_is_no_part_of_a_key(file, end):
    key = read_key(file).derived("a test")
    file.write_bytes(SECRET + end)
    assert read_key(file).derived("a test") == key
    file.write_bytes(SECRET + b" ")
    assert read_key(file).derived("a test") != key


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_key_that_its_owner_and_group_can_read_is_taken(file, mode):
    file.chmod(mode)
    assert read_key(file)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601, 0o620, 0o777])
def test_a_key_that_others_can_read_or_change_is_refused(file, mode):
    file.chmod(mode)
    refused(file, f"others may read or change this key (mode {mode:04o}): `chmod 600 {file}`, or `defaultMode: 0440`")


def test_a_short_key_is_refused(file):
    file.write_bytes(SECRET[: SHORTEST_KEY - 1])
    refused(file, "expected a key of at least 32 bytes, this has 31: `openssl rand -hex 32` makes one, for all members")


def test_a_long_file_is_refused(file):
    file.write_bytes(bytes(LONGEST))
    assert read_key(file)
    file.write_bytes(bytes(LONGEST + 1))
    refused(file, "expected a key of at most 4096 bytes")


def test_what_is_no_file_is_refused(file, tmp_path):
    refused(tmp_path / "absent", "cannot read the key: No such file or directory")
    refused(tmp_path, "cannot read the key: Is a directory")
    file.unlink()
    os.mkfifo(file, 0o600)
    refused(file, "expected a file with a key")
