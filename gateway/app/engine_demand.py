"""The engines that come and go with demand: gathers what the decision needs, and has it carried out."""

import asyncio
from collections.abc import Callable, Mapping
from math import inf

import structlog

from gateway.admission.events import EndpointId, Expected, ResidencyPhase
from gateway.admission.residency import Engine, Retire, Start, decide, ready_at
from gateway.app.monitors import Monitors
from gateway.config.engine import Launched, OnDemand
from gateway.endpoints.health import State
from gateway.endpoints.monitor import EndpointMonitor
from gateway.pools.cores import Cores
from gateway.pools.interface import Follower
from gateway.pools.launcher import EngineNews, Launcher

LOOK = 0.05
"""Seconds between two looks at demand."""
SETTLE = 0.25
"""Seconds after which every front has heard that an engine takes no new requests, and said what it had sent before."""
TAKEN_OVER = 5.0
"""Likewise, where an engine ran or started before this process decided: fronts that come late may have requests on it.
Under load the last one was seen 2.5 s after another owner's death."""
MISSED = 5.0
"""Seconds without news of an engine after which that is logged, if a request waits for it. If there is news of others
in its place by then, their parent does not launch it, and it is in nobody's way."""
NEWS = 0.5
"""Seconds by which an expected time changes before it is told again."""
TRIES = 2
"""Starts in a row that fail before those that wait are told; the first may have met what was just ending."""
MOST_REST = 60.0
"""Seconds: the longest rest after starts that failed."""
_DOUBLINGS = 99
"""Most of it that are computed: 1024 are no float any more, and a weekend has time for as many starts."""
_LAUNCH = "the gateway whose `tier.advertise` has this host launches it, and cannot be reached, or there is none"
_REPLACED = "its engine is to end: another takes its place"
_RUNS = frozenset({ResidencyPhase.STARTING, ResidencyPhase.UP})
_LEFT = frozenset({State.STOPPED, State.DRAINING})
_log = structlog.get_logger("kvgate.engines")


class _Known:
    """What is known of one engine."""

    def __init__(self, how: OnDemand, now: float) -> None:
        self.how = how
        self.phase = ResidencyPhase.LEAVING
        """Until its parent has said what it does, it may run: so nothing is started in its place."""
        self.heard = False
        """Whether its parent has said that."""
        self.seemed: State | None = None
        """What its parent was told of its state."""
        self.missed = False
        """Whether it was logged that nothing is heard of it."""
        self.leaves = False
        """Whether its parent is about to end it."""
        self.since = self.worked_at = now
        self.left_at = -inf
        self.settles_at = -inf
        """When all is known that is on it."""
        self.takes: float | None = None
        self.failures = 0
        self.not_before = now
        self.ended = True
        """Whether its parent was told to end it, or need not be."""
        self.told: float | None = None
        """When those that wait were told to expect it."""

    def enter(self, phase: ResidencyPhase, now: float) -> None:
        self.phase, self.since = phase, now


