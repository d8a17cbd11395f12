"""The monitor of one endpoint: probes it, scrapes it, hears from requests, and tells when it takes traffic."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from types import MappingProxyType
from zlib import crc32

import httpx
import structlog

from gateway.admission.events import Capacity, EndpointId, Observed, RequestId
from gateway.config.endpoint import EndpointSettings, asked_at
from gateway.config.settings import HealthSettings
from gateway.endpoints.adapters import Adapters, Calls
from gateway.endpoints.exposition import EngineMetrics, used_loras
from gateway.endpoints.health import (
    KEEPS,
    TAKEN_OUT,
    Aborted,
    Answered,
    Drain,
    Effect,
    Event,
    Health,
    Missed,
    Progressed,
    Retire,
    Rouse,
    Scales,
    Stalled,
    State,
    Undrain,
)
from gateway.endpoints.identity import Identity, UnidentifiedError, lora_paths
from gateway.endpoints.listener import EndpointStatus, Listener
from gateway.endpoints.meter import Meter
from gateway.endpoints.mistakes import helps, mistaken
from gateway.endpoints.probe import Prober
from gateway.endpoints.readers import READERS
from gateway.endpoints.recognition import find_kind, identify_as
from gateway.endpoints.replies import NoReply, Reply
from gateway.endpoints.silence import Silence, SilenceCause, SilenceMeter
from gateway.endpoints.totals import Totals, fell
from gateway.ops.pace import Pace
from gateway.runtime.descriptors import OutOfDescriptorsError
from gateway.wire.engine_kinds import VLLM, EngineKind, Meaning, meaning
from gateway.wire.stream import error_message, is_page

IDENTITY_INTERVAL = 30.0
"""Seconds between two readings of the identity (names, adapters, length) of an endpoint that takes traffic."""
REREAD = 1.0
"""Likewise, where requests fail on it or its counters fall: it may be another engine by now, or want another key."""

REMINDER = 60.0
"""Seconds between two warnings that an endpoint does not answer as it should."""

_FAILING = frozenset({State.STARTING, State.DOWN})
"""States out of which another engine may come than was there before."""

_ABSENT = frozenset({State.STARTING, State.ASLEEP, State.STOPPED})
"""States in which nobody is asked to load adapters, unless probes are answered by now. Nor is one that is lost."""

SPARING = 20
"""Multiple of the time that it last took to ask an engine for adapters until it is asked again for what has failed: a
vLLM generates nothing while it looks for one, as at a hub that does not answer."""

MOST_HELD = 2
"""Probes for which an endpoint that is ready takes no traffic yet, as it has not answered all questions: without
`/metrics` the size of its cache is unknown, and a queue that waits would go into it whole."""

EQUIPPING = 5.0
"""Seconds for which an engine that has generated before takes no traffic while it gets adapters, if no other one serves
its model: most likely it did until now, and this process has just begun to watch it. All others take none until they
have been asked for all of their adapters."""

MOVING = 2
"""Probe intervals after its last token for which an endpoint that looks dead keeps its requests. Had its process ended,
their connections would have ended, too. A name that is not found ends none, nor does a proxy that is full."""

HURRY_GAP = 0.05
"""Least seconds between two probes, even if many requests fail."""

Look = Callable[[], Awaitable[bool | None]]
"""Returns whether an endpoint's processes have computed lately; None if they cannot be seen."""

Misfit = Callable[[Identity], Awaitable[str | None]]

_log = structlog.get_logger("kvgate.endpoints")


