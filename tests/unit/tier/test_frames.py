import math
import random
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import (
    Arrived,
    Back,
    Capacity,
    Declared,
    Demand,
    EndpointId,
    RequestId,
    ResidencyPhase,
    Verdict,
    Warmth,
)
from gateway.admission.outcomes import Outcome
from gateway.endpoints.identity import Identity
from gateway.ops.pictures.digest import Digest, OfModel
from gateway.pools.launcher import EngineEnded, EngineNews
from gateway.tier.frames import (
    LONGEST,
    VERSION,
    Answer,
    AskTurn,
    Awaits,
    Came,
    Declares,
    Down,
    Ended,
    Evacuate,
    Expire,
    Explain,
    Failed,
    Fell,
    FrameError,
    Frames,
    FromFront,
    FromOwner,
    GivenBack,
    Gone,
    Hello,
    Keep,
    Kept,
    Lags,
    Launch,
    Launches,
    Left,
    Look,
    More,
    Moved,
    Ping,
    Pong,
    Recalled,
    Refused,
    Reigns,
    Report,
    Reported,
    Saw,
    Scrape,
    Seems,
    Sent,
    ShowState,
    Starts,
    Stepped,
    Surpassed,
    Unwatched,
    Up,
    Wanted,
    Watched,
    Welcome,
    frame,
    from_front,
    from_owner,
    packed_warmth,
)

HERE = EndpointId("here:8000")
ONE, TWO = RequestId((7 << 32) + 1), RequestId((7 << 32) + 2)
ARRIVAL = Arrived(
    ONE,
    Demand((10, 2**40), 30, 4, 4096, 8192),
    band=-5,
    flow="flöw \x00",
    body_bytes=9,
    streamed=False,
    tools=True,
    ttft_target=0.25,
    prefix=((64, 2**64 - 1), (128, 0)),
    key=2**64 - 1,
    waited=1.5,
    failures=1,
    avoid=HERE,
)
IDENTITY = Identity(("m", "n"), ("lora",), None, 4096, "0.32.0")
CAPACITY = Capacity(max_model_len=4096, kv_blocks=None, max_num_seqs=3, shares_prefix=False)
WATCHED = Watched(HERE, ONE, 10, streams=True, evacuated=False, started=True)
OF_FRONT = [
    Hello(VERSION, 7),
    Hello(VERSION, 7, (Recalled(HERE, "m", IDENTITY, CAPACITY, drained=True),), (Kept("m", 0.5, b"x"),)),
    Hello(VERSION, 7, epoch=(3, "a")),
    Declares([], [], [], last=True),
    Declares([("m", Declared(ARRIVAL, HERE, 12))], [WATCHED], [("m", ARRIVAL), ("n", ARRIVAL)], last=False),
    Came("m", ARRIVAL),
    Left(ONE),
    Moved("m", ((ONE, 3), (TWO, 4))),
    Moved("m", ()),
    GivenBack("m", ARRIVAL, Back.BUSY),
    Lags(ONE),
    Ended(ONE, Verdict.ABORTED, None),
    Ended(ONE, Verdict.DONE, 0),
    WATCHED,
    Stepped(HERE, (ONE,)),
    Unwatched(HERE, ONE, delivering=True),
    Failed(HERE, "it said \N{SNOWMAN}", aborted=True, dead=False),
    Explain(1, "m", ARRIVAL),
    ShowState(2),
    ShowState(3, drain="here", undrain="there"),
    ShowState(4, give=("m", "adapter", None)),
    Scrape(4),
    Scrape(4, openmetrics=True),
    AskTurn(5, ONE),
    Reported(5, b"\x00"),
    Reported(None, b""),
    Ping(),
    Ping(7),
    Surpassed((3, "a")),
    Look(1, 7.5),
    Saw(Digest({"m": OfModel({"completed": 1}, {3: 1}, {}, {"alice": 2.0})})),
    Awaits({"m": 1.5}),
    Launches(EngineNews(HERE, ResidencyPhase.STOPPED, 2.5, "No memory.", turn=3, leaves=True)),
    Fell(EngineEnded(HERE, "It was killed.", "Give it more memory.")),
]
OF_OWNER = [
    More(),
    Welcome(),
    Sent(Dispatch(ONE, HERE, "queued")),
    Refused(Reject(ONE, Outcome.QUEUE_TIMEOUT, 2.5)),
    Refused(Reject(ONE, Outcome.CONTEXT_LENGTH_EXCEEDED, None)),
    Wanted("m", {ONE: 16.0, TWO: math.inf}, everything=True),
    Up(HERE, "m", IDENTITY, CAPACITY, on_trial=True),
    Down(HERE, keeps=True, drained=False),
    Gone(HERE),
    Starts(HERE, None, failed=True),
    Launch(HERE, runs=True),
    Seems(HERE, "hung", "no progress"),
    Evacuate(HERE),
    Expire((ONE, TWO)),
    Answer(1, b"{}"),
    Answer(1, None),
    Report(5),
    Pong(),
    Pong(7),
    Reigns((3, "a")),
    Keep("m", packed_warmth(Warmth())),
]


