import pytest

from gateway.relay import fingerprint as module
from gateway.relay.fingerprint import INLINE, fingerprint
from gateway.tokens.prefix import new_key

KEY = new_key()


async def test_the_same_body_of_the_same_flow_is_known_again():
    assert await fingerprint("a", b"{}", KEY) == await fingerprint("a", b"{}", KEY) != 0


async def test_another_flow_or_body_is_another():
    bodies = [("a", b"{}"), ("b", b"{}"), ("a", b"{ }"), ("a\0{", b"}"), ("", b"")]
    known = {await fingerprint(flow, body, KEY) for flow, body in bodies}
    assert len(known) == 5


async def test_a_large_body_is_hashed_off_the_loop(monkeypatch):
    threads = []

    async def to_thread(call, *args):
        threads.append(args)
        return call(*args)

    monkeypatch.setattr(module.asyncio, "to_thread", to_thread)
    assert await fingerprint("a", bytes(INLINE + 1), KEY) != await fingerprint("a", bytes(INLINE), KEY)
    assert [len(body) for _, body, _ in threads] == [INLINE + 1]


@pytest.mark.parametrize("body", [b"{}", bytes(INLINE + 1)])
async def test_another_gateways_key_makes_another_number(body):
    """Who has an event log cannot test which bodies were sent."""
    assert await fingerprint("a", body, new_key()) != await fingerprint("a", body, KEY)


async def test_no_name_of_a_flow_breaks_it():
    assert await fingerprint("\ud800", b"{}", KEY)