class EndpointMonitor:
    """One endpoint's watch.

    Args:
        endpoint_id: the endpoint's name in logs, metrics and events.
        settings: its URL and what else is configured of it.
        health: intervals and timeouts of probes.
        client: for its probes; the caller closes it.
        listener: is told of changes.
        clock: monotonic seconds, the same clock as the admission core's.
        look: called only while nothing moves.
        misfit: says why an endpoint with this identity may not take traffic; called while it takes none.
        alone: says whether no other endpoint of its model takes traffic.
        adapters: LoRA adapters that its engine is to have: paths by name.

    Attributes:
        adapters: those, and how they are.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        settings: EndpointSettings,
        health: HealthSettings,
        *,
        client: httpx.AsyncClient,
        listener: Listener,
        clock: Callable[[], float],
        look: Look,
        misfit: Misfit | None = None,
        alone: Callable[[], bool] = lambda: True,
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.adapters = Adapters(endpoint_id, adapters)
        self._settling: asyncio.Task[bool] | None = None
        self._spared_until = float("-inf")
        self._id = endpoint_id
        self._settings = settings
        self._interval = health.interval
        self._prober = Prober(client, asked_at(str(settings.url)), health.timeout, clock)
        self._listener = listener
        self._clock = clock
        self._health = Health(clock(), health.failures)
        self._progress = SilenceMeter(health.hung_after)
        self._look = look
        self._misfit = misfit
        self._alone = alone
        self._hurry = asyncio.Event()
        self.probed = asyncio.Event()
        """Set after the first probe, whatever its result."""
        self._kind = VLLM
        self._read = READERS[VLLM.name].metrics()
        self._identity: Identity | None = None
        self._about: dict[str, bytes] = {}
        """What its engine last told of itself, since it came up: one busy moment must not take its size from it."""
        self._loras: Mapping[str, str | None] = {}
        self._identified_at = float("-inf")
        self._metrics: EngineMetrics | None = None
        self._totals = Totals()
        self._meter = Meter()
        self._scraped_at: float | None = None
        self._has_gauges = True
        """Whether its engine may have the route of its gauges. A llama-server wakes to say that it has no slots."""
        self._missing: tuple[str, ...] = ()
        self._can_sleep = self._tells_sleep = False
        """Whether it may have the route that tells whether it sleeps, and whether that has answered. What is between
        may answer 503 for routes that it does not know."""
        self._told: tuple[Identity, Capacity, bool] | None = None
        self._told_out: tuple[bool, bool] | None = (False, False)
        """Whether it keeps its requests, and whether the operator drained it, as told while it takes no traffic."""
        self._held = 0
        """For how many probes in a row it has been held back; see `MOST_HELD`."""
        self._fell = False
        """Whether its counters fell, which is not counted in `_replaced` yet."""
        self._replaced, self._replaced_at = 0, float("-inf")
        """See `Identity.replaced`, and when it was last counted."""
        self._moved_at = float("-inf")
        self._to_evacuate = False
        """Whether what it has not answered is to leave it as soon as it stands still."""
        self._said_at = clock()
        self._starts = False
        """Whether its engine was started anew, and was not healthy since."""
        self._cause: str | None = None
        self._remedy: str | None = None

    @property
    def status(self) -> EndpointStatus:
        """The present status."""
        return EndpointStatus(
            id=self._id,
            url=str(self._settings.url),
            state=self._health.state,
            reason=self._health.reason,
            since=self._health.since,
            healthy=self._health.serving,
            was_healthy=self._health.was_healthy,
            identity=self._identity,
            capacity=self._capacity(),
            in_flight=self._progress.in_flight,
            missing_metrics=self._missing,
            scraped_at=self._scraped_at,
            totals=self._totals,
            adapters=self.adapters.states(self._loras, self._unasked),
            cause=self._cause,
            remedy=self._remedy,
        )

    @property
    def serving(self) -> bool:
        """Whether it takes traffic now."""
        return self._health.serving

    @property
    def state(self) -> State:
        """The state of its health."""
        return self._health.state

    @property
    def in_flight(self) -> int:
        """How many requests are on it whose silence says something of it, as fronts have told."""
        return self._progress.in_flight

    @property
    def passing(self) -> int:
        """How many answers of it are only passed on, as fronts have told."""
        return self._progress.passing

    @property
    def drained(self) -> bool:
        """Whether the operator wants no new requests there."""
        return self._health.state is State.DRAINING

    @property
    def keyed(self) -> bool:
        """Whether requests need the endpoint's own key."""
        return self._settings.keyed

    @property
    def on_trial(self) -> bool:
        """Whether it gets one request at a time until there is progress."""
        return self._health.state is State.TRIAL

    @property
    def keeps(self) -> bool:
        """Whether its requests may still be answered although it takes no new ones."""
        return self.moves or (self._health.state in KEEPS and not self._health.lost)

    @property
    def moves(self) -> bool:
        """Whether there were tokens within `MOVING` intervals. Then it lives, whatever its probes say."""
        return self._clock() - self._moved_at < MOVING * self._interval

    @property
    def pace(self) -> Pace | None:
        """The change of its pace since it last began to serve; None if it cannot be told."""
        return self._meter.pace

    async def run(self) -> None:
        """Probe until cancelled: every interval, on a fixed grid, and at once when a request reports trouble."""
        try:
            await self._run()
        finally:
            if self._settling is not None:
                self._settling.cancel()

    async def _run(self) -> None:
        # Each has its own place in the interval: a hundred probed at once would hold up the loop.
        grid = self._clock() - self._interval * crc32(self._id.encode()) / 2**32
        while True:
            self._hurry.clear()
            try:
                await self.probe()
            except OutOfDescriptorsError as error:
                _log.warning("endpoint not probed", endpoint=self._id, reason=str(error))
            except Exception:  # noqa: BLE001  # an endpoint that nobody watches any more would stay as it is for ever
                _log.exception("probe failed", endpoint=self._id)
            self.probed.set()
            now, gap = self._clock(), min(HURRY_GAP, self._interval / 2)
            due = now + gap + self._interval - (now + gap - grid) % self._interval
            try:
                async with asyncio.timeout(due - now):
                    await asyncio.sleep(gap)
                    await self._hurry.wait()
            except TimeoutError:
                if (now := self._clock()) - due >= self._progress.hung_after / 2:
                    self._progress.restart(now)  # it was this process that stood still: it has yet to read what came

    async def probe(self) -> None:
        """Run one round: ask for health, metrics and, when due, identity; then judge the answers."""
        began = self._clock()
        self._prober.lost = None
        kind = self._kind
        health, metrics, asleep = await asyncio.gather(self._prober.get(kind.health), self._gauges(), self._asleep())
        if isinstance(health, Reply) and not health.ok and not self._health.serving:
            health = await self._health_elsewhere(health)
        if isinstance(metrics, Reply) and metrics.ok and kind is self._kind:
            self._take_metrics(metrics)
        page = isinstance(health, Reply) and is_page(health.body)
        missed = _missed(self._kind, health) or await self._identify(doubted=page)
        unknown = self._kind is VLLM and not self._health.was_healthy
        if unknown and isinstance(missed, Missed) and isinstance(health, Reply) and not health.ok:
            missed = await self._named(missed)
        if missed is None and (lost := self._lost) is not None:
            self._held, missed = self._held + 1, Missed(lost, certain=False)
        else:
            self._held = 0
        asked_at = self._clock()
        mute = isinstance(health, NoReply) and health.accepted
        if self.adapters.loading:
            self._progress.restart(asked_at)
        self._progress.probed(asked_at, blocked=self._prober.unanswered_at >= began, mute=mute)
        doubtful = self._health.state is State.BLOCKED or self._progress.doubtful(asked_at)
        busy = await self._look() if doubtful else None
        if missed is not None:
            self._handle(self._weighed(missed, busy=busy) if isinstance(missed, Missed) else missed)
        else:
            gauge = self._metrics.awake if self._metrics is not None else None
            self._handle(Answered(asleep=asleep or gauge is False, idle=not self._progress.in_flight))
        # Judge as of the time of the questions: a slow look must not add to the silence.
        self._judge(self._progress.stalled(asked_at, busy=busy))
        self._evacuate()
        if self._health.serving:
            self._tell()
        else:
            self._tell_out()

    def govern(
        self,
        settings: EndpointSettings,
        health: HealthSettings,
        client: httpx.AsyncClient,
        adapters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Use other settings and another client from now on, and probe at once."""
        self.adapters.govern(adapters)
        self._settings = settings
        self._prober = Prober(client, asked_at(str(settings.url)), health.timeout, self._clock)
        self._identified_at = float("-inf")
        self._health.failures = health.failures
        self._progress.hung_after = health.hung_after
        self._hurry.set()

    def retell(self) -> None:
        """Tell the listener anew, with the next probe, that it takes traffic: it is for another model."""
        self._told = None

    # Reports from requests.

    def dispatched(
        self,
        request: RequestId,
        prompt_tokens: int | None,
        *,
        streams: bool = True,
        evacuated: bool = False,
        started: bool = False,
    ) -> None:
        """Note a request sent to the endpoint; see `SilenceMeter.dispatched`."""
        self._progress.dispatched(
            request, prompt_tokens, self._clock(), streams=streams, evacuated=evacuated, started=started
        )

    def progressed(self, requests: Collection[RequestId]) -> None:
        """Note the requests whose tokens were seen since the last call."""
        self._progress.progressed(requests, self._clock())
        self._moved()

    def finished(self, request: RequestId, *, delivering: bool = False) -> None:
        """Note that a request has left the endpoint, however it ended; see `SilenceMeter.finished`."""
        self._progress.finished(request, self._clock(), delivering=delivering)

    def failed(self, reason: str, *, aborted: bool = False, dead: bool = False) -> None:
        """Note a failed request and probe the endpoint at once; also ask who it is, at most once a second.

        `aborted`: the engine aborted the request (`finish_reason` "abort"), as a vLLM does when it shuts down or is
        paused while `/health` still answers 200. `dead`: the engine says that it is dead; so nothing is sent to it in
        the moment before it stops answering.
        """
        _log.debug("request failed on endpoint", endpoint=self._id)  # the reason may repeat what a client wrote
        if aborted:
            self._handle(Aborted())
        if dead:
            self._handle(Missed(reason, certain=True))
        if self._clock() - self._identified_at >= REREAD:
            self._identified_at = float("-inf")
        self._hurry.set()

    @property
    def launched(self) -> bool:
        """Whether kvgate launches its engine: then it is no news that nobody listens before it is ready."""
        return self._health.launched

    @launched.setter
    def launched(self, launched: bool) -> None:
        self._health.launched = launched

    # Commands of the operator.

    def drain(self, reason: str | None = None) -> None:
        """Send it no new requests until `undrain`."""
        self._handle(Drain() if reason is None else Drain(reason))

    def undrain(self) -> None:
        """Probe at once, and let it back as soon as a probe finds it healthy."""
        self._handle(Undrain())
        self._hurry.set()

    # Commands of whoever decides which engines run.

    def retire(self, reason: str | None = None) -> None:
        """Send it no new requests until `rouse`: its engine is to end, or does not run."""
        if self._settling is not None:
            self._settling.cancel()  # it gets the adapters that it still lacks when it is back
        self._handle(Retire() if reason is None else Retire(reason))

    def rouse(self) -> None:
        """Let it back as soon as a probe finds it healthy: its engine starts."""
        self._starts = True
        self._handle(Rouse())
        self._hurry.set()

    def ended(self, cause: str | None, remedy: str | None) -> None:
        """Note why its engine ended, and what to do about that; None once it is ready again."""
        self._cause, self._remedy = cause, remedy

    def give(self, name: str, path: str | None) -> None:
        """Have its engine load an adapter, or unload it where there is no path; see `Adapters.give`."""
        self.adapters.give(name, path)
        self._identified_at = float("-inf")
        self._hurry.set()

    # Helpers.

    def _weighed(self, missed: Missed, *, busy: bool | None) -> Missed:
        """Weigh a miss of an endpoint without requests of ours: blocked for too long, it is down."""
        blocked_for = self._clock() - self._health.since
        over = blocked_for >= self._progress.patience(busy=busy)
        if self._health.state is not State.BLOCKED or self._progress.in_flight or not over:
            return missed
        return Missed(f"it takes connections, and has answered nothing for {blocked_for:.0f} s more", certain=True)

    def _judge(self, silence: Silence | None) -> None:
        match silence:
            case None:
                self._listener.expire(self._progress.overdue(self._clock()))
            case Silence(SilenceCause.HUNG, reason, requests):
                self._handle(Stalled(reason))
                if self._health.state in TAKEN_OUT:
                    self._listener.evacuate(self._id)
                    self._listener.expire(requests)
            case Silence(cause, reason, requests):
                if cause is SilenceCause.ALONE:
                    self._handle(Stalled(reason, alone=True))
                self._listener.expire(requests)

    async def _gauges(self) -> Reply | NoReply | None:
        if self._kind.gauges is None or not self._has_gauges:
            return None
        reply = await self._prober.get(self._kind.gauges)
        if isinstance(reply, Reply) and reply.status == HTTPStatus.NOT_IMPLEMENTED and self._kind.gauges != "/metrics":
            self._has_gauges = False
        return reply

    async def _health_elsewhere(self, health: Reply) -> Reply | NoReply:
        """The health of an engine that was taken for another kind, whose route for it is another."""
        known = self._kind
        with contextlib.suppress(UnidentifiedError):
            await self._become(await find_kind(self._prober, self._settings, await self._prober.get("/v1/models")))
        return health if self._kind.health == known.health else await self._prober.get(self._kind.health)

    async def _become(self, kind: EngineKind) -> None:
        if kind is self._kind:
            return
        self._kind, self._metrics, self._read = kind, None, READERS[kind.name].metrics()
        self._has_gauges = True
        self._progress.loads = kind.loads
        metrics = await self._gauges()
        if isinstance(metrics, Reply) and metrics.ok:
            self._take_metrics(metrics)

    @property
    def _unasked(self) -> str | None:
        """Why its engine is not asked to load adapters now; None if it is."""
        absent = self._health.state in _ABSENT or self._health.lost
        asked = self.adapters.asked is not None or not absent
        return None if asked else f"not yet, {self._health.state.value}: {self._health.reason}"

    @property
    def _lost(self) -> str | None:
        """What it did not answer in this probe, for which it is held back."""
        return self._prober.lost if self._health.state in _FAILING and self._held < MOST_HELD else None

    async def _asleep(self) -> bool:
        """Whether it sleeps or is paused. One that does not answer does what it did."""
        if not self._can_sleep:
            return False
        answer = await self._prober.asleep()
        return self._health.state is State.ASLEEP if isinstance(answer, NoReply) else bool(answer)

    def _take_metrics(self, reply: Reply) -> None:
        metrics = self._read(reply.body, self._settings)
        if self._health.serving and self._metrics is not None and not metrics.cache_config:
            # An engine does not lose its cache while it runs: this answer is broken.
            metrics = replace(metrics, cache_config=self._metrics.cache_config, ranks=self._metrics.ranks)
        before = self._metrics or metrics
        if fell(before, metrics):
            self._fell |= self._health.serving
            if self._clock() - self._identified_at >= REREAD:
                self._identified_at = float("-inf")
        self._count_replaced()
        self._totals = self._totals.after(before, metrics)
        if self._health.serving:
            self._meter.take(metrics, reply.answered_at)
        self._metrics, self._scraped_at = metrics, reply.answered_at
        if self._progress.scraped(metrics, reply.answered_at):
            self._moved()
        if self._told is not None:
            self._listener.observed(
                Observed(
                    endpoint=self._id,
                    sampled_at=reply.answered_at,
                    kv_usage=metrics.kv_usage,
                    running=metrics.running,
                    waiting=metrics.waiting,
                    generation_tokens=metrics.generation_tokens,
                    preemptions=metrics.preemptions,
                )
            )

    def _count_replaced(self) -> None:
        """Count that another process answers. Seldom: several may share one address, though none should."""
        now = self._clock()
        if self._fell and now - self._replaced_at >= IDENTITY_INTERVAL:
            self._fell, self._replaced_at, self._identified_at = False, now, float("-inf")
            self._replaced += 1

    async def _named(self, missed: Missed) -> Missed:
        """Replace the reason of a miss, if this was never a vLLM, by what it is instead."""
        models, version = await asyncio.gather(self._prober.get("/v1/models"), self._prober.get("/version"))
        mistake = mistaken(str(self._settings.url), models, version)
        return missed if mistake is None else replace(missed, reason=mistake)

    async def _identify(self, *, doubted: bool) -> Missed | None:
        """Read its identity when due, or where it is doubted; not while adapters are loaded, as those change it.

        A failure counts only against an endpoint that takes no traffic yet, is doubted, or denies the key of ours.
        """
        now, trusted = self._clock(), self._health.serving and not doubted
        if trusted and (self._settling is not None or now - self._identified_at < IDENTITY_INTERVAL):
            return None
        self._identified_at = now  # what changes from here on is for the next reading
        if self._health.state in _FAILING:
            self._about.clear()
        models, asleep = await asyncio.gather(self._prober.get("/v1/models"), self._prober.asleep())
        try:
            kind = await find_kind(self._prober, self._settings, models)
            self._take_loras(models)
            stopped = self._health.state is State.STOPPED
            may_sleep = self._may_sleep if isinstance(asleep, NoReply) else asleep
            if not (stopped or may_sleep) and await self._equip():
                models = await self._prober.get("/v1/models")
                self._take_loras(models)
            told = await identify_as(kind, self._prober, self._settings, models, self._about)
        except UnidentifiedError as error:
            self._identified_at = float("-inf")
            return None if trusted and not self._denied(models) else Missed(str(error), certain=False)
        await self._become(kind)
        self._identity = identity = replace(told, replaced=self._replaced)
        if self._misfit is not None and not self._health.serving and (reason := await self._misfit(identity)):
            return Missed(reason, certain=False)
        self._can_sleep = asleep is not None
        self._tells_sleep = isinstance(asleep, bool) or (self._tells_sleep and self._can_sleep)
        if self._lost is None:
            self._warn_of_missing()
        return None

    @property
    def _may_sleep(self) -> bool:
        """Whether it may sleep though it did not say so just now: it has said so before, or is asked again soon."""
        return self._tells_sleep or self._lost is not None

    def _denied(self, models: Reply | NoReply) -> bool:
        """Whether it does not accept the key that kvgate has for it."""
        return self.keyed and isinstance(models, Reply) and models.status == HTTPStatus.UNAUTHORIZED

    def _take_loras(self, models: Reply | NoReply) -> None:
        """Note the adapters it has, by its answer of `/v1/models`; where that fails, it has those it had."""
        if not (isinstance(models, Reply) and models.ok):
            return
        before, self._loras = self._loras, lora_paths(models.body)
        if self._loras != before:
            for name, said in self.adapters.strange(self._loras).items():
                _log.warning("an adapter is not the one that is configured", endpoint=self._id, adapter=name, help=said)

    async def _equip(self) -> bool:
        """Have adapters loaded and unloaded; whether that has changed them by now. The rest goes on beside its traffic.

        Not for an engine that sleeps, or is about to: vLLM would write to memory that it gave back, and die.
        """
        again = self._asks_again()
        if self._settling is not None or not self.adapters.due(self._loras, again=again):
            return False
        self._settling = settling = asyncio.create_task(self._settle(again=again))
        settling.add_done_callback(self._settled)
        used = self._metrics is not None and bool(self._metrics.generation_tokens)
        waits = not self._health.serving
        while waits and not settling.done():
            await asyncio.wait({settling}, timeout=EQUIPPING)
            waits = not (used and self._alone())
        return settling.done() and not settling.cancelled() and settling.result()

    def _asks_again(self) -> bool:
        """Whether its engine is asked once more for adapters that have failed: not if it may hang, or lately."""
        if self._health.state in _FAILING:
            return True
        still = self._progress.in_flight > 0 and not self.moves
        return not still and self._clock() >= self._spared_until

    async def _settle(self, *, again: bool) -> bool:
        """Load and unload adapters; whether that has changed them. Then they are looked at again."""
        began = self._clock()
        try:
            changed = await self.adapters.settle(self._loras, Calls(self._post, self._uses, self._listed), again=again)
            self._spared_until = max(self._spared_until, (now := self._clock()) + SPARING * (now - began))
        except OutOfDescriptorsError as error:
            _log.warning("adapters not asked for", endpoint=self._id, reason=str(error))
            return False
        if changed:
            self._identified_at = float("-inf")
            self._hurry.set()
        return changed

    def _settled(self, _: asyncio.Task[bool]) -> None:
        self._settling = None

    async def _uses(self, adapter: str) -> bool:
        """Whether it has requests for an adapter of this name, and might die of those for another one of that name.

        Of two such adapters in a batch a vLLM 0.32 makes one ready. It dies unless the other still is (seen): ready are
        as many as `--max-loras`, the last that were used. If that is one, a batch has one.
        """
        reply = await self._prober.get("/metrics")
        most, used = used_loras(reply.body) if isinstance(reply, Reply) and reply.ok else (0, frozenset())
        return adapter in used and 1 < most <= len(self._loras.keys() | {adapter})

    async def _listed(self) -> Mapping[str, str | None]:
        self._take_loras(await self._prober.get("/v1/models"))
        return self._loras

    async def _post(self, path: str, body: bytes) -> Reply | NoReply:
        """Ask for an adapter. What was silent while it was loaded is no sign of a hang."""
        loading = self.adapters.loading
        reply = await self._prober.post(path, body)
        if loading:
            self._progress.restart(self._clock())
        return reply

    def _warn_of_missing(self) -> None:
        missing = (self._metrics or READERS[self._kind.name].unscraped).missing
        if missing and missing != self._missing:
            _log.warning(
                "the endpoint does not export all the metrics kvgate looks for; it does without them",
                endpoint=self._id,
                missing=missing,
                version=self._identity.version if self._identity is not None else None,
            )
        self._missing = missing

    def _capacity(self) -> Capacity | None:
        if self._identity is None:
            return None
        metrics = self._metrics or EngineMetrics()
        return READERS[self._kind.name].capacity(metrics, self._identity, self._settings)

    def _moved(self) -> None:
        self._moved_at = self._clock()
        if self._health.doubted:
            self._handle(Progressed())

    def _handle(self, event: Event) -> None:
        before, known = self._health.state, self._health.reason
        effects = self._health.handle(event, self._clock())
        self._log(event, before, known)
        for effect in effects:
            match effect:
                case Effect.TAKE_IN:
                    self._take_in(before)
                case Effect.TAKE_OUT:
                    self._meter = Meter()
                    self._fell = False
                    self._has_gauges = True
                    self._told_out = None
                    self._tell_out()
                case Effect.EVACUATE:
                    self._to_evacuate = True
                    self._evacuate()
        if not self._health.serving:
            self._tell_out()

    def _log(self, event: Event, before: State, known: str) -> None:
        """Log what an event changed: it was in the state `before`, for the reason `known`."""
        state, reason = self._health.state, self._health.reason
        if state is not before:
            meant = self._health.serving or isinstance(event, Retire | Rouse)
            log = _log.info if meant else _log.warning
            log("endpoint changed", endpoint=self._id, was=before.value, state=state.value, reason=reason)
            self._said_at = self._clock()
        elif self._is_launching(event):
            pass
        elif reason != known or (state in _FAILING and self._clock() - self._said_at >= REMINDER):
            self._said_at = self._clock()
            help_ = helps(reason)
            said = {"reason": reason} if help_ is None else {"reason": reason, "help": help_}
            _log.warning("endpoint is still not healthy", endpoint=self._id, state=state.value, **said)

    def _take_in(self, before: State) -> None:
        self._starts = False
        if self._health.state is State.TRIAL:
            self._progress.restart(self._clock())
        elif before is not State.BLOCKED:
            self._progress.forget(self._clock())
        self._told = None
        self._tell()

    def _evacuate(self) -> None:
        self._to_evacuate &= self._health.lost
        if self._to_evacuate and not self.moves:
            self._to_evacuate = False
            self._listener.evacuate(self._id)

    def _is_launching(self, event: Event) -> bool:
        """Whether its engine does not listen yet. Whoever launched it reports on it."""
        unheard = isinstance(event, Missed) and event.certain and self._health.state is State.STARTING
        return unheard and self.launched and (self._starts or not self._health.was_healthy)

    def _tell(self) -> None:
        """Tell the listener that it takes traffic, with its identity and capacity, unless that was told already."""
        has = self._capacity()
        if self._identity is None or has is None:
            return
        if self._health.state is State.TRIAL:
            has = replace(has, max_num_seqs=1)
        if self._told != (told := (self._identity, has, self.keyed)):
            self._told = told
            self._listener.up(self._id, self._identity, has)

    def _tell_out(self) -> None:
        """Tell the listener that it takes no traffic, and again when that means something else for its requests."""
        means = self.keeps, self.drained
        if self._told_out != means:
            self._told_out = means
            self._listener.down(self._id, f"{self._health.state.value}: {self._health.reason}")


def _missed(kind: EngineKind, health: Reply | NoReply) -> Missed | Scales | None:
    match health:
        case NoReply(reason=reason, refused=refused, accepted=accepted):
            return Missed(reason, certain=refused, accepted=accepted)
        case Reply(ok=True):
            return None
        case Reply(status=status, body=body):
            match meaning(status, error_message(body)):
                case Meaning.BUSY:
                    return Scales()
                case Meaning.LOADING:
                    return Missed("it is loading its model", certain=True)
            if status == httpx.codes.SERVICE_UNAVAILABLE:
                return Missed(f"GET {kind.health} answered 503: {kind.ill}", certain=True)
            doubt = "" if kind is VLLM else f": is it {kind.name}?"
            return Missed(f"GET {kind.health} answered {status}{doubt}", certain=False)
