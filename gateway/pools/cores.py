"""The admission cores of all models, and what their endpoints' monitors report to them."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from weakref import WeakSet, WeakValueDictionary

import structlog

from gateway.admission.events import (
    Capacity,
    EndpointDown,
    EndpointGone,
    EndpointId,
    EndpointUp,
    Event,
    Observed,
    RequestId,
    ShutdownStarted,
)
from gateway.endpoints.identity import Identity
from gateway.pools.driver import Driver
from gateway.pools.interface import Follower

_log = structlog.get_logger("kvgate.pools")


class Known(NamedTuple):
    """What an endpoint reported last."""

    model: str
    identity: Identity
    capacity: Capacity


class Cores:
    """One core for each model that an endpoint serves.

    It is the listener of every monitor: it passes reports to the right core, and tells the front what changed.

    Args:
        make: makes the driver of a model's core, from the model's name and the folder or hub id of its weights.
        follower: the front, or all of them.
        before: called before what a monitor reports is passed on: it may `restrict` what cores are given.
    """

    def __init__(
        self,
        make: Callable[[str, str | None], Driver],
        follower: Follower,
        *,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._make = make
        self._follower = follower
        self._before = before or (lambda: None)
        self._configured: dict[EndpointId, str | None] = {}
        """Name under which each endpoint is configured; None for the one it reports."""
        self._known: dict[EndpointId, Known] = {}
        self._drivers: dict[str, Driver] = {}
        self._roots: dict[str, str | None] = {}
        self._living: WeakSet[Driver] = WeakSet()
        """A driver outlives its model while requests wait or run in it."""
        self._left: WeakValueDictionary[tuple[str, str | None], Driver] = WeakValueDictionary()
        """Those that have, by model and weights: what waits goes on if the model comes back."""
        self._draining = False
        self._share = 1.0
        self._up: set[EndpointId] = set()
        """Those that take traffic."""
        self._observed: dict[EndpointId, Observed] = {}
        """The last scrape of each of these."""

    @property
    def drivers(self) -> dict[str, Driver]:
        """The driver of each model that is served."""
        return self._drivers

    @property
    def known(self) -> Mapping[EndpointId, Known]:
        """What each endpoint that was reached reported last."""
        return self._known

    def root(self, model: str) -> str | None:
        """Folder or hub id of a model, as reported by its first endpoint."""
        return self._roots[model]

    def serves(self, endpoint: EndpointId) -> str | None:
        """The model that an endpoint serves; None if it was never reached."""
        known = self._known.get(endpoint)
        return None if known is None else known.model

    def name(self, endpoint: EndpointId) -> str | None:
        """The name under which an endpoint is configured; None if it is the one it reports."""
        return self._configured.get(endpoint)

    def driver_of(self, endpoint: EndpointId) -> Driver | None:
        """The driver of the model that an endpoint serves; None if it was never reached."""
        known = self._known.get(endpoint)
        return None if known is None else self._drivers[known.model]

    def model_of(self, endpoint: EndpointId, identity: Identity) -> str:
        """The model that an endpoint with this identity serves: as it is configured, or as it reports it."""
        return self._configured[endpoint] or identity.names[0]

    def of_another_kind(self, endpoint: EndpointId, identity: Identity) -> tuple[EndpointId, Identity] | None:
        """An endpoint of another kind that serves the model that this one is to serve; None if there is none now."""
        others = ((other, self._known[other]) for other in self._up if self.differ(endpoint, identity, other))
        return next(((other, known.identity) for other, known in others), None)

    def differ(self, endpoint: EndpointId, identity: Identity, other: EndpointId) -> bool:
        """Whether another endpoint, up or down, is known to be one of another kind for the model of this one."""
        known = None if other == endpoint else self._known.get(other)
        if known is None or known.identity.kind == identity.kind:
            return False
        return known.model == self.model_of(endpoint, identity)

    def add(self, endpoint: EndpointId, name: str | None) -> None:
        """Add a configured endpoint, with the name its model is to have; or note another name for the next `up`.

        Until then one that takes traffic serves its model; any other serves none.
        """
        self._configured[endpoint] = name
        if endpoint not in self._up:
            self._forget_renamed(endpoint)

    def renames(self, endpoint: EndpointId, known: Known) -> bool:
        """Whether an endpoint is configured under another name than that of the model that it was known to serve."""
        return self._configured.get(endpoint) not in {None, known.model}

    def restrict(self, share: float) -> None:
        """Fill no more than this share of each endpoint from now on; 0: dispatch nothing."""
        if share == self._share:
            return
        self._share = share
        for endpoint in self._up:
            self._give(endpoint, self._observed.get(endpoint))

    def remove(self, endpoint: EndpointId) -> None:
        """Forget an endpoint that is no longer configured and has no requests of ours."""
        del self._configured[endpoint]
        self._leave(endpoint)
        self._follower.gone(endpoint)

    def tell(self, event: Event) -> None:
        """Tell every core, including that of a model no endpoint serves any more."""
        for driver in list(self._living):
            driver.handle(event)

    def drain(self) -> None:
        """Let no core take new work, including that of a model no endpoint serves any more or yet."""
        self._draining = True
        self.tell(ShutdownStarted())

    def close(self) -> None:
        """Stop the timers of every core."""
        for driver in list(self._living):
            driver.close()

    # Reports of the monitors.

    def up(self, endpoint: EndpointId, identity: Identity, capacity: Capacity) -> None:
        """An endpoint takes traffic, or its identity or capacity changed."""
        self._before()
        model = self.model_of(endpoint, identity)
        if self.serves(endpoint) not in {None, model}:
            self._leave(endpoint)
            _log.warning("endpoint serves another model now", endpoint=endpoint, model=model)
        self._known[endpoint] = Known(model, identity, capacity)
        if model not in self._drivers:
            self._open(model, identity.root)
        self._follower.up(endpoint, model, identity)
        self._up.add(endpoint)
        self._observed.pop(endpoint, None)  # it may be another engine
        self._give(endpoint)

    def recall(self, endpoint: EndpointId, known: Known) -> None:
        """Take over what an earlier owner knew of an endpoint. It gets no requests before its monitor says it is up."""
        if endpoint in self._known:
            return
        self._known[endpoint] = known
        driver = self._drivers.get(known.model) or self._open(known.model, known.identity.root)
        driver.handle(EndpointDown(endpoint, "not probed yet", known.capacity))

    def down(self, endpoint: EndpointId, reason: str) -> None:
        """An endpoint takes no traffic."""
        self._before()
        self._follower.down(endpoint)
        self._up.discard(endpoint)
        self._observed.pop(endpoint, None)
        self._report(endpoint, EndpointDown(endpoint, reason))
        self._forget_renamed(endpoint)

    def evacuate(self, endpoint: EndpointId) -> None:
        """An endpoint is down or hangs."""
        self._before()
        self._follower.evacuate(endpoint)

    def expire(self, requests: Collection[RequestId]) -> None:
        """Requests were silent for too long."""
        self._before()
        self._follower.expire(requests)

    def observed(self, sample: Observed) -> None:
        """A scrape of an endpoint's metrics."""
        if sample.endpoint in self._up:
            self._observed[sample.endpoint] = sample
        self._report(sample.endpoint, sample)

    def _give(self, endpoint: EndpointId, observed: Observed | None = None) -> None:
        """Give an endpoint that takes traffic to its core, or as much of it as may be filled."""
        model, _, capacity = self._known[endpoint]
        driver = self._drivers[model]
        if self._share:
            driver.handle(EndpointUp(endpoint, capacity.part(self._share), observed))
        else:
            driver.handle(EndpointDown(endpoint, "this gateway may not decide now", capacity))

    def _report(self, endpoint: EndpointId, event: Event) -> None:
        driver = self.driver_of(endpoint)
        if driver is not None:
            driver.handle(event)

    def _open(self, model: str, root: str | None) -> Driver:
        driver = self._drivers[model] = self._left.get((model, root)) or self._make(model, root)
        self._roots[model] = root
        self._living.add(driver)
        if self._draining:
            driver.handle(ShutdownStarted())
        return driver

    def _forget_renamed(self, endpoint: EndpointId) -> None:
        known = self._known.get(endpoint)
        if known is not None and self.renames(endpoint, known):
            self._leave(endpoint)
            self._follower.gone(endpoint)

    def _leave(self, endpoint: EndpointId) -> None:
        self._up.discard(endpoint)
        self._observed.pop(endpoint, None)
        known = self._known.pop(endpoint, None)
        if known is None:
            return
        model = known.model
        driver = self._drivers[model]
        if all(other.model != model for other in self._known.values()):
            # No longer served; its waiting requests time out, or it comes back.
            self._left[model, self._roots.pop(model)] = self._drivers.pop(model)
        driver.handle(EndpointGone(endpoint))
