"""The what-if replay: the load of a record under other settings.

Up to the first decision that differs, the core gets the recorded events. From there on the record's engines no longer
match, so simple stand-ins replace them. A request that was served takes as long from its dispatch, and generates as
many tokens, as in the record; any other takes the mean of those served. The stand-ins get neither slower under more
load nor faster under less. The recorded gauges are left out, as they show another load.

A request that was refused for lack of room and came back counts as one request, by its last try. If it is not refused
under the other settings, it does not come back. Requests that an earlier core dispatched take up room until they end,
and are not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from typing import Any

from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.events import (
    Arrived,
    Behind,
    Cancelled,
    Declared,
    Event,
    Finished,
    Observed,
    Progress,
    RequestId,
    Returned,
    Tick,
    Verdict,
)
from gateway.admission.outcomes import FOR_WANT_OF_ROOM
from gateway.ops.returns import Returns
from gateway.record.lines import decisions
from gateway.record.replay import Changes, Difference, PoolKey, Replayed, Step, steps

DISPATCHED = "dispatched"
LEFT = "client left the queue"
WAITING = "still waiting at the end"


Named = tuple[PoolKey, RequestId]


@dataclass(slots=True)
class Fate:
    """The fate of one request. Times are seconds.

    Attributes:
        ended: `DISPATCHED`, `LEFT`, `WAITING` or the outcome of its refusal.
        at: when that was decided.
    """

    arrived_at: float
    ended: str = WAITING
    at: float = inf

    def decide(self, ended: str, at: float) -> None:
        """Note a decision. The first one counts: a request that is later sent elsewhere was dispatched."""
        if self.ended == WAITING:
            self.ended, self.at = ended, at


@dataclass(frozen=True, slots=True)
class Service:
    """An engine's service of one request, in seconds from its dispatch."""

    first: float
    duration: float
    tokens: int
    verdict: Verdict = Verdict.DONE

    def generated(self, elapsed: float) -> int:
        """Tokens generated after this time, at an even pace."""
        if elapsed < self.first or not self.tokens:
            return 0
        share = (elapsed - self.first) / max(self.duration - self.first, 1e-9)
        return min(self.tokens, 1 + int(share * (self.tokens - 1)))


@dataclass(slots=True)
class _Seen:
    """A request on an engine, as recorded."""

    dispatched_at: float
    first_at: float | None = None
    generated: int = 0

    def service(self, ended_at: float, tokens: int, verdict: Verdict) -> Service:
        first_at = ended_at if self.first_at is None else self.first_at
        return Service(first_at - self.dispatched_at, ended_at - self.dispatched_at, tokens, verdict)


@dataclass(slots=True)
class Compared:
    """A record, and the same load under other settings."""

    recorded: dict[Named, Fate] = field(default_factory=dict)
    changed: dict[Named, Fate] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    """The first difference of each core; after it the two runs cannot be compared event by event."""
    replayed: Replayed = field(default_factory=Replayed)

    def outcomes(self) -> list[tuple[str, int, int]]:
        """Number of requests by outcome: recorded, and with the change."""
        before = Counter(fate.ended for fate in self.recorded.values())
        after = Counter(fate.ended for fate in self.changed.values())
        return [(ended, before[ended], after[ended]) for ended in sorted({*before, *after}, key=_order)]

    def otherwise(self) -> list[tuple[PoolKey, RequestId, Fate, Fate]]:
        """The requests with another outcome, in the order of their arrival."""
        pairs = ((*key, fate, self.changed[key]) for key, fate in self.recorded.items())
        return [pair for pair in pairs if pair[2].ended != pair[3].ended]


def waits(fates: Iterable[Fate]) -> list[float]:
    """Queue times of the dispatched requests, in seconds, the shortest first."""
    return sorted(fate.at - fate.arrived_at for fate in fates if fate.ended == DISPATCHED)


Heard = Callable[[Step, Event, Sequence[Command], float], None]
"""Told each event that a core handled in a replay, with the decisions and the time. The step is the latest one of the
record for that core."""


def compare(file: Path, changes: Changes) -> Compared:
    """Run a record with other settings.

    Raises:
        EventLogError: the file is not an event log.
        ConfigurationError: the settings are invalid.
    """
    other = WhatIf(file, changes)
    for step in other.steps():
        other.take(step)
    return other.compared


