"""The album of a record: pictures of its gateway at even times, as the page draws them.

A record tells what its cores were told. It tells neither addresses nor kinds of engines, nor what gateways keep to
themselves: these are unknown in its pictures.
"""

import gzip
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from gateway.admission.commands import Command
from gateway.admission.events import Event
from gateway.admission.outcomes import FOR_WANT_OF_ROOM, Outcome
from gateway.admission.placing.request import service
from gateway.admission.policy import Policy
from gateway.admission.snapshot import EndpointSnapshot, PoolState
from gateway.endpoints.health import State
from gateway.ops.pictures import parts
from gateway.ops.pictures.digest import Digest, OfModel
from gateway.ops.pictures.history import History
from gateway.ops.pictures.picture import MOST_FLOWS, MOST_REQUESTS, Endpoint, Gauge, Picture, Point, Request, Sign
from gateway.ops.pictures.signs import Seen, headline, signs
from gateway.record.followed import FollowedCore, Gone, Told
from gateway.record.replay import PoolKey, Step
from gateway.record.timetable import Timetable

_STATES = frozenset(state.value for state in State)
_REFUSED = FOR_WANT_OF_ROOM | {Outcome.NO_ENDPOINT}
_NOTHING_UP = Sign(key="nothing", level="bad", text="Not serving: no endpoint has been up so far.")
Totals = tuple[int | None, int | None, int | None]
"""Tokens generated, prompt tokens and preemptions, by an engine's own counters."""


class Glance(msgspec.Struct, frozen=True):
    """A picture in a few figures. Numbers of requests are those since the picture before."""

    at: float
    usage: float | None
    """Of the fullest endpoint that is up."""
    waiting: int
    oldest: float | None
    """Seconds that the oldest has waited; None if nobody waits."""
    running: int
    answered: int
    refused: int
    """By the core, for want of room or of an endpoint."""
    closed: tuple[str, ...]
    """Endpoints whose gate is closed."""


class Side(msgspec.Struct, kw_only=True):
    """A record as it went, or would have gone."""

    settings: tuple[str, ...]
    """Those that differ from the record's, as they were given."""
    points: list[Point] = []
    glances: list[Glance] = []
    otherwise: float | None = None
    """Time of the first decision that differs from the recorded one; from there on other settings are modelled."""


