import socket
import subprocess
import sys

import pytest

from gateway.serve.owner_socket import OwnerSocket, expect_free
from gateway.server.server import PortTakenError


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_a_port_at_which_nobody_could_come_in_is_found_at_the_start(host):
    with socket.socket() as other:
        other.bind((host, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError) as refused:
            expect_free(f"10.0.0.7:{port}")
    assert str(refused.value) == f"tier.advertise: cannot listen on port {port}: Address already in use"
    assert (refused.value.port, refused.value.option) == (port, "--tier-advertise")
    expect_free(f"[fd00::7]:{port}")
    expect_free(f"10.0.0.7:{port}")


def test_fronts_connect_before_there_is_an_owner_and_nobody_else_can():
    own = OwnerSocket(2)
    try:
        with socket.socket(socket.AF_UNIX) as front:
            front.connect(str(own.path))
        assert own.path.parent.stat().st_mode & 0o077 == 0
    finally:
        own.close()
    assert not own.path.parent.exists()


def keys_of(*files):
    """The keys of prefix hashes that gateways have, each a process of its own, with these key files."""
    shows = (
        "import sys, pathlib\n"
        "from gateway.serve.owner_socket import OwnerSocket\n"
        "from gateway.tier.key_file import read_key\n"
        "own = OwnerSocket(1, read_key(pathlib.Path(sys.argv[1])))\n"
        "print(own.key.hex())\n"
        "own.close()\n"
    )
    return [subprocess.check_output([sys.executable, "-c", shows, str(file)], text=True) for file in files]


def test_gateways_of_one_key_file_hash_prefixes_alike_and_those_of_another_do_not(tmp_path):
    files = [tmp_path / name for name in ("one", "copy", "another")]
    for file, letter in zip(files, "aab", strict=True):
        file.write_text(letter * 64)
        file.chmod(0o600)
    one, copy, another = keys_of(*files)
    assert one == copy != another
