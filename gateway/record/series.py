"""A record in pictures: how it went, and how it would have gone under other settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.record.album import Album, Side
from gateway.record.lines import EventLogError, decisions
from gateway.record.replay import Changes, Replayed, steps
from gateway.record.timetable import MOST, Timetable, timetable
from gateway.record.whatif import WhatIf


class Series(msgspec.Struct, kw_only=True):
    """All that the page is told of a record at first."""

    file: str
    kvgate: tuple[str, ...]
    """Versions that wrote it."""
    interval: float
    """Seconds between two pictures."""
    runs: list[float]
    """Times at which runs begin."""
    gaps: list[int]
    """Runs of which lines are missing; what comes after the gap is left out."""
    sides: list[Side]


@dataclass(slots=True)
class Pictured:
    """A record in pictures.

    Attributes:
        pictures: of each side, each as JSON in gzip, without its points.
    """

    series: Series
    pictures: list[list[bytes]]


def pictured(file: Path, changes: Changes, given: Sequence[str], most: int = MOST) -> Pictured:
    """Take the pictures of a record, and with changes a second series of what would have been.

    Args:
        file: the record.
        changes: to the settings.
        given: the same, in the user's words.
        most: pictures of each side.

    Raises:
        EventLogError: the file is not an event log, or has no event.
        ConfigurationError: the settings are invalid.
    """
    times = timetable(file, most)
    if not times.runs:
        raise EventLogError(f"{file}: there is no event in it")
    replayed = Replayed()
    albums = [_recorded(file, times, replayed)]
    if changes:
        albums.append(_otherwise(file, times, changes, given))
    series = Series(
        file=file.name,
        kvgate=times.versions,
        interval=times.interval,
        runs=[run.offset for run in times.runs.values()],
        gaps=list(dict.fromkeys(replayed.gaps)),
        sides=[album.side for album in albums],
    )
    return Pictured(series, [album.pictures for album in albums])


def _recorded(file: Path, times: Timetable, replayed: Replayed) -> Album:
    album = Album(times, Side(settings=()))
    for step in steps(file, replayed, {}):
        album.until(step)
        commands = step.controller.handle(step.event, step.at)
        if decisions(commands) != list(step.decided):
            album.differs(step)
        album.heard(step, step.event, commands, step.at)
    album.end()
    return album


def _otherwise(file: Path, times: Timetable, changes: Changes, given: Sequence[str]) -> Album:
    album = Album(times, Side(settings=tuple(given)))
    what_if = WhatIf(file, changes, album.heard)
    album.advance = what_if.advance
    for step in what_if.steps():
        album.until(step)
        what_if.take(step)
        if what_if.diverged(step.key):
            album.differs(step)
            album.blind(step.key)
    album.end()
    return album
