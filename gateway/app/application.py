"""The composition root of the gateway: knows every part and puts them together."""

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI

import gateway
from gateway.admission import controller
from gateway.admission.events import FRONT_BITS
from gateway.app.apart import Apart, FrontSpec
from gateway.app.core import Core
from gateway.app.named_files import NamedFiles, read_named_files
from gateway.app.parent import Parent
from gateway.app.reached import Reached
from gateway.app.state_view import StateView
from gateway.app.telemetry import Exports
from gateway.app.together import Together
from gateway.config.engine import Launched
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import ModelSettings, Settings
from gateway.endpoints.identity import Identity
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.admin import Part, admin_app
from gateway.ops.logs import AccessLog
from gateway.ops.metrics import Metrics
from gateway.ops.pictures.broadcast import MOST, Broadcast
from gateway.ops.pictures.digest import Digests
from gateway.pools.awaited import Awaited
from gateway.pools.clamping import clamps
from gateway.pools.directory import Directory, Endpoint, Pool
from gateway.relay.exchange import Reporter
from gateway.relay.explainer import RelayExplainer
from gateway.relay.flights import Flights
from gateway.relay.gateway import Gateway
from gateway.relay.lobby import Lobby
from gateway.relay.openapi import with_data_plane
from gateway.relay.payload import Room
from gateway.relay.plane import Plane
from gateway.runtime.background import Background
from gateway.runtime.places import Places
from gateway.server.asgi import Receive, Scope, Send
from gateway.server.loads import Loads
from gateway.server.server import Listener, bind_all
from gateway.tokens.count import CountUnavailableError
from gateway.tokens.counter import ModelCounter
from gateway.tokens.drift import Drift
from gateway.tokens.engine_count import EngineCounter, Target
from gateway.tokens.loading import Tokenizers
from gateway.tokens.pool import CountingPool
from gateway.tokens.prefix import new_key
from gateway.tokens.render import TokenizerSource
from gateway.upstream.http_upstream import HttpUpstream

_POLL = 0.1
"""Seconds between two checks for open requests and connections."""
_LAST_WORD = 1.0
"""Seconds that clients get to take the error that ends their answers."""
_RECHECK = 5.0
"""Seconds between two checks of a counter for doubted counts."""
_ADMIN_CONNECTIONS = 64 + MOST
"""Most connections at once on a port of the admin routes alone."""
_log = structlog.get_logger("kvgate.app")


