"""Which endpoints serve which model: one pool, one admission core, one counter for each model."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from weakref import WeakSet

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
from gateway.config import ModelSettings
from gateway.driver import Driver
from gateway.endpoints.identity import Identity
from gateway.endpoints.monitor import EndpointMonitor
from gateway.tokens.counter import ModelCounter

_REMEMBERED_RESPONSES = 10_000

_log = structlog.get_logger("kvgate.pools")


@dataclass(slots=True)
class Endpoint:
    """One vLLM server.

    Attributes:
        id: host and port; the `endpoint` label of metrics.
        base_url: without a trailing slash.
        api_key: sent in place of the client's own, None passes the client's on.
        settings: the model it was configured under.
        identity: what it last said of itself, None until it was first reached.
        healthy: whether it takes traffic now.
    """

    id: EndpointId
    base_url: str
    api_key: str | None
    settings: ModelSettings
    monitor: EndpointMonitor
    identity: Identity | None = None
    healthy: bool = False
    pool: "Pool | None" = None


class Pool:
    """The endpoints of one model, and the one driver and counter they share."""

    def __init__(
        self, name: str, root: str | None, driver: Driver, counter: ModelCounter, relay_concurrency: int
    ) -> None:
        self.name = name
        self.root = root
        """Folder or hub id of its model, as the endpoint said that came first."""
        self.driver = driver
        self.counter = counter
        self.relay_places = asyncio.Semaphore(relay_concurrency)
        """The cap on relayed requests, which are not admitted one by one."""
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self._turn = 0

    @property
    def identities(self) -> list[Identity]:
        """What its endpoints last said of themselves; never empty: an endpoint joins by saying so."""
        return [endpoint.identity for endpoint in self.endpoints.values() if endpoint.identity is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a client may use, its own first."""
        names = dict.fromkeys([self.name])
        for identity in self.identities:
            names.update(dict.fromkeys((*identity.names, *identity.loras)))
        return tuple(names)

    @property
    def max_model_len(self) -> int:
        """Tokens: the longest any of its endpoints takes."""
        return max((identity.max_model_len for identity in self.identities), default=0)

    def takes(self, total: int) -> bool:
        """Whether an endpoint takes a request of `prompt + max_tokens` tokens, by its length or by clamping."""
        return any(identity.clamps_max_tokens or total <= identity.max_model_len for identity in self.identities)

    def healthy(self) -> list[Endpoint]:
        """The endpoints that take traffic now."""
        return [endpoint for endpoint in self.endpoints.values() if endpoint.healthy]

    def in_turn(self) -> list[Endpoint]:
        """The healthy endpoints for one request that is not admitted: with each call another one is the first."""
        healthy = self.healthy()
        self._turn += 1
        start = self._turn % len(healthy) if healthy else 0
        return healthy[start:] + healthy[:start]