class WhatIf:
    """A record under other settings, event by event.

    Args:
        file: the record.
        changes: to the settings.
        heard: is told what happens.

    Raises:
        EventLogError: the file is not an event log.
        ConfigurationError: the settings are invalid.
    """

    def __init__(self, file: Path, changes: Changes, heard: Heard | None = None) -> None:
        self.compared = Compared()
        self._file, self._changes, self._heard = file, changes, heard
        self._recorded = _Recorded(self.compared.recorded)
        for step in steps(file, Replayed(), {}):
            self._recorded.take(step)
        self._recorded.end()
        self._cores: dict[PoolKey, _Alternative] = {}

    def steps(self) -> Iterator[Step]:
        """The events of the record, to take in order.

        Raises: as the constructor.
        """
        return steps(self._file, self.compared.replayed, self._changes)

    def take(self, step: Step) -> None:
        """Take the next recorded event."""
        core = self._cores.get(step.key)
        if core is None:
            core = self._cores[step.key] = _Alternative(step, self._recorded, self.compared, self._heard)
        core.take(step)

    def advance(self, run: int, to: float) -> None:
        """Let the stand-ins of a run serve up to this time, which is before that of the next event."""
        for key, core in self._cores.items():
            if key.run == run and core.diverged:
                core.advance(to)

    def diverged(self, key: PoolKey) -> bool:
        """Whether this core has decided otherwise than in the record."""
        return key in self._cores and self._cores[key].diverged


class _Recorded:
    """The service that the record's engines gave its requests."""

    def __init__(self, fates: dict[Named, Fate]) -> None:
        self._fates = fates
        self._firsts: dict[Named, Named] = {}
        """The first try of each request that came back."""
        self._fingerprints: dict[Named, int] = {}
        self._returns: defaultdict[PoolKey, Returns[Named]] = defaultdict(Returns)
        self._running: dict[Named, _Seen] = {}
        self._services: dict[Named, Service] = {}
        self._means: dict[PoolKey, Service] = {}

    def take(self, step: Step) -> None:
        """Take the next recorded event."""
        key, event = step.key, step.event
        match event:
            case Arrived() if (key, event.request) not in self._fingerprints:
                named = (key, event.request)
                self._fingerprints[named] = event.key
                self._firsts[named] = self._returns[key].came(event.key, step.at) or named
                self._fates[self._firsts[named]] = Fate(step.at)
            case Declared():
                self._running.setdefault((key, event.arrival.request), _Seen(step.at))
            case Cancelled() if (key, event.request) in self._firsts:
                self._fates[self.first(key, event.request)].decide(LEFT, step.at)
            case Progress():
                self._progressed(key, event, step.at)
            case Finished() if (seen := self._running.pop((key, event.request), None)) is not None:
                tokens = seen.generated if event.completion_tokens is None else event.completion_tokens
                self._services[self.first(key, event.request)] = seen.service(step.at, tokens, event.verdict)
        for decided in step.decided:
            named = (key, RequestId(decided["request"]))
            if "endpoint" in decided:
                self._running[named] = _Seen(step.at)
            if named in self._firsts:
                self._decided(named, decided.get("outcome", DISPATCHED), step.at)

    def _progressed(self, key: PoolKey, event: Progress, at: float) -> None:
        for request, generated in event.generated:
            if (seen := self._running.get((key, request))) is not None and generated:
                seen.generated = generated
                seen.first_at = at if seen.first_at is None else seen.first_at

    def end(self) -> None:
        """End the record."""
        for owner in {key for key, _ in (*self._fates, *self._running)}:
            self._means[owner] = _mean([served for (key, _), served in self._services.items() if key == owner])

    def service(self, key: PoolKey, request: RequestId) -> Service:
        """Its service; the mean if it was not served, or not to its end."""
        return self._services.get(self.first(key, request)) or self._means[key]

    def first(self, key: PoolKey, request: RequestId) -> Named:
        """The first try of a request."""
        return self._firsts.get((key, request), (key, request))

    def _decided(self, named: Named, ended: str, at: float) -> None:
        first = self._firsts[named]
        self._fates[first].decide(ended, at)
        if ended in FOR_WANT_OF_ROOM:
            self._returns[named[0]].refused(self._fingerprints[named], first, at)


def _mean(services: list[Service]) -> Service:
    """The mean of the services that ran to their end; without any, one that never ends."""
    done = [service for service in services if service.verdict is Verdict.DONE]
    if not done:
        return Service(inf, inf, 0)
    count = len(done)
    return Service(
        sum(service.first for service in done) / count,
        sum(service.duration for service in done) / count,
        round(sum(service.tokens for service in done) / count),
    )


