"""PURE. The messages between a front and the owner, and their frames.

A frame is its length (4 bytes, big-endian) and a MessagePack array of messages: all that one turn of an event loop
had to say. A message is an array, its first item a number that tells its kind. Times never cross, only ages: the two
processes may be on machines with different clocks.

Processes of two releases that follow each other talk, so messages only grow (ADR 37). Fields are added at the end, with
a default for what the release before does not say. Fields and kinds that the release after has are left unread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, Back, Capacity, Declared, EndpointId, RequestId, Verdict, Warmth
from gateway.endpoints.identity import Identity
from gateway.ops.pictures.digest import Digest
from gateway.pools.launcher import EngineEnded, EngineNews

VERSION = 1
"""Of these messages: one more in each release that changes them."""
OLDEST = 1
"""The version of the release before. With an older one nobody talks."""
LONGEST = 2**28
"""Most bytes of a frame."""
_LENGTH = 4


class _Message(msgspec.Struct, array_like=True):
    pass


# From a front.


class Recalled(_Message, tag=0):
    """An endpoint that an earlier owner told of, so that requests on it can be declared before it was probed.

    `drained`: the operator wants no new requests there.
    """

    endpoint: EndpointId
    model: str
    identity: Identity
    capacity: Capacity
    drained: bool


class Kept(_Message, tag=15):
    """What an earlier owner had this front `Keep`, so many seconds ago."""

    model: str
    age: float
    warmth: bytes


class Watched(_Message, tag=1):
    """A request was sent to an endpoint; see `Watch.dispatched`. `passing`: it is only passed on."""

    endpoint: EndpointId
    request: RequestId
    prompt_tokens: int
    streams: bool
    evacuated: bool
    started: bool
    passing: bool = False


class Hello(_Message, tag=2):
    """The first message of a front: who it is, and what it knows of the endpoints and of demand.

    `front` is the upper half of its requests' ids.
    """

    version: int
    front: int
    endpoints: Sequence[Recalled] = ()
    kept: Sequence[Kept] = ()
    epoch: tuple[int, str] | None = None
    """In a tier, that of the owner that it followed last."""
    fronts: int = 1
    """How many its gateway has."""
    oldest: int = OLDEST
    """The lowest version that it speaks."""


class Declares(_Message, tag=18):
    """A part of what a front carries, in answer to a `More`. After the `last` part, the owner knows all."""

    flights: list[tuple[str, Declared]]
    """Requests in flight, with their models."""
    watched: list[Watched]
    waiting: list[tuple[str, Arrived]]
    """Requests that wait, with their models."""
    last: bool


class Came(_Message, tag=3):
    """A request arrived."""

    model: str
    arrival: Arrived


class Left(_Message, tag=4):
    """The client of a waiting request has left."""

    request: RequestId


class Moved(_Message, tag=5):
    """A batch of a model's progress, as in `gateway.admission.events.Progress`."""

    model: str
    generated: tuple[tuple[RequestId, int], ...]


class GivenBack(_Message, tag=6):
    """A dispatched request comes back unanswered; see `Returned`."""

    model: str
    arrival: Arrived
    """As an owner that does not know of its dispatch is to see it."""
    why: Back


class Lags(_Message, tag=48):
    """The client of a dispatched request is behind; see `Behind`."""

    request: RequestId


class Ended(_Message, tag=7):
    """A dispatched request left its endpoint; see `Finished`."""

    request: RequestId
    verdict: Verdict
    completion_tokens: int | None
    prompt_tokens: int | None = None


class Stepped(_Message, tag=8):
    """Requests on an endpoint had tokens. Only those with their first token are named."""

    endpoint: EndpointId
    started: Sequence[RequestId]


class Unwatched(_Message, tag=9):
    """A request has left an endpoint; see `Watch.finished`."""

    endpoint: EndpointId
    request: RequestId
    delivering: bool


class Failed(_Message, tag=10):
    """A request failed on an endpoint; see `Watch.failed`."""

    endpoint: EndpointId
    reason: str
    aborted: bool
    dead: bool


