"""A recording, read in one pass over its file: the fate of each request and the load of each endpoint."""

from dataclasses import dataclass, field
from pathlib import Path

from gateway.admission.events import (
    Arrived,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointId,
    EndpointUp,
    Finished,
    Observed,
    Prefix,
    Progress,
    RequestId,
    Returned,
    Verdict,
)
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.ops.returns import Returns
from gateway.record.lines import Changed, Dropped, Happened, Opened, Started, read


@dataclass(slots=True)
class Served:
    """One request that arrived at a core. Times are seconds since the record began; None means it never happened.

    Attributes:
        generated: tokens seen, over all its sequences.
        refused: its outcome, if no endpoint was to serve it.
        done: whether its answer is complete.
        fingerprint: by which it is recognised when it comes back.
        came_back: whether it was refused and a later request is its return.
    """

    model: str
    demand: Demand
    prefix: Prefix
    arrived_at: float
    dispatched_at: float | None = None
    ended_at: float | None = None
    generated: int = 0
    refused: Outcome | None = None
    done: bool = False
    fingerprint: int = 0
    came_back: bool = False
    endpoint: EndpointId | None = None
    """The endpoint it was last sent to."""


@dataclass(slots=True)
class Watched:
    """The observations of one endpoint, over all runs.

    Attributes:
        up_since: when it last began to serve; None while it does not serve.
        usages: share of its KV cache in use, one for each scrape.
        used_at: times of these scrapes.
        preemptions: number while it was watched.
        counts_preemptions: whether it reports them.
        peak_sequences: most sequences of ours on it at once.
    """

    model: str
    capacity: Capacity
    up_since: float | None = None
    usages: list[float] = field(default_factory=list)
    used_at: list[float] = field(default_factory=list)
    preemptions: int = 0
    counts_preemptions: bool = False
    generated: float = 0.0
    """Tokens that it generated, for all clients."""
    sequences: int = 0
    peak_sequences: int = 0
    last: Observed | None = field(default=None, repr=False)

    def take(self, sample: Observed, at: float) -> None:
        """Take the next scrape."""
        if sample.kv_usage is not None:
            self.usages.append(sample.kv_usage)
            self.used_at.append(at)
        self.counts_preemptions = sample.preemptions is not None
        if self.last is not None:
            self.preemptions += round(_moved(self.last.preemptions, sample.preemptions))
            self.generated += _moved(self.last.generation_tokens, sample.generation_tokens)
        self.last = sample

    def now_at(self, change: int) -> None:
        """Change the number of our sequences on it."""
        self.sequences += change
        self.peak_sequences = max(self.peak_sequences, self.sequences)


def _moved(before: float | None, now: float | None) -> float:
    """The growth of a counter. A counter that was reset grew from zero."""
    if before is None or now is None:
        return 0.0
    return now - before if now >= before else now


@dataclass(slots=True)
class Recording:
    """A whole record. Its runs are joined; the time between them does not count.

    Attributes:
        started: first line of its last run, with the settings at its end.
        seconds: sum over all runs, from the first event to the last.
        gaps: whether lines are missing.
    """

    started: Started | None = None
    seconds: float = 0.0
    requests: list[Served] = field(default_factory=list)
    endpoints: dict[EndpointId, Watched] = field(default_factory=dict)
    gaps: bool = False


def recording(file: Path) -> Recording:
    """Read a record.

    Raises:
        EventLogError: the file is not an event log.
    """
    found = Recording()
    run = _Run(found)
    for line in read(file):
        match line:
            case Started():
                run.end()
                run = _Run(found)
                found.started = line
            case Changed() if found.started is not None:
                found.started = line.applied(found.started)
            case Opened():
                run.models[line.pool] = line.model
            case Dropped():
                found.gaps = True
            case Happened():
                run.take(line)
    run.end()
    return found


