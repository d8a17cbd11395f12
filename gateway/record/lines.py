"""The lines of an event log: one JSON object each, told apart by `line`.

A file holds one or more runs of the gateway, one after the other. Each begins with `Started`. Times are seconds on the
clock of the machine that ran it: only differences mean something. The log holds no prompts and no answers; it holds
flows by name, and prefixes as keyed hashes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from gateway.admission.commands import Command, WakeAt
from gateway.admission.events import Event

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
_OF_DRIVER = frozenset({"standing", "exceeded", "rule"})
"""Fields of commands that are for its client alone."""


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="line"):
    """A gateway started.

    Attributes:
        kvgate: its version.
        admission: its `admission` settings.
        weights: of the flows that have one.
        poll_interval: seconds between two scrapes of an endpoint.
        kv_shares: of the flows that have one.
    """

    kvgate: str
    admission: dict[str, Any]
    weights: dict[str, float]
    poll_interval: float
    kv_shares: dict[str, float] = {}


class Changed(msgspec.Struct, frozen=True, tag="changed", tag_field="line"):
    """The operator changed settings while it ran; they apply from here on.

    Existing cores are told with the next events; cores opened later begin with them.

    Attributes:
        admission: its `admission` settings.
        weights: of the flows that have one.
        kv_shares: of the flows that have one.
    """

    admission: dict[str, Any]
    weights: dict[str, float]
    kv_shares: dict[str, float] = {}

    def applied(self, started: Started) -> Started:
        """A run as if it had started so."""
        return msgspec.structs.replace(
            started, admission=self.admission, weights=self.weights, kv_shares=self.kv_shares
        )


class Opened(msgspec.Struct, frozen=True, tag="pool", tag_field="line"):
    """A model got a core of its own here. `pool` is its number in this run."""

    pool: int
    model: str


class Happened(msgspec.Struct, frozen=True, omit_defaults=True, tag="event", tag_field="line"):
    """The core of a pool handled an event.

    Attributes:
        at: seconds.
        pool: number of the core's pool.
        event: name of the event's class.
        data: the event's fields.
        decisions: the core's decisions on it, in order: dispatches and rejects.
    """

    at: float
    pool: int
    event: str
    data: Any
    decisions: Sequence[Any] = ()

    def read(self) -> Event:
        """The event itself.

        Raises:
            EventLogError: this version knows no such event.
        """
        kind = EVENTS.get(self.event)
        if kind is None:
            raise EventLogError(f"an event {self.event[:40]!r} is not known to this version of kvgate")
        try:
            event: Event = msgspec.convert(self.data, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise EventLogError(f"an event {self.event} cannot be read by this version of kvgate: {error}") from None
        return event


class Dropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="line"):
    """This many lines are missing here: the disk was too slow."""

    lines: int


Line = Started | Changed | Opened | Happened | Dropped

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class EventLogError(Exception):
    """The file is not a usable event log. The message is for the user who named the file."""


def encode(line: Line) -> bytes:
    """A line as written to the file."""
    return _encoder.encode(line) + b"\n"


def happened(at: float, pool: int, event: Event, commands: Sequence[Command]) -> Happened:
    """The line of an event and the decisions on it."""
    return Happened(at, pool, type(event).__name__, event, decisions(commands))


def decisions(commands: Sequence[Command]) -> list[dict[str, Any]]:
    """The decisions among the commands, as a record holds them: without what is the driver's alone."""
    plain = [msgspec.to_builtins(command) for command in commands if type(command) is not WakeAt]
    return [{name: value for name, value in one.items() if name not in _OF_DRIVER} for one in plain]


def read(file: Path) -> Iterator[Line]:
    """Every line of a file. Lines torn when a gateway was killed are skipped.

    Raises:
        EventLogError: it cannot be read, or is not an event log.
    """
    torn: str | None = None
    try:
        with file.open("rb") as lines:
            for number, text in enumerate(lines, 1):
                try:
                    line = _decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if number == 1 or torn is not None:
                        raise EventLogError(f"{file}, line {number}: this is no event log: {error}") from None
                    torn = f"{file}, line {number}: this line cannot be read: {error}"
                    continue
                if torn is not None and not isinstance(line, Started):
                    raise EventLogError(torn)
                if number == 1 and not isinstance(line, Started):
                    raise EventLogError(f"{file}: its beginning is missing; an event log begins with a `started` line")
                torn = None
                yield line
    except OSError as error:
        raise EventLogError(f"{file}: cannot be read: {error.strerror}") from None
