"""The replay of a record: runs the core again and compares its decisions with the recorded ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Event, PolicyChanged
from gateway.admission.policy import Policy
from gateway.config.admission import AdmissionSettings
from gateway.config.sources import load
from gateway.record.lines import Changed, Dropped, EventLogError, Happened, Opened, Started, decisions, read

Changes = Mapping[str, Any]
"""Settings of the section `admission` that override the recorded ones."""


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
        controller: its core, which has handled all events before it and not yet this one.
        decided: the decisions on it, in plain values.
        model: its core's.
        policy: the one in force.
    """

    key: PoolKey
    at: float
    since: float
    event: Event
    controller: AdmissionController
    decided: Sequence[dict[str, Any]]
    model: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Difference:
    """Decisions on one event that differ from the recorded ones, in plain values."""

    key: PoolKey
    since: float
    recorded: Sequence[dict[str, Any]]
    replayed: Sequence[dict[str, Any]]


@dataclass(slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        models: name of each core's model.
        decisions: number in the record, up to a gap.
        gaps: the runs with missing lines; the part after the gap is left out.
    """

    events: int = 0
    decisions: int = 0
    differences: list[Difference] = field(default_factory=list)
    models: dict[PoolKey, str] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)


def policy(started: Started, changes: Changes) -> Policy:
    """The policy of a run, with changes.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    return settings(started, changes).to_policy(
        weights=started.weights, kv_shares=started.kv_shares, poll_interval=started.poll_interval
    )


def settings(started: Started, changes: Changes) -> AdmissionSettings:
    """The settings of a run, with changes.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    recorded = {"admission": dict(started.admission)}
    return load(recorded, environ={}, changes={"admission": changes}).admission


def steps(file: Path, replayed: Replayed, changes: Changes) -> Iterator[Step]:
    """Every event of a record, in order, each with its core.

    Args:
        file: the record.
        replayed: is filled in, except for the differences.
        changes: to the settings.

    Raises:
        EventLogError: the file is not an event log.
        ConfigurationError: the settings are invalid.
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
                start = line.applied(start)
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
                yield Step(
                    key,
                    line.at,
                    line.at - began,
                    event,
                    controllers[line.pool],
                    line.decisions,
                    replayed.models[key],
                    wanted,
                )


def verify(file: Path) -> Replayed:
    """Replay a record as it was.

    Raises:
        EventLogError: the file is not an event log.
        ConfigurationError: this version does not know its settings.
    """
    replayed = Replayed()
    for step in steps(file, replayed, {}):
        decided = decisions(step.controller.handle(step.event, step.at))
        if decided != list(step.decided):
            replayed.differences.append(Difference(step.key, step.since, step.decided, decided))
    return replayed
