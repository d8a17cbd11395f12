"""The composition root of the gateway: the one place that knows every part and puts them together."""

import asyncio
import contextlib
import functools
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import structlog
from fastapi import FastAPI

import gateway
from gateway.admission import controller as core
from gateway.admission.controller import AdmissionController
from gateway.admission.events import EndpointId
from gateway.background import kept_up
from gateway.chat_templates import chat_template
from gateway.config import EndpointSettings, ModelSettings, Settings
from gateway.descriptors import most_connections
from gateway.driver import Driver
from gateway.endpoints.identity import Identity
from gateway.endpoints.listener import EndpointStatus
from gateway.endpoints.monitor import EndpointMonitor
from gateway.endpoints.tls import ssl_context
from gateway.gpus import GpuWatch
from gateway.ops.admin import Part, admin_app
from gateway.ops.logs import AccessLog
from gateway.ops.metrics import Metrics
from gateway.pools import Directory, Endpoint, Pool
from gateway.record.learned import LearnedFiles, state_folder
from gateway.record.lines import Started
from gateway.record.recorder import Recorder
from gateway.relay.clients import Client, Clients
from gateway.relay.exchange import Reporter
from gateway.relay.explain import RelayExplainer
from gateway.relay.flights import Flights
from gateway.relay.gateway import Gateway
from gateway.relay.http_upstream import HttpUpstream
from gateway.relay.lobby import Lobby
from gateway.relay.openapi import with_data_plane
from gateway.relay.plane import Plane
from gateway.server import Listener, bind_all
from gateway.settings_sources import ConfigurationError, read_secret
from gateway.state import StateView
from gateway.tokens.count import CountUnavailableError
from gateway.tokens.counter import ModelCounter
from gateway.tokens.drift import Drift
from gateway.tokens.engine_count import EngineCounter, Target
from gateway.tokens.loading import Tokenizers
from gateway.tokens.pool import CountingPool
from gateway.tokens.render import TokenizerSource

KEEP_INTERVAL = 60.0
"""Seconds between two writings of what was learned: as much is lost when the process is killed."""
_POLL = 0.1
"""Seconds between two looks at what is still open."""
_RECHECK = 5.0
"""Seconds between two looks at what the counters doubt."""
_ADMIN_CONNECTIONS = 64
"""Most at once on a port for the admin routes alone."""
_log = structlog.get_logger("kvgate.app")


