"""The deciding half of kvgate: the cores of all models, the monitors of their endpoints, and what they learn."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gateway
from gateway.admission.controller import AdmissionController
from gateway.admission.events import EndpointId, PolicyChanged
from gateway.admission.limits.tenants import Tenants
from gateway.admission.policy import Policy
from gateway.admission.snapshot import Load
from gateway.app.decided import decided
from gateway.app.engine_demand import EngineDemand
from gateway.app.gpus import GpuWatch
from gateway.app.monitors import Monitors
from gateway.app.named_files import Access
from gateway.app.parent import Parent
from gateway.app.picture_maker import Pictures
from gateway.config.engine import Launched
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.endpoints.monitor import EndpointMonitor
from gateway.ops.merged import Figures
from gateway.ops.metrics import Metrics
from gateway.ops.pictures.digest import Digest
from gateway.ops.pictures.history import INTERVAL
from gateway.ops.pictures.picture import Picture
from gateway.ops.state import Decided, UnknownEndpointError, UnknownModelError
from gateway.pools.cores import Cores
from gateway.pools.driver import Driver
from gateway.pools.interface import Asker, Follower
from gateway.pools.launcher import EngineEnded, Launcher
from gateway.record.learned import LearnedFiles, state_folder
from gateway.record.lines import Changed, Started
from gateway.record.recorder import Recorder
from gateway.runtime.background import Background

KEEP_INTERVAL = 60.0
"""Seconds between two writes of the learned lengths: a killed process loses that much."""


class Owner:
    """Owns every decision: built from settings, started, changed, and stopped.

    Args:
        settings: those in force.
        endpoints: the configured ones.
        follower: the front, or all of them.
        clock: monotonic seconds.
        asker: returns who asks the core of a model.
        metrics: of this process.
        digest: takes what ended at the front, where that is in this process; others tell it (`take`).
        launched: the engines that kvgate launches.
        parent: launches them.
        before: called before each event of a core.
        carries: whether fronts in other processes have a request on an endpoint, which need not be a configured one;
            None where the only front is in this process.

    Raises:
        ConfigurationError: the event log cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        endpoints: Mapping[EndpointId, Access],
        follower: Follower,
        *,
        clock: Callable[[], float],
        asker: Callable[[str], Asker],
        metrics: Metrics,
        digest: Callable[[], Digest] | None = None,
        launched: Launched = MappingProxyType({}),
        parent: Launcher | None = None,
        before: Callable[[], None] | None = None,
        carries: Callable[[EndpointId], bool] | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._asker = asker
        self._before = before
        self._metrics = metrics
        self._gpus = GpuWatch()
        metrics.registry.register(self._gpus)
        self._background = Background()
        self._tenants = Tenants(settings.auth.limits)
        self._recorder = _recorder(settings)
        self._learned = _learned(settings)
        self.cores = Cores(self._make_driver, follower, before=before)
        self.monitors = Monitors(
            self.cores,
            settings=lambda: self._settings,
            clock=clock,
            background=self._background,
            launched=launched,
            runs=lambda endpoint: self.demand.runs(endpoint),  # noqa: PLW0108 - it is made below
        )
        self._pictures = Pictures(
            self.cores, self.monitors, settings=lambda: self._settings, clock=clock, digest=digest
        )
        for endpoint, access in endpoints.items():
            self.monitors.add(endpoint, access)
        parent = parent or Parent()
        parent.on_ended = self._engine_ended
        self.demand = EngineDemand(
            launched, self.cores, self.monitors, follower, parent=parent, clock=clock, carries=carries
        )

    def start(self) -> None:
        """Watch the endpoints."""
        self.monitors.start()
        self._background.spawn("GPU watch", self._gpus.run)
        self._background.spawn("samples", self._sample)
        self._background.spawn("history", self._keep_history)
        if self.demand.any:
            self._background.spawn("engines that come and go", self.demand.run)
        self._background.spawn("what was learned", self._keep_learned)
        if self._recorder is not None:
            self._recorder.start()

    def go_by(self, settings: Settings, endpoints: Mapping[EndpointId, Access]) -> None:
        """Put other settings in force, all in one turn of the event loop."""
        before, self._settings = self._settings, settings
        self._tenants.govern(settings.auth.limits)
        if _policy(settings) != _policy(before):
            if self._recorder is not None:
                self._recorder.changed(Changed(_recorded(settings), settings.auth.weights, settings.auth.kv_shares))
            self.cores.tell(PolicyChanged(_policy(settings)))
        self.monitors.follow(endpoints)

    def restrict(self, share: float) -> None:
        """Fill no more than this share of each endpoint from now on, and grant no more of each limit; 0: nothing goes.

        What waits then was charged already, so limits stay as they are.
        """
        if share:
            self._tenants.restrict(share)
        self.cores.restrict(share)

    async def decided(self) -> Decided:
        """The endpoints and queues now."""
        return decided(self.cores, self.monitors, self._clock(), self.demand.ready_in())

    def awaited(self, front: int, ages: Mapping[str, float]) -> None:
        """See `Demand.awaited`."""
        self.demand.awaited(front, ages)

    def left(self, front: int) -> None:
        """See `Demand.left`."""
        self.demand.left(front)

    async def picture(self, after: float) -> Picture:
        """See `Deciding.picture`."""
        return self._pictures.picture(after)

    def take(self, digest: Digest) -> None:
        """Take what ended at a front in another process."""
        self._pictures.take(digest)

    async def drain(self, endpoint_id: str) -> None:
        """See `Deciding.drain`."""
        self._monitor(endpoint_id).drain()

    async def undrain(self, endpoint_id: str) -> None:
        """See `Deciding.undrain`."""
        self._monitor(endpoint_id).undrain()
        self.demand.undrained(EndpointId(endpoint_id))

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """See `Deciding.give`."""
        serving = [endpoint for endpoint in self.monitors if self.cores.serves(endpoint) == model]
        if not serving:
            raise UnknownModelError(model)
        self.monitors.give(serving, adapter, path)

    @property
    def poll_interval(self) -> float:
        """Seconds between two scrapes of an endpoint."""
        return self._settings.health.interval

    def loads(self) -> dict[str, Load]:
        """Load of each model's pool, now."""
        now = self._clock()
        return {name: driver.controller.load(now) for name, driver in self.cores.drivers.items()}

    async def exposition(self, *, openmetrics: bool) -> bytes:
        """The text of `/metrics`, of this process alone."""
        self._metrics.keep_endpoints(self.monitors)
        decided = await self.decided()
        return await asyncio.to_thread(self._metrics.exposition, decided, openmetrics=openmetrics)

    async def figures(self, fronts: int | None = None) -> Figures:
        """What is counted and measured here; `fronts` are connected, None if this process is the only one."""
        self._metrics.keep_endpoints(self.monitors)
        return await asyncio.to_thread(self._metrics.figures, await self.decided(), fronts)

    async def stop(self) -> None:
        """Stop everything, and keep what was learned."""
        await self._background.stop()
        await self._write_learned()
        self.cores.close()
        if self._recorder is not None:
            await self._recorder.close()
        await self.monitors.close()

    def _engine_ended(self, ended: EngineEnded) -> None:
        if (monitor := self.monitors.get(EndpointId(ended.address))) is not None:
            monitor.ended(ended.cause, ended.remedy)

    def _monitor(self, endpoint_id: str) -> EndpointMonitor:
        monitor = self.monitors.get(EndpointId(endpoint_id))
        if monitor is None:
            raise UnknownEndpointError(endpoint_id)
        return monitor

    def _make_driver(self, model: str, root: str | None) -> Driver:
        self._metrics.know(model, self.cores.drivers)
        record = self._recorder.pool(model) if self._recorder is not None else None
        controller = AdmissionController(_policy(self._settings))
        driver = Driver(controller, self._clock, self._asker(model), record, tenants=self._tenants, before=self._before)
        learned = self._learned.read(model, root) if self._learned is not None else None
        if learned is not None:
            driver.handle(learned)
        return driver

    async def _sample(self) -> None:
        """Have the metrics sample the load of every pool, as often as endpoints are scraped."""
        while True:
            await asyncio.sleep(self._settings.health.interval)
            self._metrics.sample(self.loads())

    async def _keep_history(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._pictures.sample()

    async def _keep_learned(self) -> None:
        while True:
            await asyncio.sleep(KEEP_INTERVAL)
            await self._write_learned()

    async def _write_learned(self) -> None:
        if self._learned is None:
            return
        cores = [(model, self.cores.root(model), driver) for model, driver in self.cores.drivers.items()]
        for model, root, driver in cores:
            learned = driver.controller.learned()
            if learned.everything:
                await asyncio.to_thread(self._learned.write, model, root, learned)


def _policy(settings: Settings) -> Policy:
    auth = settings.auth
    return settings.admission.to_policy(
        weights=auth.weights, kv_shares=auth.kv_shares, poll_interval=settings.health.interval
    )


def _recorded(settings: Settings) -> dict[str, Any]:
    return settings.admission.model_dump(mode="json", exclude={"event_log"})


def _learned(settings: Settings) -> LearnedFiles | None:
    match settings.server.state_dir:
        case "none":
            return None
        case "auto":
            return LearnedFiles(state_folder())
        case folder:
            return LearnedFiles(Path(folder))


def _recorder(settings: Settings) -> Recorder | None:
    file = settings.admission.event_log
    if file is None:
        return None
    started = Started(
        gateway.__version__,
        _recorded(settings),
        settings.auth.weights,
        settings.health.interval,
        settings.auth.kv_shares,
    )
    try:
        return Recorder(file, started)
    except OSError as error:
        raise ConfigurationError(f"admission.event_log = {str(file)!r}: cannot be written: {error.strerror}") from None
