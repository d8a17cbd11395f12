"""Ports and the way to the hub: whose port is taken, and which failures another start may not see."""

import pytest

from engine.diagnosis.log_cause import diagnose

OTHER_RANKS = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"
)


def test_the_port_for_clients_is_not_the_port_of_the_ranks() -> None:
    assert diagnose(["OSError: [Errno 98] Address already in use"], 1).sign == "port taken"
    assert diagnose([OTHER_RANKS], 1).sign == "port between the ranks taken"


@pytest.mark.parametrize(
    ("said", "permanent"),
    [
        ("OSError: [Errno 98] Address already in use", True),
        ("httpx.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", True),
        ("requests.exceptions.ProxyError: HTTPSConnectionPool(host='hub', port=443): Max retries exceeded", False),
        ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", False),
        ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://hub/a", False),
    ],
)
def test_what_passes_by_itself_is_tried_again(said: str, *, permanent: bool) -> None:
    found = diagnose([f"(APIServer pid=1) ERROR 11-20 18:11:05 [x.py:1] {said}"], 1)
    assert found.sign
    assert found.permanent is permanent


def test_a_hub_that_is_only_slow_does_not_hide_why_the_engine_ended() -> None:
    slow = "httpx.ReadTimeout: The read operation timed out"
    wrong = "ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3)."
    assert diagnose([slow, wrong], 1).sign == "heads not divisible"
