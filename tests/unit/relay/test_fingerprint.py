import asyncio
import subprocess
import sys

from gateway.relay import fingerprint as module
from gateway.relay.fingerprint import INLINE, fingerprint


async def test_the_same_body_of_the_same_flow_is_known_again():
    assert await fingerprint("a", b"{}") == await fingerprint("a", b"{}") != 0


async def test_another_flow_or_body_is_another():
    known = {await fingerprint(*one) for one in [("a", b"{}"), ("b", b"{}"), ("a", b"{ }"), ("a\0{", b"}"), ("", b"")]}
    assert len(known) == 5


async def test_a_large_body_is_hashed_off_the_loop(monkeypatch):
    threads = []

    async def to_thread(call, *args):
        threads.append(args)
        return call(*args)

    monkeypatch.setattr(module.asyncio, "to_thread", to_thread)
    assert await fingerprint("a", bytes(INLINE + 1)) != await fingerprint("a", bytes(INLINE))
    assert [len(body) for _, body in threads] == [INLINE + 1]


def test_another_process_makes_another_number():
    """Who has an event log cannot test which bodies were sent."""
    code = "import asyncio; from gateway.relay.fingerprint import *; print(asyncio.run(fingerprint('a', b'{}')))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) != asyncio.run(fingerprint("a", b"{}"))


async def test_no_name_of_a_flow_breaks_it():
    assert await fingerprint("\ud800", b"{}")