class Explain(_Message, tag=11):
    """Asks what would become of a request; answered with an `Explanation`."""

    number: int
    model: str
    arrival: Arrived


class ShowState(_Message, tag=12):
    """Asks for the state of the endpoints and queues, or first changes one; answered with a `Decided`."""

    number: int
    drain: str | None = None
    undrain: str | None = None
    give: tuple[str, str, str | None] | None = None
    """A model, a LoRA adapter for it, and its path; without a path it is taken away."""


class Scrape(_Message, tag=13):
    """Asks for the metrics of all processes, as text; answered with an `Answer`.

    Whoever does not know `openmetrics` answers in the older format, and the text tells which it is.
    """

    number: int
    openmetrics: bool = False


class AskTurn(_Message, tag=40):
    """Asks for the turn of a waiting request; answered with a `Turn`, or None. May get lost."""

    number: int
    request: RequestId


class Reported(_Message, tag=14):
    """What a front counted, packed (see `gateway.ops.merged`): as asked by `Report`, or, when it leaves, its last."""

    number: int | None
    figures: bytes


class Look(_Message, tag=39):
    """Asks for the picture for `/kvgate/events`, with the points after this time; answered with a `Picture`."""

    number: int
    after: float


class Saw(_Message, tag=38):
    """What ended at the front since it told this last."""

    digest: Digest


class Ping(_Message, tag=17):
    """Asks whether the owner lives. In a tier it is a heartbeat; see `fence.py`."""

    number: int = 0


class Awaits(_Message, tag=42):
    """For engines of which models requests wait at the front, and how long the oldest has; not only what is new."""

    ages: Mapping[str, float]


class Launches(_Message, tag=44):
    """What an engine on demand does that the parent of the front launches; see `gateway.tier.launchers`."""

    news: EngineNews


class Fell(_Message, tag=45):
    """Why an engine ended that the parent of the front launches."""

    ended: EngineEnded


class Surpassed(_Message, tag=35):
    """The front has followed a later owner than this one; the number of its epoch, and its id."""

    epoch: tuple[int, str]


# From the owner.


class More(_Message, tag=34):
    """Asks for the next part of what a front carries."""


class Welcome(_Message, tag=19):
    """The first message of the owner: it has taken over what the front declared."""


class Sent(_Message, tag=20):
    """The answer to a request: it goes to an endpoint."""

    dispatch: Dispatch


class Refused(_Message, tag=21):
    """The answer to a request: it is refused."""

    reject: Reject


class Wanted(_Message, tag=22):
    """The token counts at which a model's core wants to hear of requests again; see `Asker.want`."""

    model: str
    next_reports: Mapping[RequestId, float]
    everything: bool


class Up(_Message, tag=23):
    """An endpoint takes traffic, or its identity or capacity changed."""

    endpoint: EndpointId
    model: str
    identity: Identity
    capacity: Capacity
    on_trial: bool
    keyed: bool = False
    """Whether requests need the endpoint's own key, which never crosses."""


class Down(_Message, tag=24):
    """An endpoint takes no new requests.

    `keeps`: those on it may still be answered. `drained`: the operator wants it so.
    """

    endpoint: EndpointId
    keeps: bool
    drained: bool


class Starts(_Message, tag=43):
    """An engine is expected to be up in so many seconds, or does not start; see `Follower.starts`."""

    endpoint: EndpointId
    ready_in: float | None
    failed: bool


class Launch(_Message, tag=46):
    """Have the parent of the front start an engine, or end it: no request is on it."""

    endpoint: EndpointId
    runs: bool


class Seems(_Message, tag=47):
    """What the owner sees of an engine that the parent of the front launches; see `Launcher.seems`."""

    endpoint: EndpointId
    state: str
    reason: str


class Gone(_Message, tag=25):
    """An endpoint is not configured any more, and has no requests that the owner knows of."""

    endpoint: EndpointId


class Evacuate(_Message, tag=26):
    """Take unanswered requests off an endpoint."""

    endpoint: EndpointId


