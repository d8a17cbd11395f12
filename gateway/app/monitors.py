"""The monitors of the configured endpoints: added, changed and removed while kvgate serves."""

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import structlog

from gateway.admission.events import EndpointId
from gateway.app.activity import Activity
from gateway.app.mixing import Mixing
from gateway.app.named_files import Access
from gateway.app.questions import Questions
from gateway.config.settings import Settings
from gateway.endpoints.monitor import EndpointMonitor
from gateway.pools.cores import Cores
from gateway.runtime.background import Background

_POLL = 0.1
"""Seconds between two checks whether an endpoint being removed still has requests."""
_TAKE_OVER = 10.0
"""Seconds for which an endpoint being removed still takes work while the new ones are probed."""
_REMOVED = "no settings name it any more"
_log = structlog.get_logger("kvgate.endpoints")


class Monitors(Mapping[EndpointId, EndpointMonitor]):
    """Keeps the cores' endpoints equal to the configured ones, and watches each.

    Args:
        cores: hear of the endpoints.
        settings: those in force.
        clock: monotonic seconds.
        background: runs the monitors.
        launched: addresses of engines that kvgate launches.
        runs: whether the engine of an endpoint comes and goes, and is yet to be ended.
    """

    def __init__(
        self,
        cores: Cores,
        *,
        settings: Callable[[], Settings],
        clock: Callable[[], float],
        background: Background,
        launched: Container[str],
        runs: Callable[[EndpointId], bool] = lambda _endpoint: False,
    ) -> None:
        self._cores = cores
        self._questions = Questions(settings, background)
        self._mixing = Mixing(cores, self._questions, timeout=lambda: settings().health.timeout, clock=clock)
        self._settings = settings
        self._clock = clock
        self._background = background
        self._launched = launched
        self._runs = runs
        self._monitors: dict[EndpointId, EndpointMonitor] = {}
        self._watching: dict[EndpointId, asyncio.Task[None]] = {}
        self._leaving: dict[EndpointId, asyncio.Task[None]] = {}
        self._given: defaultdict[str | None, dict[str, str | None]] = defaultdict(dict)
        """What `give` was told, by the name under which a model is configured, for its endpoints to come."""

    def __getitem__(self, endpoint: EndpointId) -> EndpointMonitor:
        return self._monitors[endpoint]

    def __iter__(self) -> Iterator[EndpointId]:
        return iter(self._monitors)

    def __len__(self) -> int:
        return len(self._monitors)

    def add(self, endpoint: EndpointId, access: Access) -> None:
        """Add a configured endpoint; `start` begins to watch it."""
        monitor = self._monitors[endpoint] = EndpointMonitor(
            endpoint,
            access.settings,
            self._settings().health,
            client=self._questions.open(endpoint, access),
            listener=self._cores,
            clock=self._clock,
            look=Activity(endpoint, self._clock).look,
            misfit=functools.partial(self._mixing.misfit, endpoint),
            alone=functools.partial(self._is_alone, endpoint),
            adapters=_adapters(access),
        )
        monitor.launched = endpoint in self._launched
        self._cores.add(endpoint, access.model.name)
        if self._of_one_model(access.model.name):
            for adapter, path in self._given[access.model.name].items():
                monitor.give(adapter, path)

    def give(self, endpoints: Iterable[EndpointId], adapter: str, path: str | None) -> None:
        """Have the endpoints of a model load an adapter, or unload it without a path: these, and those that come.

        Among the last are those that are configured and were never reached.
        """
        given = set(endpoints)
        for name in {self._cores.name(endpoint) for endpoint in given}:
            self._given[name][adapter] = path
            if self._of_one_model(name):
                alike = (endpoint for endpoint in self._monitors if self._cores.name(endpoint) == name)
                given.update(endpoint for endpoint in alike if self._cores.serves(endpoint) is None)
        for endpoint in given:
            self._monitors[endpoint].give(adapter, path)

    def start(self) -> None:
        """Watch all endpoints that are not watched yet."""
        for endpoint, monitor in self._monitors.items():
            if endpoint not in self._watching:
                self._watching[endpoint] = self._background.spawn(f"monitor of {endpoint}", monitor.run)

    def follow(self, configured: Mapping[EndpointId, Access]) -> None:
        """Change to these endpoints. One that is not among them takes no new work and finishes what it has."""
        coming = [endpoint for endpoint in configured if endpoint not in self._monitors]
        for endpoint in coming:
            self.add(endpoint, configured[endpoint])
        for endpoint in self._monitors.keys() - coming:
            if (access := configured.get(endpoint)) is not None:
                self._renew(endpoint, access)
            elif endpoint not in self._leaving:
                leaving = functools.partial(self._let_go, endpoint, [self._monitors[name] for name in coming])
                self._leaving[endpoint] = self._background.spawn(f"leaving of {endpoint}", leaving)
        self.start()

    async def close(self) -> None:
        """Close every client."""
        await self._questions.close()

    def _of_one_model(self, name: str | None) -> bool:
        """Whether all endpoints that are configured under this name are of one model, whatever they will report."""
        return name is not None or len(self._settings().models) == 1

    def _is_alone(self, endpoint: EndpointId) -> bool:
        """Whether no other endpoint of its model takes traffic."""
        model, others = self._model(endpoint), self._monitors.keys() - {endpoint}
        return not any(self._monitors[other].serving and self._model(other) == model for other in others)

    def _model(self, endpoint: EndpointId) -> str | None:
        """The model of an endpoint as it is configured, or as it reports it; None if it has reported none."""
        identity = self._monitors[endpoint].status.identity
        return self._cores.name(endpoint) if identity is None else self._cores.model_of(endpoint, identity)

    def _renew(self, endpoint: EndpointId, access: Access) -> None:
        """Use another way to reach an endpoint from the next probe on."""
        monitor = self._monitors[endpoint]
        leaving = self._leaving.pop(endpoint, None)
        if leaving is not None:
            leaving.cancel()
            monitor.undrain()
        if self._cores.name(endpoint) != access.model.name:
            self._cores.add(endpoint, access.model.name)
            monitor.retell()
        monitor.govern(
            access.settings, self._settings().health, self._questions.open(endpoint, access), _adapters(access)
        )

    async def _let_go(self, endpoint: EndpointId, coming: Sequence[EndpointMonitor]) -> None:
        """Forget an endpoint once it is empty and no waiting request could only go there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER):
                for other in coming:
                    await other.probed.wait()
        monitor = self._monitors[endpoint]
        monitor.drain(_REMOVED)
        while self._needed(endpoint):
            await asyncio.sleep(_POLL)
            monitor.drain(_REMOVED)
        del self._leaving[endpoint], self._monitors[endpoint]
        self._watching.pop(endpoint).cancel()
        self._questions.drop(endpoint)
        self._cores.remove(endpoint)
        _log.info("endpoint removed", endpoint=endpoint)

    def _needed(self, endpoint: EndpointId) -> bool:
        if self._monitors[endpoint].passing or self._runs(endpoint):
            return True
        driver = self._cores.driver_of(endpoint)
        if driver is None:
            return False
        if driver.controller.in_flight(endpoint):
            return True
        model, others = self._cores.serves(endpoint), self._monitors.keys() - {endpoint}
        waits = driver.controller.oldest_arrival() is not None
        return waits and all(self._cores.serves(other) != model for other in others)


def _adapters(access: Access) -> dict[str, str]:
    return {adapter.name: adapter.path for adapter in access.model.lora}
