"""Runs the core over a record again: what it decides must be what was decided."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gateway.admission.commands import Command
from gateway.admission.controller import AdmissionController
from gateway.admission.events import Event, PolicyChanged
from gateway.admission.policy import Policy
from gateway.config import AdmissionSettings
from gateway.record.lines import Changed, Dropped, EventLogError, Happened, Opened, Started, decisions, read
from gateway.settings_sources import load

Changes = Mapping[str, Any]
"""Settings of the section `admission` that are laid over the recorded ones."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """One core of a record: the number of the run, from 1, and of the pool in it."""

    run: int
    pool: int


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded event.

    Attributes:
        at: seconds.
        since: seconds since the first event of its run.
        controller: the core it was for, that has heard all before it and not yet this.
        decided: what was decided on it, in plain values.
    """

    key: PoolKey
    at: float
    since: float
    event: Event
    controller: AdmissionController
    decided: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Difference:
    """Decisions on one event that are not those of the record; in plain values."""

    key: PoolKey
    since: float
    recorded: Sequence[dict[str, Any]]
    replayed: Sequence[dict[str, Any]]


@dataclass(slots=True)
class Replayed:
    """What came of a replay.

    Attributes:
        models: the name of each core's model.
        decisions: how many the record has, up to a gap.
        gaps: the runs of which lines are missing; what is behind the gap was left out.
    """

    events: int = 0
    decisions: int = 0
    differences: list[Difference] = field(default_factory=list)
    models: dict[PoolKey, str] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)


def policy(started: Started, changes: Changes) -> Policy:
    """The policy of a run, with changes.

    Raises:
        ConfigurationError: they are no settings.
    """
    return settings(started, changes).to_policy(weights=started.weights, poll_interval=started.poll_interval)


def settings(started: Started, changes: Changes) -> AdmissionSettings:
    """The settings of a run, with changes.

    Raises:
        ConfigurationError: they are no settings.
    """
    return load({"admission": _laid_over(started.admission, changes)}, environ={}).admission


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        beneath = merged.get(name)
        both = isinstance(beneath, Mapping) and isinstance(value, Mapping)
        merged[name] = _laid_over(beneath, value) if both else value  # type: ignore[arg-type]
    return merged


def steps(file: Path, replayed: Replayed, changes: Changes) -> Iterator[Step]:
    """Every event of a record in its order, each with its core.

    Args:
        file: the record.
        replayed: is filled, but for the differences.
        changes: to the settings.

    Raises:
        EventLogError: the file is no event log.
        ConfigurationError: the settings are none.
    """
    run, began, gap = 0, None, False
    wanted, start = Policy(), Started("", {}, {}, 0.0)
    controllers: dict[int, AdmissionController] = {}
    for line in read(file):
        match line:
            case Started():
                run, began, gap = run + 1, None, False
                start, wanted = line, policy(line, changes)
                controllers = {}
            case Changed():
                start = msgspec.structs.replace(start, admission=line.admission, weights=line.weights)
                wanted = policy(start, changes)
            case Dropped():
                gap = True
                replayed.gaps.append(run)
            case Opened():
                controllers[line.pool] = AdmissionController(wanted)
                replayed.models[PoolKey(run, line.pool)] = line.model
            case Happened() if not gap:
                if line.pool not in controllers:
                    raise EventLogError(f"{file}: an event is for pool {line.pool}, which was not opened")
                began = line.at if began is None else began
                replayed.events += 1
                replayed.decisions += len(line.decisions)
                key = PoolKey(run, line.pool)
                event = line.read()
                if changes and isinstance(event, PolicyChanged):
                    event = PolicyChanged(wanted)
                yield Step(key, line.at, line.at - began, event, controllers[line.pool], line.decisions)


def verify(file: Path) -> Replayed:
    """Replay a record as it was.

    Raises:
        EventLogError: the file is no event log.
        ConfigurationError: its settings are none of this version.
    """
    replayed = Replayed()
    for step in steps(file, replayed, {}):
        decided = plain(step.controller.handle(step.event, step.at))
        if decided != list(step.decided):
            replayed.differences.append(Difference(step.key, step.since, step.decided, decided))
    return replayed


def plain(commands: Sequence[Command]) -> list[dict[str, Any]]:
    """What was decided, as it stands in a record."""
    return [msgspec.to_builtins(command) for command in decisions(commands)]