class Application:
    """One gateway process: built from settings, started, drained or handed over, stopped.

    Args:
        settings: all of them.
        listening: sockets for clients and, where it has a port of its own, for the admin routes; bound here where not
            given.

    Raises:
        ConfigurationError: a key's file, a TLS file, a chat template or the event log cannot be used.
        PortTakenError: a port is taken.
    """

    def __init__(self, settings: Settings, listening: Sequence[socket.socket] = ()) -> None:
        self._settings = settings
        self._clock: Callable[[], float] = time.monotonic
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: dict[str, asyncio.Task[None]] = {}
        upstream = settings.upstream
        self._flights = Flights(self._clock, upstream.first_byte_timeout, upstream.idle_timeout)
        self._recorder = _recorder(settings)
        self._learned = _learned(settings)
        self._metrics = Metrics(gateway.__version__)
        self._directory = Directory(self._make_pool, self._verify, self._flights.evacuate)
        counting = settings.counting
        self._counting = CountingPool(
            threads=counting.threads,
            processes=counting.processes,
            process_bytes=counting.process_bytes,
            max_pending_bytes=counting.max_pending_bytes,
        )
        self._tokenizers = Tokenizers(self._counting)
        self._templates: dict[str | None, str | None] = {}
        self._clients: dict[EndpointId, httpx.AsyncClient] = {}
        tls = {}
        for model in settings.models:
            for endpoint in model.endpoints:
                context = ssl_context(endpoint.tls)
                tls[_base_url(endpoint)] = context
                self._add_endpoint(model, endpoint, context)
        self._upstream = HttpUpstream(upstream.connect_timeout, upstream.keepalive, tls)
        self._plane = Plane(
            settings=settings,
            clients=_clients(settings),
            directory=self._directory,
            flights=self._flights,
            upstream=self._upstream,
            metrics=self._metrics,
            clock=self._clock,
            lobby=Lobby(settings.admission.queue),
            counting=self._counting,
        )
        self._view = StateView(settings, self._directory, self._clock)
        self._metrics.watch(self._view.state)
        self._gpus = GpuWatch()
        self._metrics.registry.register(self._gpus)
        self._listeners = self._listen(listening)

    @property
    def port(self) -> int:
        """The port clients use."""
        return self._listeners[0].port

    @property
    def active(self) -> int:
        """How many requests are being served."""
        return self._gateway.active

    @property
    def endpoints(self) -> list[EndpointStatus]:
        """What is known of each endpoint now."""
        return [endpoint.monitor.status for endpoint in self._directory.endpoints.values()]

    @property
    def loaded(self) -> frozenset[str]:
        """Models whose prompts can be counted: their tokenizers are loaded, or never will be."""
        return frozenset(name for name, loading in self._loading.items() if loading.done())

    async def start(self, settle: float = 0.0) -> None:
        """Watch the endpoints and take requests.

        `settle` is how long, in seconds, it may first look for endpoints and load tokenizers.
        """
        for endpoint in self._directory.endpoints.values():
            self._spawn(f"monitor of {endpoint.id}", endpoint.monitor.run)
        for model in self._settings.models:
            if (source := self._tokenizer(model)) is not None:  # engines take longer to start than it to load
                self._spawn(f"tokenizer {source.name}", functools.partial(self._preload, source))
        self._spawn("GPU watch", self._gpus.run)
        self._spawn("flights", self._flights.watch)
        self._spawn("samples", self._sample)
        self._spawn("what was learned", self._keep_learned)
        self._spawn("drift", self._recheck)
        if self._recorder is not None:
            self._recorder.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settle):
                await self._settled()
        for listener in self._listeners:
            listener.start()
        _log.info(
            "listening",
            port=self.port,
            endpoints=[*self._directory.endpoints],
            version=gateway.__version__,
            core="interpreted" if core.__file__.endswith(".py") else "compiled",
        )

    async def drain(self, timeout: float) -> None:
        """Take no new work, and wait until what runs has finished, at most `timeout` seconds."""
        self._gateway.draining = self._view.draining = True
        self._directory.drain()
        self._plane.lobby.drain()
        if not await self._gateway.wait_idle(timeout):
            _log.warning("gave up on requests that did not finish in time", requests=self._gateway.active)

    async def hand_over(self, timeout: float) -> None:
        """Leave new connections to another process, serve those that are open to their ends, at most `timeout` seconds.

        Nothing is refused, and nothing that waits is sent away.
        """
        for listener in self._listeners:
            listener.retire()
        _log.info("handing over", connections=self._connections())
        try:
            async with asyncio.timeout(timeout):
                while self._connections():  # noqa: ASYNC110  # uvicorn tells nobody
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            _log.warning("gave up on requests that did not finish in time", requests=self._gateway.active)

    async def stop(self) -> None:
        """Close everything."""
        for listener in self._listeners:
            await listener.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._write_learned()
        for pool in self._directory.pools.values():
            pool.driver.close()
        if self._recorder is not None:
            await self._recorder.close()
        await self._upstream.close()
        for client in self._clients.values():
            await client.aclose()
        await self._counting.close()
        _log.info("stopped")

    async def _sample(self) -> None:
        """Have the metrics note how full everything is, as often as it may have changed by a scrape."""
        while True:
            await asyncio.sleep(self._settings.health.interval)
            now = self._clock()
            pools = self._directory.pools.items()
            self._metrics.sample({name: pool.driver.controller.load(now) for name, pool in pools})

    async def _keep_learned(self) -> None:
        while True:
            await asyncio.sleep(KEEP_INTERVAL)
            await self._write_learned()

    async def _write_learned(self) -> None:
        if self._learned is None:
            return
        for pool in list(self._directory.pools.values()):
            learned = pool.driver.controller.learned()
            if learned.everything:
                await asyncio.to_thread(self._learned.write, pool.name, pool.root, learned)

    async def _recheck(self) -> None:
        """Have the counters that drifted look, when it is time, whether they count as the endpoints do again."""
        while True:
            await asyncio.sleep(_RECHECK)
            for pool in list(self._directory.pools.values()):
                await pool.counter.recheck()

    def _listen(self, given: Sequence[socket.socket]) -> list[Listener]:
        server = self._settings.server
        reporter = Reporter(self._metrics, AccessLog(self._settings.log) if self._settings.log.access else None)
        apart = server.admin_port is not None
        admin = self._admin(Part.HEALTH if apart else Part.HEALTH | Part.ADMIN)
        authenticates = self._plane.clients.authenticates
        admin.openapi = with_data_plane(admin.openapi, authenticates=authenticates)  # type: ignore[method-assign]
        self._gateway = Gateway(self._plane, reporter, admin)
        applications: list[Any] = [self._gateway]
        if apart:
            applications.append(self._admin(Part.HEALTH | Part.ADMIN))
        limits = (server.max_connections or most_connections(), _ADMIN_CONNECTIONS)
        pairs = zip(applications, given or bind_all(server), limits, strict=False)
        return [
            Listener(application, listening, server, most=most, on_refused=self._metrics.refused_connections.inc)
            for application, listening, most in pairs
        ]

    def _connections(self) -> int:
        return sum(listener.connections for listener in self._listeners)

    async def _settled(self) -> None:
        """Wait until each endpoint was probed once, and what those that are there count with is loaded."""
        for endpoint in self._directory.endpoints.values():
            await endpoint.monitor.probed.wait()
        if self._loading:
            await asyncio.wait(self._loading.values())

    def _admin(self, parts: Part) -> FastAPI:
        auth = self._settings.auth
        key = read_secret(auth.admin_key, auth.admin_key_file)
        if key is None and auth.keys:
            _log.warning("clients need keys, but there is no admin_key: nobody can read /metrics and /kvgate/*")
            key = secrets.token_urlsafe()
        explainer = RelayExplainer(self._plane)
        return admin_app(self._view, self._metrics, explainer, gateway.__version__, admin_key=key, parts=parts)

    def _add_endpoint(self, model: ModelSettings, settings: EndpointSettings, context: Any) -> None:
        self._templates[model.chat_template] = chat_template(model)
        base_url = _base_url(settings)
        identifier = EndpointId(settings.address)
        api_key = read_secret(settings.api_key, settings.api_key_file)
        headers = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        limits = httpx.Limits(keepalive_expiry=self._settings.upstream.keepalive)
        client = httpx.AsyncClient(verify=context, headers=headers, limits=limits, trust_env=False)
        self._clients[identifier] = client
        monitor = EndpointMonitor(
            identifier, settings, self._settings.health, client=client, listener=self._directory, clock=self._clock
        )
        self._directory.add(Endpoint(identifier, base_url, api_key, model, monitor))

    def _make_pool(self, endpoint: Endpoint, identity: Identity, name: str) -> Pool:
        settings, health = self._settings, self._settings.health
        policy = settings.admission.to_policy(weights=settings.auth.weights, poll_interval=health.interval)
        record = self._recorder.pool(name) if self._recorder is not None else None
        driver = Driver(AdmissionController(policy), self._clock, self._flights.progressed, record)
        learned = self._learned.read(name, identity.root) if self._learned is not None else None
        if learned is not None:
            driver.handle(learned)
        self._metrics.know(name)

        model = self._metrics.model(name)

        def targets() -> list[Target]:
            return [self._target(endpoint) for endpoint in pool.in_turn()]

        def drifted(drift: Drift) -> None:
            model.drifted(drift.counted - drift.reported)
            if drift.first:
                _log.warning("a count differs from the engine's usage", model=name, **_drift_fields(drift))

        def switched(reason: str) -> None:
            _log.warning("the engine counts prompts from now on", model=name, reason=reason)

        def returned(requests: str) -> None:
            _log.info("prompts are counted here again", model=name, requests=requests)

        counter = ModelCounter(
            name,
            self._tokenizer(endpoint.settings, identity.root),
            self._counting,
            self._tokenizers,
            EngineCounter(targets, health.timeout),
            on_drift=drifted,
            on_switch=switched,
            on_return=returned,
            clock=self._clock,
        )
        pool = Pool(name, identity.root, driver, counter, self._settings.upstream.relay_concurrency)
        self._loading[name] = self._spawn(f"tokenizer of {name}", counter.start)
        return pool

    def _tokenizer(self, model: ModelSettings, root: str | None = None) -> TokenizerSource | None:
        name = model.tokenizer or root
        return (
            TokenizerSource(name, model.trust_remote_code, self._templates[model.chat_template])
            if name is not None
            else None
        )

    async def _preload(self, source: TokenizerSource) -> None:
        await self._tokenizers.load(source)

    def _verify(self, endpoint: Endpoint) -> None:
        assert endpoint.pool is not None  # noqa: S101  # it came up, so it has one
        self._spawn(f"probes of {endpoint.id}", functools.partial(self._compared, endpoint, endpoint.pool))

    async def _compared(self, endpoint: Endpoint, pool: Pool) -> None:
        await self._loading[pool.name]
        try:
            report = await pool.counter.verify(self._target(endpoint))
        except CountUnavailableError as error:
            _log.warning("counting could not be compared with the endpoint", endpoint=endpoint.id, reason=str(error))
            return
        if report is not None and not report.differs:
            _log.info("prompts are counted as the endpoint counts them", endpoint=endpoint.id, probes=report.compared)

    def _target(self, endpoint: Endpoint) -> Target:
        return Target(endpoint.base_url, self._clients[endpoint.id])

    def _spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(kept_up(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _base_url(settings: EndpointSettings) -> str:
    return str(settings.url).rstrip("/")


def _drift_fields(drift: Drift) -> dict[str, Any]:
    return {"cause": drift.cause, "counted": drift.counted, "reported": drift.reported}


def _clients(settings: Settings) -> Clients:
    keys = {}
    for client in settings.auth.keys:
        key = read_secret(client.key, client.key_file)
        if key is not None:
            keys[key] = Client(client.name, client.priority)
    return Clients(keys, settings.server.trusted_flow_header)


def _learned(settings: Settings) -> LearnedFiles | None:
    match settings.server.state_dir:
        case "none":
            return None
        case "auto":
            return LearnedFiles(state_folder())
        case folder:
            return LearnedFiles(Path(folder))


def _recorder(settings: Settings) -> Recorder | None:
    admission, file = settings.admission, settings.admission.event_log
    if file is None:
        return None
    started = Started(
        gateway.__version__,
        admission.model_dump(mode="json", exclude={"event_log"}),
        settings.auth.weights,
        settings.health.interval,
    )
    try:
        return Recorder(file, started)
    except OSError as error:
        raise ConfigurationError(f"admission.event_log = {str(file)!r}: cannot be written: {error.strerror}") from None
