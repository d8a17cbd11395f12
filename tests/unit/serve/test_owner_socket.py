import socket

import pytest

from gateway.relay.server import PortTakenError
from gateway.serve.owner_socket import OwnerSocket, expect_free


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
