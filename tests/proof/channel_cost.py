"""What it costs to seal what front and owner say to each other on several machines, beside plain frames.

    python -m tests.proof.channel_cost

A frame goes from one line to another, in this process: packed, sealed, opened, read. Only the sockets are not there.
CPU time of both sides, the best of several rounds; and of a whole handshake.
"""

import asyncio
import platform
import sys
from collections.abc import Callable
from time import process_time
from typing import Any

from gateway.tier.channel import Sealed
from gateway.tier.frames import Reported, frame, from_front
from gateway.tier.line import Line
from gateway.tier.seal import NONCE, Claim, Role, Session, SharedKey

SIZES = (200, 2000, 64 * 1024)
"""Bytes of a frame: a turn with little to say, a batch of progress, a front's figures."""
ROUNDS = 20
KEY = SharedKey(bytes(32))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None: ...

    def take(self) -> bytes:
        data, self.written = self.written, b""
        return data


def handshake() -> tuple[Session, Session]:
    front = Session(KEY, Claim(Role.FRONT, "f", (1, 1)), bytes(NONCE), calls=True)
    owner = Session(KEY, Claim(Role.OWNER, "o", (1, 1)), bytes(NONCE), calls=False)
    claim, _ = front.feed(owner.feed(front.opening)[0])
    front.feed(owner.feed(claim)[0])
    return front, owner


def line(wire: Any) -> Line[Any]:
    made = Line[Any](from_front, lambda _line, _messages: None, lambda _line: None)
    made.connection_made(wire)
    return made


def microseconds(work: Any, times: int) -> float:
    spent = []
    for _ in range(ROUNDS):
        start = process_time()
        for _ in range(times):
            work()
        spent.append((process_time() - start) / times * 1e6)
    return min(spent)


def carried(size: int, *, sealed: bool) -> Callable[[], None]:
    """Carries a frame of about this size once."""
    message = Reported(None, bytes(size - len(frame([Reported(None, bytes(size))])) + size))
    wire, (front, owner) = Wire(), handshake()
    here, there = line(Sealed(wire, front) if sealed else wire), line(Wire())

    def carry() -> None:
        here._unsent.append(message)
        here._flush()
        data = wire.take()
        there.data_received(owner.feed(data)[1] if sealed else data)

    return carry


async def main() -> None:
    """Print the table."""
    print(
        f"Python {platform.python_version()}, {platform.processor() or platform.machine()}, {sys.platform}; us a frame"
    )
    print(f"{'bytes':>8}{'plain':>9}{'sealed':>9}{'more':>9}")
    for size in SIZES:
        times = 200 if size > 10_000 else 2000
        plain, sealed = (microseconds(carried(size, sealed=sealed), times) for sealed in (False, True))
        print(f"{size:8}{plain:9.1f}{sealed:9.1f}{sealed - plain:9.1f}")
    print(f"a handshake, both sides: {microseconds(handshake, 500):.0f} us")


if __name__ == "__main__":
    asyncio.run(main())