class Application:
    """One gateway process: built from settings, started, then drained or handed over, and stopped.

    Args:
        settings: all of them.
        listening: sockets for clients and, if they have a port of their own, for the admin routes; bound here if not
            given.
        launched: the engines that kvgate launches.
        spec: among other fronts of the same owner; None where the owner is in this process.

    Raises:
        ConfigurationError: a key's file, a TLS file, a chat template or the event log cannot be used, or a variable of
            OpenTelemetry.
        PortTakenError: a port is taken.
    """

    def __init__(
        self,
        settings: Settings,
        listening: Sequence[socket.socket] = (),
        launched: Launched = MappingProxyType({}),
        spec: FrontSpec | None = None,
    ) -> None:
        self.parent = Parent()
        self._settings = settings
        self._clock: Callable[[], float] = time.monotonic
        self._background = Background()
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._flights = Flights(self._clock, lambda: self._settings.upstream)
        self._metrics = Metrics(gateway.__version__)
        self._metrics.know_tenants(_tenants(settings))
        self._digests = Digests(self._clock)
        self._files = read_named_files(settings)
        self._templates = dict(self._files.templates)
        self._directory = Directory(
            self._make_pool, self._verify, self._flights.evacuate, self._flights.expire, self._left
        )
        self._directory.expecting = settings.awaits_endpoints
        self._core = self._make_core(spec, launched)
        self._exports = Exports(
            self._core.figures, None if spec is None else f"front-{spec.number}", self._metrics.registry
        )
        counting = settings.counting
        self._counting = CountingPool(
            threads=counting.threads,
            processes=counting.processes,
            process_bytes=counting.process_bytes,
            max_pending_bytes=counting.max_pending_bytes,
        )
        self._tokenizers = Tokenizers(self._counting)
        self._upstream = HttpUpstream(lambda: self._settings.upstream)
        on_demand = [address for address, how in launched.items() if how is not None]
        self._reached = Reached(
            self._directory, self._upstream, watch=self._core.watch, forget=self._core.forget, on_demand=on_demand
        )
        self._reached.follow(self._files.endpoints)
        self._plane = Plane(
            settings=settings,
            clients=self._files.clients,
            directory=self._directory,
            flights=self._flights,
            upstream=self._upstream,
            metrics=self._metrics,
            clock=self._clock,
            lobby=Lobby(lambda: self._settings.admission.queue),
            awaited=Awaited(self._core.tell_awaited, self._clock),
            counting=self._counting,
            bodies=Room(lambda: self._settings.admission.queue.max_bytes),
            hash_key=new_key() if spec is None else spec.hash_key,
            ids=count(1) if spec is None else count(spec.number << FRONT_BITS),
            elsewhere=self._reached.elsewhere(self._files.elsewhere),
        )
        self._broadcast = Broadcast(self._core.picture)
        self._view = StateView(lambda: self._settings, self._directory, self._core)
        self._listeners = self._listen(listening, None if spec is None else spec.owner.with_name("loads"))

    def _make_core(self, spec: FrontSpec | None, launched: Launched) -> Core:
        clock, progressed, metrics = self._clock, self._flights.progressed, self._metrics
        if spec is None:
            return Together(
                self._settings,
                self._files.endpoints,
                self._directory,
                clock=clock,
                progressed=progressed,
                metrics=metrics,
                launched=launched,
                digest=self._digests.take,
                parent=self.parent,
            )
        return Apart(
            spec,
            self._directory,
            clock=clock,
            progressed=progressed,
            metrics=metrics,
            settings=lambda: self._settings,
            templates=lambda: self._files.templates,
            digest=self._digests.take,
            parent=self.parent,
        )

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def port(self) -> int:
        """The port clients use; 0 where they use a unix socket."""
        return self._listeners[0].port

    @property
    def where(self) -> int | str:
        """The port or unix socket that clients use."""
        return self.port or self._settings.server.host

    @property
    def active(self) -> int:
        """How many requests are being served."""
        return self._gateway.active

    @property
    def endpoints(self) -> list[EndpointStatus]:
        """The present status of each endpoint."""
        return self._core.statuses()

    @property
    def loaded(self) -> frozenset[str]:
        """Models that wait for no tokenizer: it is loaded, or never will be."""
        return frozenset(name for name, loading in self._loading.items() if loading.done())

    async def start(self, settle: float = 0.0) -> None:
        """Watch the endpoints and take requests.

        `settle`: most seconds spent before that to look for endpoints and load tokenizers.
        """
        self._core.start()
        self._exports.start()
        self._preload()
        self._background.spawn("flights", self._flights.watch)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settle):
                await self._settled()
        for listener in self._listeners:
            listener.start()
        _log.info(
            "listening",
            **({"port": self.port} if self.port else {"socket": self._settings.server.host}),
            endpoints=[*self._directory.endpoints],
            version=gateway.__version__,
            core="interpreted" if controller.__file__.endswith(".py") else "compiled",
        )

    async def change(self, settings: Settings) -> SettingsChange:
        """Put other settings in force, as far as they can change; read keys and certificates again.

        Requests in flight and in the queue stay, except those that have now waited too long.

        Raises:
            ConfigurationError: a file that the settings name cannot be used. Nothing was changed.
        """
        change = SettingsChange.between(self._settings, settings)
        self._go_by(change.settings, await asyncio.to_thread(read_named_files, change.settings))
        _log.info("settings read again", changed=list(change.live), not_changed=change.told())
        return change

    async def drain(self, timeout: float) -> None:
        """Take no new work, and wait at most `timeout` seconds for running requests to finish."""
        self._broadcast.close()
        self._refuse()
        if not await self._gateway.wait_idle(timeout):
            await self._cut()

    async def hand_over(self, timeout: float) -> None:
        """Leave new connections to another process, and serve the open ones to their end, at most `timeout` seconds.

        Until then nothing is refused, and waiting requests keep their places.
        """
        self._broadcast.close()
        for listener in self._listeners:
            listener.retire()
        _log.info("handing over", connections=self._connections())
        try:
            async with asyncio.timeout(timeout):
                while self._connections():  # noqa: ASYNC110  # uvicorn tells nobody
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            self._refuse()
            await self._cut()

    def _refuse(self) -> None:
        """Refuse what waits, and take no new work."""
        self._gateway.draining = self._view.draining = True
        self._core.leave()
        self._plane.lobby.drain()

    async def _cut(self) -> None:
        """End what runs, and have its clients hear that before their connections end."""
        _log.warning("gave up on requests that did not finish in time", requests=self._gateway.active)
        self._flights.cut()
        await self._gateway.wait_idle(_LAST_WORD)

    async def stop(self) -> None:
        """Close everything."""
        self._broadcast.close()
        for listener in self._listeners:
            await listener.stop()
        await self._core.stop()  # first: an endpoint that comes up starts work here
        await self._background.stop()
        await self._upstream.close()
        await self._counting.close()
        if self._access is not None:
            self._access.flush()
        _log.info("stopped")
        await self._exports.stop()

    async def _recheck(self, pool: Pool) -> None:
        """Have a counter that drifted check, when due, whether it agrees with its endpoints again.

        Each model's does so by itself: a slow engine keeps no other model waiting.
        """
        while True:
            await asyncio.sleep(_RECHECK)
            if self._directory.pools.get(pool.name) is not pool:
                return  # no longer served
            self._follow_upgrade(pool)
            await pool.counter.recheck()

    def _follow_upgrade(self, pool: Pool) -> None:
        """Count with another tokenizer, where all endpoints that are up name that one, and none counts as the last."""
        sources = {self._tokenizer(there.settings, there.identity.root) for there in pool.healthy() if there.identity}
        if len(sources) == 1 and pool.counter.refuted and pool.counter.source not in sources:
            (source,) = sources
            _log.info("the endpoints serve another model by now: its tokenizer counts", model=pool.name)
            pool.counter = self._new_counter(pool.name, source, lambda: pool)
            for endpoint in pool.healthy():
                self._verify(endpoint)

    def _listen(self, given: Sequence[socket.socket], shared: Path | None) -> list[Listener]:
        server = self._settings.server
        log = self._settings.log
        self._access = AccessLog(log, together=True) if log.access else None
        reporter = Reporter(self._metrics, self._access, self._digests, self._exports.report)
        apart = server.admin_port is not None
        main, self._admin_port = self._admin_apps()
        self._gateway = Gateway(self._plane, reporter, main, self._exports.record)

        async def admin_port(scope: Scope, receive: Receive, send: Send) -> None:
            await self._admin_port(scope, receive, send)

        applications: list[Any] = [self._gateway, admin_port] if apart else [self._gateway]
        on_refused, tls = self._metrics.refused_connections.inc, self._files.tls
        sockets = given or bind_all(server)
        clients, *admin = zip(applications, sockets, strict=False)
        loads = None if shared is None else Loads(shared)
        return [
            Listener(*clients, server, on_refused=on_refused, loads=loads, shared=bool(given), tls=tls),
            *(
                Listener(*port, server, most=_ADMIN_CONNECTIONS, on_refused=on_refused, shared=bool(given), tls=tls)
                for port in admin
            ),
        ]

    def _go_by(self, settings: Settings, found: NamedFiles) -> None:
        """Put other settings in force, all in one turn of the event loop."""
        before, self._settings = self._settings, settings
        self._metrics.know_tenants(_tenants(settings))
        had, self._files = self._files, found
        self._templates.update(found.templates)
        self._plane.settings, self._plane.clients = settings, found.clients
        self._counting.process_bytes = settings.counting.process_bytes
        self._counting.max_pending_bytes = settings.counting.max_pending_bytes
        if settings.upstream.relay_concurrency != before.upstream.relay_concurrency:
            for pool in self._directory.pools.values():
                pool.relay_places = Places(settings.upstream.relay_concurrency)
        for listener in self._listeners:
            listener.govern(settings.server, found.tls)
        if (had.admin_key, had.clients.authenticates) != (found.admin_key, found.clients.authenticates):
            self._gateway.admin, self._admin_port = self._admin_apps()
        self._directory.expecting = settings.awaits_endpoints
        self._core.go_by(settings, found.endpoints)
        self._reached.follow(found.endpoints)
        self._plane.elsewhere = self._reached.elsewhere(found.elsewhere)
        self._preload()

    def _admin_apps(self) -> tuple[FastAPI, FastAPI]:
        """The admin applications of the clients' port and of the admin port."""
        key = self._files.admin_key
        if key is None and self._settings.auth.keys:
            _log.warning("clients need keys, but there is no admin_key: nobody can read /metrics and /kvgate/*")
            key = secrets.token_urlsafe()
        everything = self._admin(Part.HEALTH | Part.ADMIN, key)
        main = everything if self._settings.server.admin_port is None else self._admin(Part.HEALTH, key)
        authenticates = self._plane.clients.authenticates
        main.openapi = with_data_plane(main.openapi, authenticates=authenticates)  # type: ignore[method-assign]
        return main, everything

    def _connections(self) -> int:
        return sum(listener.connections + listener.beginning for listener in self._listeners)

    async def _settled(self) -> None:
        """Wait until each endpoint was probed once and the tokenizers of those that answered are loaded."""
        await self._core.settled()
        if self._loading:
            await asyncio.wait(self._loading.values())

    def _admin(self, parts: Part, key: str | None) -> FastAPI:
        explainer = RelayExplainer(self._plane)
        return admin_app(
            self._view,
            self._core.exposition,
            explainer,
            self._broadcast,
            gateway.__version__,
            admin_key=key,
            parts=parts,
        )

    def _make_pool(self, endpoint: Endpoint, identity: Identity, name: str) -> Pool:
        self._metrics.know(name, self._directory.pools)
        counter = self._new_counter(name, self._tokenizer(endpoint.settings, identity.root), lambda: pool)
        pool = Pool(name, self._core.admission(name), counter, self._settings.upstream.relay_concurrency)
        self._background.spawn(f"drift of {name}", functools.partial(self._recheck, pool))
        return pool

    def _new_counter(self, name: str, source: TokenizerSource | None, pool: Callable[[], Pool]) -> ModelCounter:
        """A counter of a model; `pool` tells its endpoints."""
        model = self._metrics.model(name)

        def targets() -> list[Target]:
            return [self._reached.target(endpoint) for endpoint in pool().in_turn(self._clock())]

        def drifted(drift: Drift) -> None:
            model.drifted(drift.counted - drift.reported)
            self._digests.drifted(name, drift.cause)
            if drift.first:
                _log.warning("a count differs from the engine's usage", model=name, **_drift_fields(drift))

        def switched(reason: str) -> None:
            _log.warning("prompts are counted otherwise from now on", model=name, reason=reason)

        def returned(requests: str) -> None:
            _log.info("prompts are counted here again", model=name, requests=requests)

        def refused(reason: str) -> None:
            _log.warning("an endpoint gets no token ids", model=name, reason=reason)

        counter = ModelCounter(
            name,
            source,
            self._counting,
            self._tokenizers,
            EngineCounter(targets, lambda: self._settings.health.timeout),
            up=lambda: [endpoint.base_url for endpoint in pool().healthy()],
            on_drift=drifted,
            on_switch=switched,
            on_return=returned,
            on_refusal=refused,
            clock=self._clock,
            hand_over_from=lambda: self._settings.counting.hand_over_from,
            key=self._plane.hash_key,
        )
        self._loading = {known: task for known, task in self._loading.items() if known in self._directory.pools}
        self._loading[name] = self._background.spawn(f"tokenizer of {name}", counter.start)
        return counter

    def _tokenizer(self, model: ModelSettings, root: str | None = None) -> TokenizerSource | None:
        name = model.tokenizer or root
        return (
            TokenizerSource(name, model.trust_remote_code, self._templates[model.chat_template])
            if name is not None
            else None
        )

    def _preload(self) -> None:
        """Load the tokenizers named in the settings: engines take longer to start."""

        async def load(source: TokenizerSource) -> None:
            await self._tokenizers.load(source)

        for model in self._settings.models:
            if (source := self._tokenizer(model)) is not None:
                self._background.spawn(f"tokenizer {source.name}", functools.partial(load, source))

    def _verify(self, endpoint: Endpoint) -> None:
        assert endpoint.pool is not None  # noqa: S101  # it came up, so it has one
        self._background.spawn(f"probes of {endpoint.id}", functools.partial(self._compared, endpoint, endpoint.pool))
        if endpoint.clamps is None:
            self._background.spawn(f"length of {endpoint.id}", functools.partial(self._ask_clamps, endpoint))

    async def _ask_clamps(self, endpoint: Endpoint) -> None:
        if not endpoint.healthy:
            return  # a front that joins its owner hears so of one that sleeps; it is asked when it is up
        assert endpoint.identity is not None  # noqa: S101  # it came up, so it has one
        endpoint.clamps = await clamps(self._reached.target(endpoint), endpoint.identity)

    async def _compared(self, endpoint: Endpoint, pool: Pool) -> None:
        await self._loading[pool.name]
        if not endpoint.healthy:
            return
        try:
            report = await pool.counter.verify(self._reached.target(endpoint))
        except CountUnavailableError as error:
            yet = "counting could not be compared with the endpoint yet: it is asked again"
            _log.warning(yet, endpoint=endpoint.id, reason=str(error))
            return
        if report is not None and not report.differs:
            _log.info("prompts are counted as the endpoint counts them", endpoint=endpoint.id, probes=report.compared)

    def _left(self, endpoint: Endpoint) -> None:
        self._reached.left(endpoint)


def _drift_fields(drift: Drift) -> dict[str, Any]:
    return {"cause": drift.cause, "counted": drift.counted, "reported": drift.reported}


def _tenants(settings: Settings) -> set[str]:
    return {key.name for key in settings.auth.keys}