class EngineDemand:
    """Starts and ends engines as `gateway.admission.residency` decides.

    Args:
        launched: the engines that kvgate launches.
        cores: of the models; their queues are demand.
        monitors: of the endpoints.
        follower: the front, or all of them: hears what to expect.
        parent: launches the engines.
        clock: monotonic seconds.
        carries: whether fronts in other processes have a request on an endpoint, which need not be a configured one;
            None where the only front is in this process.
    """

    def __init__(
        self,
        launched: Launched,
        cores: Cores,
        monitors: Monitors,
        follower: Follower,
        *,
        parent: Launcher,
        clock: Callable[[], float],
        carries: Callable[[EndpointId], bool] | None = None,
    ) -> None:
        self._cores = cores
        self._monitors = monitors
        self._follower = follower
        self._parent = parent
        self._clock = clock
        self._carries = carries
        self._leaving: dict[EndpointId, float] = {}
        """Engines that are to end, of which nothing else is decided here, and when all is known that is on them. They
        always run, or no settings name them here: those of other gateways of a tier may."""
        self._settled_at = clock() + (0.0 if carries is None else TAKEN_OVER)
        """When all is known that is on engines which ran before."""
        self._launches = bool(launched)
        self._engines = {EndpointId(at): _Known(how, clock()) for at, how in launched.items() if how is not None}
        self._awaited: dict[int, Mapping[str, float]] = {}
        """By front and model: when the oldest request came that waits there, as only an engine can count it."""
        parent.on_news, parent.on_lost = self.heard, self.lost

    @property
    def any(self) -> bool:
        """Whether an engine may start or end by what is decided here: kvgate launches one, or others may."""
        return self._launches or self._carries is not None

    async def run(self) -> None:
        """Look at demand, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK)

    def awaited(self, front: int, ages: Mapping[str, float]) -> None:
        """Requests wait in a front for engines of these models; how long the oldest has, in seconds."""
        now = self._clock()
        self._awaited[front] = {model: now - age for model, age in ages.items()}

    def left(self, front: int) -> None:
        """A front has gone."""
        self._awaited.pop(front, None)

    def runs(self, endpoint: EndpointId) -> bool:
        """Whether it is yet to be ended here: another of its group may want its place, though no settings name it."""
        known = self._engines.get(endpoint)
        return known is not None and known.heard and known.phase is not ResidencyPhase.STOPPED and not known.ended

    def ready_in(self) -> dict[EndpointId, float | None]:
        """Seconds until each engine that does not run would be up for a request that comes now; None if not known."""
        now = self._clock()
        engines = [engine for endpoint in self._engines if (engine := self._engine(endpoint)) is not None]
        return {
            endpoint: None if at is None or not self._engines[endpoint].heard else at - now
            for endpoint, at in ready_at(engines, now).items()
        }

    def heard(self, news: EngineNews) -> None:
        """Take news of the parent."""
        endpoint = EndpointId(news.address)
        known, now = self._engines.get(endpoint), self._clock()
        if not news.leaves or news.phase not in _RUNS or (known is not None and endpoint in self._monitors):
            self._leaving.pop(endpoint, None)
        elif endpoint not in self._leaving:
            self._leaving[endpoint] = max(self._settled_at, now + SETTLE)
            if endpoint in self._monitors:
                self._monitors[endpoint].retire(_REPLACED)
        if known is None:
            return
        known.takes, known.leaves = news.takes, news.leaves
        first, known.heard, known.missed = not known.heard, True, False
        match news.phase:
            case ResidencyPhase.STOPPED:
                known.enter(ResidencyPhase.STOPPED, now)
                known.left_at, known.told = now, None
                if news.wrong is not None and not first:
                    self._failed(endpoint, known, news.wrong, now)
                return
            # This owner has not ordered it: it ran before, or an earlier owner's order was carried out late.
            case ResidencyPhase.STARTING | ResidencyPhase.UP as phase if first or known.phase is ResidencyPhase.STOPPED:
                known.enter(phase, now)
                known.ended, known.settles_at = False, now + TAKEN_OVER
                self._tell(endpoint, known, None, now)
            case ResidencyPhase.LEAVING if known.phase is ResidencyPhase.LEAVING and endpoint in self._monitors:
                self._leave_alone(self._monitors[endpoint])  # now: at the next look, requests may be on it
        if known.phase in _RUNS and (monitor := self._monitors.get(endpoint)) is not None and not monitor.serving:
            monitor.rouse()  # it is probed at once

    def undrained(self, endpoint: EndpointId) -> None:
        """Its operator lets an endpoint back. Its engine may not run, or be about to end."""
        known = self._engines.get(endpoint)
        if known is not None and known.heard and known.phase in {ResidencyPhase.STOPPED, ResidencyPhase.LEAVING}:
            self._leave_alone(self._monitors[endpoint])

    def lost(self, address: str) -> None:
        """Nothing can be known of an engine until there is news of it again. What is on it may go on."""
        endpoint, now = EndpointId(address), self._clock()
        self._leaving.pop(endpoint, None)
        if (known := self._engines.get(endpoint)) is not None:
            known.enter(ResidencyPhase.LEAVING, now)
            known.heard, known.ended, known.seemed = False, True, None
            known.failures, known.not_before = 0, now  # it may have been mended when there is news
            self._tell(endpoint, known, None, now)

    def look(self) -> None:
        """Have done what is due now."""
        now = self._clock()
        for endpoint in [endpoint for endpoint, settled_at in self._leaving.items() if now >= settled_at]:
            if not self._busy(endpoint):
                del self._leaving[endpoint]
                self._parent.end(endpoint)
        engines = []
        for endpoint, known in self._engines.items():
            missed = not (known.heard or known.missed) and now > known.since + MISSED
            if missed and self._waits_since(endpoint) is not None:
                known.missed = True
                _log.error("nobody launches an engine that a request waits for", endpoint=endpoint, help=_LAUNCH)
            engine = self._engine(endpoint)
            if engine is None:
                continue
            self._advance(endpoint, known, engine, now)
            if known.leaves and known.phase in _RUNS:
                self._retire(endpoint, known, now)
            engines.append(self._engine(endpoint) or engine)
        for command in decide(engines, now):
            known = self._engines[command.engine]
            match command:
                case Start(endpoint):
                    _log.info("engine starts: a request waits for it", endpoint=endpoint, expected_seconds=known.takes)
                    known.enter(ResidencyPhase.STARTING, now)
                    known.ended = False
                    self._monitors[endpoint].rouse()
                    self._parent.run(endpoint)
                case Retire(endpoint):
                    self._retire(endpoint, known, now)
        self._expect(engines, now)

    def _retire(self, endpoint: EndpointId, known: _Known, now: float) -> None:
        _log.info("engine leaves", endpoint=endpoint, waited_for=self._waits_since(endpoint) is not None)
        self._monitors[endpoint].retire()
        serves = known.phase is ResidencyPhase.UP or now < known.settles_at
        known.enter(ResidencyPhase.LEAVING, now)
        known.settles_at = max(known.settles_at, now + SETTLE)
        if not serves:
            self._end(endpoint, known)

    def _end(self, endpoint: EndpointId, known: _Known) -> None:
        known.ended = True
        self._parent.end(endpoint)

    def _advance(self, endpoint: EndpointId, known: _Known, engine: Engine, now: float) -> None:
        """Note what has happened since the last look."""
        monitor = self._monitors[endpoint]
        if known.heard and monitor.state is not known.seemed:
            known.seemed = monitor.state
            self._parent.seems(endpoint, monitor.state, monitor.status.reason)
        if engine.busy or engine.waits_since is not None:
            known.worked_at = now
        match known.phase:
            case ResidencyPhase.STARTING if monitor.serving:
                known.enter(ResidencyPhase.UP, now)
                known.failures = 0
                self._tell(endpoint, known, None, now)
            case ResidencyPhase.LEAVING if not known.ended and not engine.busy and now >= known.settles_at:
                self._end(endpoint, known)
            case ResidencyPhase.STOPPED | ResidencyPhase.LEAVING if known.heard:
                self._leave_alone(monitor)

    @staticmethod
    def _leave_alone(monitor: EndpointMonitor) -> None:
        """Have nothing sent to an engine that its parent ends: it answers probes until it has ended, or sleeps."""
        if monitor.state not in _LEFT:
            monitor.retire()

    def _engine(self, endpoint: EndpointId) -> Engine | None:
        """An engine as the decision sees it; None if it is not configured any more, or nobody launches it."""
        known, monitor = self._engines[endpoint], self._monitors.get(endpoint)
        if monitor is None or self._is_missing(known):
            return None
        return Engine(
            endpoint,
            known.phase,
            known.since,
            known.how.place,
            takes=known.takes,
            waits_since=None if monitor.drained or known.leaves else self._waits_since(endpoint),
            busy=self._busy(endpoint),
            worked_at=known.worked_at,
            left_at=known.left_at,
            idle_stop=known.how.idle_stop,
            not_before=known.not_before,
        )

    def _is_missing(self, known: _Known) -> bool:
        """Whether the parent of others in its place does not launch it: one of two gateways is reloaded first."""
        if known.heard or self._clock() <= known.since + MISSED:
            return False
        return any(other.heard and other.how.place == known.how.place for other in self._engines.values())

    def _waits_since(self, endpoint: EndpointId) -> float | None:
        """When the oldest request came that waits for the model of an engine."""
        model = self._cores.name(endpoint)
        if model is None:
            return None
        since = [waits[model] for waits in self._awaited.values() if model in waits]
        driver = self._cores.drivers.get(model)
        if driver is not None and (oldest := driver.controller.oldest_arrival()) is not None:
            since.append(oldest)
        return min(since, default=None)

    def _busy(self, endpoint: EndpointId) -> bool:
        """Whether requests are on an engine, by the account or by what fronts say of it."""
        if self._carries is not None and self._carries(endpoint):
            return True
        monitor = self._monitors.get(endpoint)
        if monitor is not None and (monitor.in_flight or monitor.passing):
            return True
        driver = self._cores.driver_of(endpoint)
        return driver is not None and driver.controller.in_flight(endpoint) > 0

    def _failed(self, endpoint: EndpointId, known: _Known, wrong: str, now: float) -> None:
        known.failures += 1
        rest = 0.0 if known.failures < TRIES else min(2.0 ** min(known.failures - TRIES, _DOUBLINGS), MOST_REST)
        known.not_before = now + rest
        _log.error("engine does not start", endpoint=endpoint, failures=known.failures, next_in=rest, reason=wrong)
        if known.failures >= TRIES:
            self._tell(endpoint, known, None, now, failed=True)

    def _expect(self, engines: list[Engine], now: float) -> None:
        """Tell those that wait when to expect their engine."""
        expected = ready_at(engines, now)
        for engine in engines:
            known, at = self._engines[engine.id], expected.get(engine.id)
            if engine.waits_since is None or at is None or engine.phase is ResidencyPhase.UP or not known.heard:
                continue
            if known.told is None or abs(at - known.told) > NEWS:
                self._tell(engine.id, known, at, now)

    def _tell(self, endpoint: EndpointId, known: _Known, at: float | None, now: float, *, failed: bool = False) -> None:
        known.told = at
        self._follower.starts(endpoint, None if at is None else at - now, failed=failed)
        model = self._cores.name(endpoint)
        if model is not None and (driver := self._cores.drivers.get(model)) is not None:
            driver.handle(Expected(at, failed))