class Album:
    """Takes the pictures of one side. Call `until` before a step is taken, and `end` after the last."""

    def __init__(self, times: Timetable, side: Side) -> None:
        self.side = side
        self.pictures: list[bytes] = []
        self.advance: Callable[[int, float], None] = lambda _run, _to: None
        """Brings the cores of a run to a time."""
        self._times = times
        self._run = 0
        self._due: deque[float] = deque()
        self._begin(0)

    def _begin(self, run: int) -> None:
        self._run = run
        self._cores: dict[PoolKey, FollowedCore] = {}
        self._history = History()
        self._digest = Digest()
        self._answered = self._refused = 0
        self._ended: deque[Request] = deque(maxlen=MOST_REQUESTS)
        if run:
            self._due.extend(self._times.times(run))
            span = self._times.runs[run]
            self._epoch = span.offset - span.began

    def until(self, step: Step) -> None:
        """Take the pictures that are due before a step."""
        if step.key.run != self._run:
            self.end()
            self._begin(step.key.run)
        while self._due and self._due[0] < step.at:
            self._take(self._due.popleft())

    def end(self) -> None:
        """Take those that are left of the run."""
        while self._due:
            self._take(self._due.popleft())

    def differs(self, step: Step) -> None:
        """Note that a decision differs from the recorded one."""
        if self.side.otherwise is None:
            self.side.otherwise = round(self._epoch + step.at, 3)

    def blind(self, key: PoolKey) -> None:
        """Leave out the record's gauges of a core from now on."""
        self._cores[key].blind = True

    def heard(self, step: Step, event: Event, commands: Sequence[Command], now: float) -> None:
        """Note what a core was told, and what it decided."""
        core = self._cores.get(step.key)
        if core is None:
            core = self._cores[step.key] = FollowedCore(step.model, step.controller, step.policy)
        core.policy = step.policy
        for gone in core.heard(event, commands, now):
            self._count(core.model, gone, now)

    def _count(self, model: str, gone: Gone, now: float) -> None:
        """Count the end of a request."""
        one, outcome = gone.carried, gone.outcome
        flow, prompt = one.arrival.flow, one.arrival.demand.prompt_tokens
        self._answered += outcome is Outcome.COMPLETED
        self._refused += outcome in _REFUSED
        served = service(prompt, one.generated) if one.generated else 0.0
        first = None if one.first is None else one.first - one.came
        self._digest.models.setdefault(model, OfModel()).count(outcome, flow, service=served, first=first, gap=None)
        sent = now if one.endpoint is None else one.sent
        self._ended.appendleft(
            Request(
                key=str(gone.request),
                phase="ended",
                model=model,
                flow=flow,
                band=one.arrival.band,
                prompt=prompt,
                generated=one.generated or None,
                came=round(self._epoch + one.came, 2),
                waited=None if sent is None else round(max(0.0, sent - one.came), 2),
                first=None if first is None else round(first, 3),
                ends=round(self._epoch + now, 2),
                endpoint=one.endpoint,
                outcome=outcome.value,
            )
        )

    def _take(self, now: float) -> None:
        """Take the picture of a time."""
        self.advance(self._run, now)
        at = self._epoch + now
        states = [(core, core.controller.snapshot(now)) for core in self._cores.values()]
        self._history.take(self._digest, at)
        self._digest = Digest()
        endpoints = [(core, each, core.endpoint(each.id, now)) for core, state in states for each in state.endpoints]
        waiting = {core.model: state.queue.depth for core, state in states}
        self._history.add(at, waiting, [(each.id, *_gauge(core, each, told)) for core, each, told in endpoints])
        seen = self._seen(states, [self._endpoint(core, each, told) for core, each, told in endpoints], now)
        dated = self._history.dated(signs(seen) if endpoints else [_NOTHING_UP], round(at, 1), keep=True)
        policy = self._policy
        picture = Picture(
            at=round(at, 3),
            version=self._times.versions[-1],
            mode=policy.mode.value,
            kv_high=policy.kv_high,
            kv_low=policy.kv_low,
            headline=headline(seen, dated),
            signs=dated,
            endpoints=seen.endpoints,
            models=seen.models,
            requests=self._requests(now),
        )
        self.pictures.append(gzip.compress(msgspec.json.encode(picture), 1, mtime=0))
        if self._history.last is not None:
            self.side.points.append(self._history.last)
        self.side.glances.append(self._glance(picture, [state for _, state in states]))
        self._answered = self._refused = 0

    @property
    def _policy(self) -> Policy:
        return next(reversed(self._cores.values())).policy if self._cores else Policy()

    def _seen(self, states: list[tuple[FollowedCore, PoolState]], endpoints: list[Endpoint], now: float) -> Seen:
        recent, policy = self._history.recent(), self._policy
        models = tuple(
            parts.queue(
                core.model,
                state.queue.depth,
                now - state.queue.oldest_age if state.queue.depth else None,
                core.controller.flows(now, MOST_FLOWS),
                recent.get(core.model, OfModel()),
                ttft_target=core.policy.ttft_target,
                weights=core.policy.weights,
                epoch=self._epoch,
            )
            for core, state in states
        )
        return Seen(
            at=self._epoch + now,
            endpoints=tuple(endpoints),
            models=models,
            preempted=self._history.preempted(),
            kv_high=policy.kv_high,
            kv_low=policy.kv_low,
        )

    def _endpoint(self, core: FollowedCore, snapshot: EndpointSnapshot, told: Told) -> Endpoint:
        state, _, reason = (snapshot.reason or "").partition(": ")
        if state not in _STATES:
            state, reason = "down", snapshot.reason or ""
        observed = None if core.blind else told.observed
        capacity, last = snapshot.capacity, self._history.last
        preempted = None if observed is None else observed.preemptions
        return Endpoint(
            id=snapshot.id,
            url="",
            model=core.model,
            kind=None,
            state="up" if snapshot.up else state,
            healthy=snapshot.up,
            reason="" if snapshot.up else reason,
            since=round(self._epoch + told.since, 1),
            gate_open=snapshot.gate_open,
            closed_by=snapshot.closed_by,
            blocks=capacity.kv_blocks,
            block_size=capacity.block_size,
            usage=parts.share(snapshot.effective_usage),
            forecast=parts.share(snapshot.forecast_usage),
            split=parts.split(snapshot),
            in_flight=snapshot.in_flight,
            sequences=snapshot.sequences,
            sequence_limit=snapshot.sequence_limit,
            preemptions=None if preempted is None else round(preempted - (told.preempted or 0.0)),
            decode_rate=parts.rate(snapshot.decode_rate),
            prefill_rate=parts.rate(snapshot.prefill_rate),
            generated_rate=None if last is None else last.endpoints[snapshot.id].generated,
            scraped=None if observed is None else round(self._epoch + observed.sampled_at, 1),
        )

    def _requests(self, now: float) -> tuple[Request, ...]:
        found = [
            parts.live(core.model, snapshot, self._epoch)
            for core in self._cores.values()
            for snapshot in core.controller.requests(now, MOST_REQUESTS)
        ]
        found.sort(key=lambda request: -request.came)
        return (*found, *self._ended)[:MOST_REQUESTS]

    def _glance(self, picture: Picture, states: list[PoolState]) -> Glance:
        usages = [each.usage for each in picture.endpoints if each.healthy and each.usage is not None]
        return Glance(
            at=picture.at,
            usage=max(usages, default=None),
            waiting=sum(state.queue.depth for state in states),
            oldest=max((round(state.queue.oldest_age, 1) for state in states if state.queue.depth), default=None),
            running=sum(each.in_flight for each in picture.endpoints),
            answered=self._answered,
            refused=self._refused,
            closed=tuple(each.id for each in picture.endpoints if each.healthy and not each.gate_open),
        )


def _gauge(core: FollowedCore, snapshot: EndpointSnapshot, told: Told) -> tuple[Gauge, Totals]:
    """The gauge of an endpoint, and the totals by its engine's counters."""
    usage, forecast = parts.share(snapshot.effective_usage), parts.share(snapshot.forecast_usage)
    gauge = Gauge(usage, forecast, snapshot.sequences, snapshot.gate_open, None, None, 0)
    observed = None if core.blind else told.observed
    if observed is None:
        return gauge, (None, None, None)
    generated, preempted = observed.generation_tokens, observed.preemptions
    return gauge, (
        None if generated is None else round(generated),
        None,
        None if preempted is None else round(preempted),
    )
