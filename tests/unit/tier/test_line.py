import pytest

from gateway.admission.events import EndpointId, RequestId, Verdict
from gateway.tier.frames import Down, Ended, Failed, Gone, Left, Moved, frame, from_front, from_owner
from gateway.tier.line import MOST_UNSENT, Line
from tests.unit.tier.lines import Other, turns

HERE = EndpointId("here")
ONE = RequestId(1)


class Ours:
    """A line of an owner, and what it passes on."""

    def __init__(self):
        self.taken = []
        self.lost = 0
        self.line = Line(from_front, self._take, self._end)
        self.other = Other(self.line, from_owner)

    def _take(self, line, messages):
        assert line is self.line
        self.taken.append(messages)

    def _end(self, line):
        assert line is self.line
        self.lost += 1


@pytest.fixture
async def ours():
    return Ours()


async def test_all_that_one_turn_has_to_say_is_one_frame(ours):
    ours.line.send(Gone(HERE))
    ours.line.send(Down(HERE, True, False), Gone(HERE))
    assert ours.other.written == b""
    await turns(1)
    assert ours.other.frames() == [[Gone(HERE), Down(HERE, True, False), Gone(HERE)]]
    ours.line.send(Gone(HERE))
    await turns()
    assert ours.other.frames() == [[Gone(HERE)]]


async def test_a_turn_with_nothing_to_say_sends_nothing(ours):
    await turns()
    assert ours.other.written == b""


async def test_each_frame_is_passed_on_in_order(ours):
    data = frame([Left(1), Left(2)]) + frame([Left(3)])
    for at in range(0, len(data), 3):
        ours.line.data_received(data[at : at + 3])
    assert ours.taken == [[Left(1), Left(2)], [Left(3)]]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x01\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        frame([Left(1)])[:-1] + b"\xc0",
        frame([Failed(HERE, "?", False, False)]).replace(b"?", b"\xff"),
        (200_000).to_bytes(4) + b"\x91" * 200_000,
    ],
    ids=["no array", "no frame", "no end", "no text", "nested"],
)
async def test_a_message_that_cannot_be_read_ends_the_connection(ours, data):
    ours.line.data_received(data)
    assert ours.other.aborted
    await turns()
    assert (ours.taken, ours.lost) == ([], 1)


@pytest.mark.parametrize(
    "message",
    [
        Ended(ONE, Verdict.DONE, 2**64),
        Moved("m", ((ONE, -(2**63) - 1),)),
        Down("\ud800", True, False),
    ],
)
async def test_a_message_that_cannot_be_written_ends_the_connection(ours, message):
    ours.line.send(Left(ONE), message)
    await turns()
    assert ours.other.aborted
    assert ours.other.written == b""
    assert ours.lost == 1


async def test_a_peer_that_takes_nothing_is_cut_off(ours):
    ours.other.untaken = MOST_UNSENT
    ours.line.send(Gone(HERE))
    await turns()
    assert not ours.other.aborted
    ours.other.untaken = MOST_UNSENT + 1
    ours.line.send(Gone(HERE))
    await turns()
    assert ours.other.aborted
    assert ours.lost == 1


async def test_what_is_said_after_the_end_is_dropped(ours):
    ours.line.send(Gone(HERE))
    ours.line.connection_lost(None)
    ours.line.send(Gone(HERE))
    ours.line.cut()
    await turns()
    assert (ours.other.written, ours.other.aborted, ours.lost) == (b"", False, 1)


async def test_what_is_said_before_the_connection_is_dropped():
    line = Line(from_front, lambda *_: None, lambda _: None)
    line.send(Gone(HERE))
    line.cut()
    other = Other(line, from_owner)
    assert await other.heard() == []