class _Run:
    """One run of a gateway, with its own requests and clock."""

    def __init__(self, found: Recording) -> None:
        self.models: dict[int, str] = {}
        self._found = found
        self._open: dict[tuple[int, RequestId], Served] = {}
        self._on: dict[tuple[int, RequestId], Watched] = {}
        self._began = found.seconds
        self._first: float | None = None
        self._returns: Returns[Served] = Returns()
        for watched in found.endpoints.values():
            watched.up_since = None

    def take(self, line: Happened) -> None:
        """Take the next event."""
        self._first = line.at if self._first is None else self._first
        at = self._found.seconds = self._began + line.at - self._first
        event = line.read()
        match event:
            case EndpointUp():
                model = self.models.get(line.pool, "")
                watched = self._found.endpoints.setdefault(event.endpoint, Watched(model, event.capacity))
                watched.capacity = event.capacity
                watched.up_since = at if watched.up_since is None else watched.up_since
            case EndpointDown() | EndpointGone():
                if isinstance(event, EndpointDown) and event.capacity is not None:  # requests may be declared on it
                    model = self.models.get(line.pool, "")
                    self._found.endpoints.setdefault(event.endpoint, Watched(model, event.capacity))
                if (lost := self._found.endpoints.get(event.endpoint)) is not None:
                    lost.up_since = None
            case Observed() if (observed := self._found.endpoints.get(event.endpoint)) is not None:
                observed.take(event, at)
            case Arrived() | Declared() | Progress() | Finished() | Returned():
                self._follow(event, line.pool, at)
        for decided in line.decisions:
            self._decided((line.pool, RequestId(decided["request"])), decided, at)

    def _follow(self, event: Arrived | Declared | Progress | Finished | Returned, pool: int, at: float) -> None:
        match event:
            case Arrived():
                served = Served(self.models.get(pool, ""), event.demand, event.prefix, at, fingerprint=event.key)
                if (before := self._returns.came(event.key, at)) is not None:
                    before.came_back = True
                self._open[pool, event.request] = served
                self._found.requests.append(served)
            case Declared(arrival, endpoint, generated):  # an earlier run counts it as a request
                key, model = (pool, arrival.request), self.models.get(pool, "")
                declared = Served(model, arrival.demand, arrival.prefix, at, at, generated=generated)
                self._open[key] = declared
                self._sent(key, declared, endpoint)
            case Progress():
                for request, generated in event.generated:
                    if (progressing := self._open.get((pool, request))) is not None:
                        progressing.generated = max(progressing.generated, generated)
            case Finished() if (finished := self._open.pop((pool, event.request), None)) is not None:
                finished.ended_at = at
                finished.done = event.verdict is Verdict.DONE
                if event.completion_tokens is not None:
                    finished.generated = event.completion_tokens
                self._leave((pool, event.request), finished)
            case Returned() if (returned := self._open.get((pool, event.request))) is not None:
                self._leave((pool, event.request), returned)

    def end(self) -> None:
        """End the run: requests still on its endpoints are no longer followed."""
        for watched in self._found.endpoints.values():
            watched.sequences, watched.last = 0, None

    def _decided(self, key: tuple[int, RequestId], decided: dict[str, object], at: float) -> None:
        served = self._open.get(key)
        if served is None:
            return
        if "endpoint" in decided:
            served.dispatched_at = at if served.dispatched_at is None else served.dispatched_at
            self._sent(key, served, EndpointId(str(decided["endpoint"])))
        else:
            served.ended_at, served.refused = at, Outcome(str(decided["outcome"]))
            if served.refused in FOR_WANT_OF_ROOM:
                self._returns.refused(served.fingerprint, served, at)
            del self._open[key]

    def _sent(self, key: tuple[int, RequestId], served: Served, endpoint: EndpointId) -> None:
        served.endpoint = endpoint
        watched = self._found.endpoints.get(endpoint)
        if watched is not None:
            self._on[key] = watched
            watched.now_at(served.demand.sequences)

    def _leave(self, key: tuple[int, RequestId], served: Served) -> None:
        watched = self._on.pop(key, None)
        if watched is not None:
            watched.now_at(-served.demand.sequences)
