import os
import socket
import stat

import pytest

from gateway.server.unix_listening import UnixListening


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kvgate.sock"


def connects(path):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_socket_has_its_mode_whatever_the_umask(path, mode):
    before = os.umask(0o077)
    try:
        with UnixListening(path, mode) as listening:
            listening.listen()
            assert stat.S_IMODE(path.stat().st_mode) == mode
            connects(path)
    finally:
        os.umask(before)


def test_a_socket_that_was_left_behind_is_replaced(path):
    with UnixListening(path, 0o600) as listening:
        listening.listen()
    with pytest.raises(ConnectionRefusedError):
        connects(path)
    with UnixListening(path, 0o600) as listening:
        listening.listen()
        connects(path)


def test_a_socket_that_somebody_listens_on_is_not(path):
    with UnixListening(path, 0o600) as first:
        first.listen()
        with pytest.raises(OSError, match="Address already in use"):
            UnixListening(path, 0o600)
        connects(path)


def test_nor_is_one_whose_queue_is_full(path):
    with UnixListening(path, 0o600) as first, socket.socket(socket.AF_UNIX) as waiting:
        first.listen(0)
        waiting.connect(str(path))
        with pytest.raises(OSError, match="Address already in use"):
            UnixListening(path, 0o600)


def test_a_file_that_is_no_socket_stays(path):
    path.write_text("mine")
    with pytest.raises(OSError, match="a file that is no socket is there"):
        UnixListening(path, 0o600)
    assert path.read_text() == "mine"


def test_at_the_end_the_file_goes_but_not_that_of_a_successor(path):
    with UnixListening(path, 0o600) as first:
        first.remove()
        assert not path.exists()
    with UnixListening(path, 0o600) as first:
        path.unlink()
        with UnixListening(path, 0o600) as other:
            first.remove()
            assert path.exists()
            other.remove()
    assert not path.exists()