def same(message):
    """A message without the difference between a list and a tuple."""
    return msgspec.json.encode(message)


def bodies(data, *, cuts=()):
    frames, found, at = Frames(), [], 0
    for cut in (*cuts, len(data)):
        found += frames.feed(data[at:cut])
        at = cut
    return found


@pytest.mark.parametrize("message", OF_FRONT, ids=lambda message: type(message).__name__)
def test_what_a_front_says_is_understood(message):
    (body,) = bodies(frame([message]))
    (read,) = from_front(body)
    assert type(read) is type(message)
    assert same(read) == same(message)


@pytest.mark.parametrize("message", OF_OWNER, ids=lambda message: type(message).__name__)
def test_what_an_owner_says_is_understood(message):
    (body,) = bodies(frame([message]))
    (read,) = from_owner(body)
    assert type(read) is type(message)
    assert same(read) == same(message)


def test_every_message_is_tried_here():
    assert {type(message) for message in OF_FRONT} == set(get_args(FromFront))
    assert {type(message) for message in OF_OWNER} == set(get_args(FromOwner))


def test_dispatches_and_arrivals_are_read_as_they_were():
    (came,) = from_front(bodies(frame([Came("m", ARRIVAL)]))[0])
    assert came.arrival == ARRIVAL
    (up,) = from_owner(bodies(frame([Up(HERE, "m", IDENTITY, CAPACITY, False)]))[0])
    assert (up.identity, up.capacity) == (IDENTITY, CAPACITY)


def test_frames_may_be_cut_anywhere():
    data = frame(OF_FRONT) + frame([]) + frame(OF_FRONT[:2])
    whole = bodies(data)
    assert [len(from_front(body)) for body in whole] == [len(OF_FRONT), 0, 2]
    for cut in range(len(data)):
        assert bodies(data, cuts=(cut,)) == whole
    assert bodies(data, cuts=range(len(data))) == whole


def test_a_frame_that_would_be_too_long_is_refused_before_it_has_come():
    frames = Frames()
    assert frames.feed(LONGEST.to_bytes(4)) == []
    with pytest.raises(FrameError):
        Frames().feed((LONGEST + 1).to_bytes(4))
    with pytest.raises(FrameError):
        Frames().feed(frame([Welcome()]) + b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize("read", [from_front, from_owner])
@pytest.mark.parametrize("message", [["Came"], [], 3, None, {}])
def test_what_is_no_message_is_refused(read, message):
    with pytest.raises(msgspec.DecodeError):
        read(msgspec.msgpack.encode([message]))


@pytest.mark.parametrize("new", [[99], [99, 1, {"a": [None]}]])
def test_a_message_of_a_kind_that_a_later_release_has_is_left_out(new):
    body = msgspec.msgpack.encode([Left(ONE), new, Left(TWO)])
    assert from_front(body) == [Left(ONE), Left(TWO)]


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (from_owner, Came("m", ARRIVAL)),  # of the other side
        (from_front, Welcome()),
    ],
)
def test_what_the_other_side_never_says_is_left_out(read, message):
    assert read(bodies(frame([message]))[0]) == []


@pytest.mark.parametrize("new", [[], [99, 1]])
def test_a_message_of_another_shape_is_refused(new):
    for changed in ([4], [4, "one"], [7, 1, 99, None], [5, "m", [[1]]], [3, "m", {"request": 1}]):
        with pytest.raises(msgspec.DecodeError):
            from_front(msgspec.msgpack.encode([changed, *([new] if new else [])]))


def test_what_a_later_release_adds_to_a_message_is_left_out():
    came = msgspec.msgpack.decode(msgspec.msgpack.encode(Came("m", ARRIVAL)))
    came[2] |= {"new": [1]}
    assert from_front(msgspec.msgpack.encode([[*came, "new"]])) == [Came("m", ARRIVAL)]
    assert from_front(msgspec.msgpack.encode([[4, ONE, "new"]])) == [Left(ONE)]


def test_what_the_release_before_does_not_say_has_its_default():
    assert from_front(msgspec.msgpack.encode([[2, 1, 7]])) == [Hello(1, 7)]


@given(st.binary(max_size=200))
def test_the_bytes_of_strangers_are_refused(data):
    for read in (from_front, from_owner):
        try:
            assert isinstance(read(data), list)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def test_a_damaged_frame_is_read_or_refused():
    chance = random.Random(1)  # noqa: S311  # the same damage every time
    (body,) = bodies(frame(OF_FRONT))
    for _ in range(2000):
        damaged = bytearray(body)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            assert isinstance(from_front(bytes(damaged)), list)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