class _Alternative:
    """One core under the other settings, with stand-in engines once it has decided differently."""

    def __init__(self, step: Step, recorded: _Recorded, compared: Compared, heard: Heard | None) -> None:
        self._key = step.key
        self._controller = step.controller
        self._step = step
        self._heard = heard
        self._recorded = recorded
        self._never_came: set[RequestId] = set()
        """Later tries of requests that are not refused here, so that they never come."""
        self._compared = compared
        self.diverged = False
        self._arrived: set[RequestId] = set()
        self._running: dict[RequestId, tuple[float, Service]] = {}
        self._ends: list[tuple[float, RequestId]] = []
        self._wake_at = inf

    def take(self, step: Step) -> None:
        """Take the next recorded event."""
        self._step = step
        if self.diverged:
            self.advance(step.at)
            if (event := self._event(step)) is not None:
                self._handle(event, step.at)
            return
        commands = self._handle(step.event, step.at)
        if isinstance(step.event, (Finished, Returned)) and not _dispatched(commands, step.event.request):
            self._running.pop(step.event.request, None)
        decided = decisions(commands)
        if _gist(decided) != _gist(list(step.decided)):
            self.diverged = True
            self._compared.differences.append(Difference(self._key, step.since, step.decided, decided))
            for request, (since, service) in self._running.items():
                heappush(self._ends, (max(step.at, since + service.duration), request))

    def _event(self, step: Step) -> Event | None:
        """The event to pass to the core instead of one from the record's own engines; None for none."""
        match step.event:
            case Arrived() if self._goes_on(step.event.request):
                self._never_came.add(step.event.request)
                return None
            case Cancelled() if step.event.request in self._never_came:
                return None
            case Progress():
                going = {request: s.generated(step.at - since) for request, (since, s) in self._running.items()}
                return Progress(tuple((request, tokens) for request, tokens in going.items() if tokens))
            case Behind() | Finished() | Returned() | Observed() | Tick():
                return None
        return step.event

    def _first(self, request: RequestId) -> Named:
        return self._recorded.first(self._key, request)

    def _goes_on(self, request: RequestId) -> bool:
        """Whether it was refused and came back in the record, but was not refused here."""
        first = self._first(request)
        return first[1] != request and self._compared.changed[first].ended not in FOR_WANT_OF_ROOM

    def advance(self, to: float) -> None:
        """Advance to this time: end the services that are due, and wake the core when it asked for it."""
        while (due := min(self._wake_at, self._ends[0][0] if self._ends else inf)) <= to:
            if self._ends and self._ends[0][0] == due:
                request = heappop(self._ends)[1]
                _, service = self._running.pop(request)
                self._handle(Finished(request, service.verdict, service.tokens), due)
            else:
                self._wake_at = inf
                self._handle(Tick(), due)

    def _handle(self, event: Event, now: float) -> list[Command]:
        changed = self._compared.changed
        match event:
            case Arrived() if event.request not in self._arrived:
                self._arrived.add(event.request)
                changed[self._first(event.request)] = Fate(now)
            case Cancelled() if event.request in self._arrived:
                changed[self._first(event.request)].decide(LEFT, now)
        commands = self._controller.handle(event, now)
        if self._heard is not None:
            self._heard(self._step, event, commands, now)
        if isinstance(event, Declared) and self._controller.next_reports(
            {event.arrival.request} - self._running.keys()
        ):
            self._begin(event.arrival.request, now)
        for command in commands:
            match command:
                case Dispatch():
                    self._begin(command.request, now)
                    self._decide(command.request, DISPATCHED, now)
                case Reject():
                    self._decide(command.request, command.outcome.value, now)
                case WakeAt():
                    self._wake_at = command.at
        return commands

    def _begin(self, request: RequestId, now: float) -> None:
        service = self._recorded.service(self._key, request)
        self._running[request] = (now, service)
        if self.diverged:
            heappush(self._ends, (now + service.duration, request))

    def _decide(self, request: RequestId, ended: str, now: float) -> None:
        if request in self._arrived:
            self._compared.changed[self._first(request)].decide(ended, now)


def _dispatched(commands: list[Command], request: RequestId) -> bool:
    return any(isinstance(command, Dispatch) and command.request == request for command in commands)


def _gist(decided: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The decisions without `Retry-After`: which request goes where, and which is refused with what."""
    return [(one["request"], one.get("endpoint"), one.get("outcome")) for one in decided]


def _order(ended: str) -> tuple[bool, bool, str]:
    return ended != DISPATCHED, ended in {LEFT, WAITING}, ended
