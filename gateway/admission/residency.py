"""The residency of engines that come and go with demand: which runs, for how long, and which goes next.

Engines of one group share their cards, so one of them runs at a time. An engine starts with its first request. One that
has work keeps its cards while no other is waited for, and else for four times as long as its start took: starts then
take about a fifth of the time. One without work goes sooner. Next is the engine that left longest ago, so every one has
its turn, however many wait for another. An engine that is to go takes no new requests, and leaves when those on it have
ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from gateway.admission.events import EndpointId, ResidencyPhase

LEAST_STAY: Final = 1.0
"""Seconds that every engine runs at least."""
IDLE_STAY: Final = 0.25
"""Of an engine without work that others wait for: part of the seconds its start took."""
BUSY_STAY: Final = 4.0
"""Of one with work, likewise."""
LINGER: Final = 0.5
"""Seconds without a request after which an engine has no work: a client may be about to send its next."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that comes and goes. Times are seconds on the core's clock."""

    id: EndpointId
    phase: ResidencyPhase
    since: float
    """When it entered its phase."""
    group: str
    """Of the engines that share its cards; its own if it shares none."""
    takes: float | None = None
    """Seconds its last start took; None if it never was started."""
    waits_since: float | None = None
    """When the oldest request that waits for it came; None if none does."""
    busy: bool = False
    """Whether requests are on it."""
    worked_at: float = -inf
    """When it last had a request, on it or waiting."""
    left_at: float = -inf
    """When it last left."""
    idle_stop: float | None = None
    """Seconds without a request after which it goes, though nobody waits for its cards; None: it stays."""
    not_before: float = -inf
    """Its next start: after one that failed, it rests."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the engine: its cards are free."""

    engine: EndpointId


@dataclass(frozen=True, slots=True)
class Retire:
    """Send the engine no new requests, and end it when those on it have ended."""

    engine: EndpointId


def decide(engines: Iterable[Engine], now: float) -> list[Start | Retire]:
    """What is to happen now: at most one start or end in each group."""
    commands: list[Start | Retire] = []
    for group in _groups(engines).values():
        waiting = _waiting(group, now)
        if _holder(group) is None:
            commands += [Start(engine.id) for engine in waiting[:1]]
            continue
        staying = [engine for engine in group if engine.phase in {ResidencyPhase.STARTING, ResidencyPhase.UP}]
        others = bool(waiting) or len(staying) > 1  # several ran when a reload made them a group
        commands += [Retire(engine.id) for engine in staying if _goes(engine, now, others=others)][:1]
    return commands


def ready_at(engines: Iterable[Engine], now: float) -> dict[EndpointId, float | None]:
    """When each engine that is not up would be, for a request that comes now; None where a start's time is unknown.

    It is early if engines before it have long answers to end. For one whose start is late it lies in the past.
    """
    found: dict[EndpointId, float | None] = {}
    for group in _groups(engines).values():
        holder, free = _holder(group), now
        if holder is not None and holder.phase is ResidencyPhase.STARTING:
            found[holder.id] = None if holder.takes is None else holder.since + holder.takes
        if holder is not None and holder.phase is not ResidencyPhase.LEAVING:
            began = (
                holder.since if holder.phase is ResidencyPhase.UP else max(now, holder.since + (holder.takes or 0.0))
            )
            free = max(now, began + _stay(holder, now))
        unknown = holder is not None and holder.phase is not ResidencyPhase.UP and holder.takes is None
        queue = _waiting(group, inf)
        for engine in queue:
            rests = max(free, engine.not_before)
            unknown |= engine.takes is None
            found[engine.id] = None if engine.takes is None or unknown else rests + engine.takes
            free = rests + (engine.takes or 0.0) * (1 + BUSY_STAY)
        for engine in group:
            if engine.phase in {ResidencyPhase.STOPPED, ResidencyPhase.LEAVING} and engine.id not in found:
                found[engine.id] = None if engine.takes is None or unknown else free + engine.takes
    return found


def _groups(engines: Iterable[Engine]) -> Mapping[str, Sequence[Engine]]:
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(engine.group, []).append(engine)
    return groups


def _holder(group: Iterable[Engine]) -> Engine | None:
    """The engine that holds the group's cards."""
    return next((engine for engine in group if engine.phase is not ResidencyPhase.STOPPED), None)


def _waiting(group: Iterable[Engine], now: float) -> list[Engine]:
    """The engines to start at this time, next first."""
    waiting = [
        (engine.left_at, engine.waits_since, engine.id, engine)
        for engine in group
        if engine.phase is ResidencyPhase.STOPPED and engine.waits_since is not None and engine.not_before <= now
    ]
    return [engine for *_, engine in sorted(waiting, key=lambda found: found[:3])]


def _goes(holder: Engine, now: float, *, others: bool) -> bool:
    match holder.phase:
        case ResidencyPhase.STARTING:
            return others and holder.waits_since is None  # those it was started for have left
        case ResidencyPhase.UP if others:
            return now >= holder.since + _stay(holder, now)
        case ResidencyPhase.UP:
            idle = not _works(holder, now)
            return (
                idle and holder.idle_stop is not None and now >= max(holder.worked_at, holder.since) + holder.idle_stop
            )
        case _:
            return False


def _works(engine: Engine, now: float) -> bool:
    return engine.busy or engine.waits_since is not None or now < engine.worked_at + LINGER


def _stay(engine: Engine, now: float) -> float:
    """Seconds that it runs though others wait."""
    return max(LEAST_STAY, (engine.takes or 0.0) * (BUSY_STAY if _works(engine, now) else IDLE_STAY))