class Expire(_Message, tag=27):
    """End these requests: they were silent for too long."""

    requests: Sequence[RequestId]


class Keep(_Message, tag=37):
    """What a core is to know again if another owner takes over: a `Warmth`, packed. It replaces the one before."""

    model: str
    warmth: bytes


class Pong(_Message, tag=33):
    """The owner lives, and still has the front."""

    number: int = 0


class Reigns(_Message, tag=36):
    """In a tier, the first message of the owner: the epoch under which all that it says is said."""

    epoch: tuple[int, str]


class Answer(_Message, tag=28):
    """The answer to a question, as JSON or text; None if it was about an endpoint that is not known."""

    number: int
    body: bytes | None


class Report(_Message, tag=29):
    """Asks for what the front counted; answered with a `Reported`."""

    number: int


Question = Explain | ShowState | Scrape | Look | AskTurn
FromFront = (
    Hello
    | Declares
    | Came
    | Left
    | Moved
    | GivenBack
    | Lags
    | Ended
    | Watched
    | Stepped
    | Unwatched
    | Failed
    | Question
    | Reported
    | Saw
    | Ping
    | Surpassed
    | Awaits
    | Launches
    | Fell
)
FromOwner = (
    More
    | Welcome
    | Sent
    | Refused
    | Wanted
    | Up
    | Down
    | Gone
    | Evacuate
    | Expire
    | Answer
    | Report
    | Pong
    | Keep
    | Reigns
    | Starts
    | Launch
    | Seems
)


def weight(arrival: Arrived) -> int:
    """What it costs an owner to take a request, in units of about half a microsecond."""
    return 400 + len(arrival.demand.prompts) + len(arrival.prefix)


def _reader(kinds: Any) -> Callable[[bytes], list[Any]]:
    """Reads a frame's messages, but for those of kinds that only a later release has."""
    read_all = msgspec.msgpack.Decoder(list[kinds]).decode
    read_one = msgspec.msgpack.Decoder(kinds).decode
    known = {kind.__struct_config__.tag for kind in get_args(kinds)}

    def read(body: bytes) -> list[Any]:
        try:
            return read_all(body)
        except msgspec.ValidationError:
            return [read_one(message) for message in _raw_messages(body) if _kind_of(message) in known]

    return read


def _kind_of(message: msgspec.Raw) -> int:
    kind = _raw_messages(message)[:1]
    if not kind:
        raise msgspec.ValidationError("a message without a kind")
    return _number(kind[0])


_encoder = msgspec.msgpack.Encoder()
_raw_messages: Callable[[bytes | msgspec.Raw], list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_number: Callable[[msgspec.Raw], int] = msgspec.msgpack.Decoder(int).decode
from_front: Callable[[bytes], list[FromFront]] = _reader(FromFront)
from_owner: Callable[[bytes], list[FromOwner]] = _reader(FromOwner)


packed_warmth: Callable[[Warmth], bytes] = _encoder.encode
warmth_of: Callable[[bytes], Warmth] = msgspec.msgpack.Decoder(Warmth).decode


class FrameError(Exception):
    """The other side sent what is no frame."""


def frame(messages: Sequence[msgspec.Struct]) -> bytes:
    """The frame of these messages."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(_LENGTH) + body


class Frames:
    """Cuts received bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the bodies of the frames that are complete now.

        Raises:
            FrameError: a frame would be longer than `LONGEST`.
        """
        buffer = self._buffer
        if (
            not buffer and int.from_bytes(data[:_LENGTH]) == len(data) - _LENGTH <= LONGEST
        ):  # as nearly always: a whole one
            return [data[_LENGTH:]]
        buffer += data
        bodies, at = [], 0
        while len(buffer) - at >= _LENGTH:
            length = int.from_bytes(buffer[at : at + _LENGTH])
            if length > LONGEST:
                raise FrameError(f"a frame of {length} bytes")
            if len(buffer) - at - _LENGTH < length:
                break
            bodies.append(bytes(buffer[at + _LENGTH : at + _LENGTH + length]))
            at += _LENGTH + length
        del buffer[:at]
        return bodies