class Directory:
    """Finds the pool of a model; grows as endpoints say who they are.

    It is the listener of every monitor, and passes what they find to the core of the right model.

    Args:
        make_pool: builds a pool of that name for an endpoint whose model was not known before.
        verify: has an endpoint that came up compared with our counting.
        evacuate: takes unanswered requests off an endpoint that went down or hangs.
        expire: ends requests that were silent for too long.
    """

    def __init__(
        self,
        make_pool: Callable[[Endpoint, Identity, str], Pool],
        verify: Callable[[Endpoint], None],
        evacuate: Callable[[EndpointId], None],
        expire: Callable[[Collection[RequestId]], None],
    ) -> None:
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self.pools: dict[str, Pool] = {}
        self.ever_healthy = False
        self._make_pool = make_pool
        self._verify = verify
        self.evacuate = evacuate
        self.expire = expire
        self._by_name: dict[str, Pool] = {}
        self._changed = asyncio.Event()
        self._drivers: WeakSet[Driver] = WeakSet()
        """One outlives its pool while requests of it wait or run."""
        self._draining = False
        self._responses: OrderedDict[str, EndpointId] = OrderedDict()

    def add(self, endpoint: Endpoint) -> None:
        """An endpoint that is configured; what it serves it must yet say."""
        self.endpoints[endpoint.id] = endpoint

    def remove(self, endpoint: Endpoint) -> None:
        """Forget an endpoint: it is no longer configured, and nothing of ours is on it."""
        del self.endpoints[endpoint.id]
        if endpoint.pool is not None:
            self._leave(endpoint, endpoint.pool)
            self._index()
        self._announce()

    def tell(self, event: Event) -> None:
        """Tell every core, also that of a model nobody serves any more."""
        for driver in list(self._drivers):
            driver.handle(event)

    async def find(self, model: str | None) -> Pool | None:
        """The pool that serves a name; the only pool where no name is given.

        Waits while endpoints have not said yet what they serve.
        """
        while (pool := self.lookup(model)) is None and self.undiscovered():
            await self._changed.wait()
        return pool

    def lookup(self, model: str | None) -> Pool | None:
        """The pool of a name that is known now."""
        if model is None:
            return next(iter(self.pools.values())) if len(self.pools) == 1 else None
        return self._by_name.get(model)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names that endpoints which nobody has reached yet will serve, as they are configured."""
        names = [endpoint.settings.name for endpoint in self.endpoints.values() if endpoint.identity is None]
        return tuple(dict.fromkeys(name for name in names if name is not None and name not in self._by_name))

    def undiscovered(self) -> bool:
        """Whether an endpoint has not yet said what it serves."""
        return any(endpoint.identity is None for endpoint in self.endpoints.values())

    async def wait_for_endpoint(self, pool: Pool) -> None:
        """Wait until an endpoint of the pool is healthy."""
        while not pool.healthy():
            await self._changed.wait()

    def drain(self) -> None:
        """Have every core take no new work, also that of a model nobody serves any more or not yet."""
        self._draining = True
        self.tell(ShutdownStarted())

    def remember_response(self, response_id: str, endpoint: EndpointId) -> None:
        """Note which endpoint made a stored response."""
        self._responses[response_id] = endpoint
        if len(self._responses) > _REMEMBERED_RESPONSES:
            self._responses.popitem(last=False)

    def made_response(self, response_id: str) -> Endpoint | None:
        """The endpoint that made a response."""
        endpoint = self._responses.get(response_id)
        return self.endpoints.get(endpoint) if endpoint is not None else None

    # What monitors tell.

    def up(self, endpoint_id: EndpointId, identity: Identity, capacity: Capacity) -> None:
        """An endpoint takes traffic, or changed."""
        endpoint = self.endpoints[endpoint_id]
        name = endpoint.settings.name or identity.names[0]
        if endpoint.pool is None or endpoint.pool.name != name:
            self._move(endpoint, identity, name)
        assert endpoint.pool is not None  # noqa: S101  # just moved there
        was_healthy, endpoint.healthy = endpoint.healthy, True
        endpoint.identity = identity
        self.ever_healthy = True
        self._index()
        endpoint.pool.driver.handle(EndpointUp(endpoint_id, capacity))
        self._announce()
        if not was_healthy:
            self._verify(endpoint)

    def down(self, endpoint_id: EndpointId, reason: str) -> None:
        """An endpoint takes no traffic."""
        endpoint = self.endpoints[endpoint_id]
        endpoint.healthy = False
        if endpoint.pool is not None:
            endpoint.pool.driver.handle(EndpointDown(endpoint_id, reason))

    def observed(self, sample: Observed) -> None:
        """A scrape of an endpoint's metrics."""
        pool = self.endpoints[sample.endpoint].pool
        if pool is not None:
            pool.driver.handle(sample)

    def _move(self, endpoint: Endpoint, identity: Identity, name: str) -> None:
        left = endpoint.pool
        if left is not None:
            self._leave(endpoint, left)
            _log.warning("endpoint serves another model now", endpoint=endpoint.id, model=name)
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = self._make_pool(endpoint, identity, name)
            self._drivers.add(pool.driver)
            if self._draining:
                pool.driver.handle(ShutdownStarted())
        pool.endpoints[endpoint.id] = endpoint
        endpoint.pool = pool

    def _leave(self, endpoint: Endpoint, pool: Pool) -> None:
        del pool.endpoints[endpoint.id]
        if not pool.endpoints:  # nobody serves this model now; who waits in it still runs into its time to live
            del self.pools[pool.name]
        pool.driver.handle(EndpointGone(endpoint.id))

    def _index(self) -> None:
        pools = reversed(self.pools.values())  # where two have a name, the one that was there first keeps it
        self._by_name = {name: pool for pool in pools for name in pool.names}

    def _announce(self) -> None:
        self._changed.set()
        self._changed.clear()
