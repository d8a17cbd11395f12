"""The lines of an event log: one JSON object each, told apart by `line`.

A file holds one run of the gateway or several, one after the other. Each begins with `Started`. Times are seconds on
the clock of the machine that ran it: only their differences mean something. There is no prompt and no answer in it;
flows are in it by name, and prefixes as keyed hashes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from gateway.admission.commands import Command, WakeAt
from gateway.admission.events import Event

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="line"):
    """A gateway started.

    Attributes:
        kvgate: its version.
        admission: its `admission` settings.
        weights: of the flows that have one.
        poll_interval: seconds between two scrapes of an endpoint.
    """

    kvgate: str
    admission: dict[str, Any]
    weights: dict[str, float]
    poll_interval: float


class Changed(msgspec.Struct, frozen=True, tag="changed", tag_field="line"):
    """The operator changed settings while it ran: they are those of the run from here on.

    The cores that are there are told with the next events; those that are opened later begin with them.

    Attributes:
        admission: its `admission` settings.
        weights: of the flows that have one.
    """

    admission: dict[str, Any]
    weights: dict[str, float]


class Opened(msgspec.Struct, frozen=True, tag="pool", tag_field="line"):
    """A model is served from here on, by a core of its own. `pool` is its number in this run."""

    pool: int
    model: str


class Happened(msgspec.Struct, frozen=True, omit_defaults=True, tag="event", tag_field="line"):
    """The core of a pool was told something.

    Attributes:
        at: seconds.
        pool: whose core.
        event: the name of its class.
        data: its fields.
        decisions: what the core decided on it, in order: dispatches and rejects.
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
    """So many lines are missing here: the disk was too slow for them."""

    lines: int


Line = Started | Changed | Opened | Happened | Dropped

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class EventLogError(Exception):
    """A file is no event log that can be used. The message is for whoever named it."""


def encode(line: Line) -> bytes:
    """A line as it stands in the file."""
    return _encoder.encode(line) + b"\n"


def happened(at: float, pool: int, event: Event, commands: Sequence[Command]) -> Happened:
    """The line of an event and what was decided on it."""
    return Happened(at, pool, type(event).__name__, event, decisions(commands))


def decisions(commands: Sequence[Command]) -> tuple[Command, ...]:
    """What was decided, without what the core only asks of its driver."""
    return tuple(command for command in commands if type(command) is not WakeAt)


def read(file: Path) -> Iterator[Line]:
    """Every line of a file. What was torn when a gateway was killed is passed over.

    Raises:
        EventLogError: it cannot be read, or is no event log.
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
