"""The directory of models and their endpoints, as a front knows them: one pool and one counter for each model."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from math import inf

from gateway.admission.events import Demand, EndpointId, RequestId
from gateway.admission.tuning import TUNING
from gateway.config.settings import ModelSettings
from gateway.endpoints.identity import Identity
from gateway.pools.admission import Admission
from gateway.pools.interface import Watch
from gateway.pools.retry_budget import RetryBudget
from gateway.pools.stored_responses import StoredResponse, StoredResponses
from gateway.runtime.places import Places
from gateway.tokens.counter import ModelCounter
from gateway.wire.engine_kinds import KINDS, VLLM, EngineKind, KvOut
from gateway.wire.fields import Use, named, unread_limits

_TURNED_AWAY = frozenset({301, 302, 303, 307, 308, 403, 429})


@dataclass(slots=True)
class Endpoint:
    """One vLLM server.

    Attributes:
        id: host and port; the `endpoint` label of metrics.
        base_url: without a trailing slash.
        api_key: sent instead of the client's own; None passes on the client's.
        settings: of the model it is configured under.
        watch: hears from requests what they see of it.
        identity: as it last reported it; None until it was first reached.
        told: its settings when it did: it had what it could load of those.
        healthy: whether it takes traffic now.
        relayed: requests without admission, and counting questions, that are on it.
        clamps: whether it cuts `max_tokens` to its length; None until it was asked.
        on_demand: whether its engine starts when a request waits for it.
        ready_at: when that is expected to be up, by the loop's clock; None if not known, or if it is up.
        failures: how often that did not start.
        broken: requests without admission that it failed on since it last answered one.
        spared_until: when it gets one of these again, if it failed on several.
    """

    id: EndpointId
    base_url: str
    api_key: str | None
    settings: ModelSettings
    watch: Watch
    identity: Identity | None = None
    told: ModelSettings | None = None
    healthy: bool = False
    pool: "Pool | None" = None
    relayed: int = 0
    clamps: bool | None = None
    on_demand: bool = False
    ready_at: float | None = None
    failures: int = 0
    broken: int = 0
    spared_until: float = -inf

    @property
    def kind(self) -> EngineKind:
        """What engine it is; a vLLM until it was reached."""
        return VLLM if self.identity is None else KINDS[self.identity.kind]

    def tells(self, name: str | None) -> bool:
        """Whether it says that it serves a model or adapter of this name. Some engines take any name all the same."""
        return self.identity is not None and name in (*self.identity.names, *self.identity.loras)

    def denies(self, status: int, *, keyed: bool = False) -> bool:
        """Whether an answer with this status says that the endpoint does not accept the key that kvgate has for it.

        `keyed`: the client's key is one of kvgate's, so the endpoint did not get it: it wants one that kvgate lacks.
        """
        return status == HTTPStatus.UNAUTHORIZED and (keyed or self.api_key is not None)

    @property
    def denial(self) -> str:
        """Why it failed where it `denies`."""
        if self.api_key is None:
            return "it wants a key, and kvgate has none for it"
        return "it does not accept the key that kvgate has for it"

    def lacks(self, status: int, model: str | None) -> bool:
        """Whether such an answer says that it does not serve a model, of which another tells that may be away."""
        if status != HTTPStatus.NOT_FOUND or self.pool is None or self.tells(model):
            return False
        return any(other.tells(model) for other in self.pool.endpoints.values())

    @staticmethod
    def turns_away(status: int) -> bool:
        """Whether such an answer may say more of the endpoint than of the request: of a limit, or a proxy before it.

        It comes at once, so such an endpoint is the emptiest of its pool, and would get all that come: it counts as a
        failure, though the client gets it.
        """
        return status in _TURNED_AWAY

    @staticmethod
    def lacks_route(status: int, body: bytes) -> bool:
        """Whether such an answer says that the endpoint has no such route, as an older version or another kind.

        `body` may be the first piece of it. A 404 for a model or a stored response is an error object.
        """
        return status == HTTPStatus.NOT_FOUND and b'"error"' not in body

    def note_answer(self, now: float, *, failed: bool) -> None:
        """Note how it answered a request without admission."""
        self.broken = self.broken + 1 if failed else 0
        self.spared_until = now + TUNING.failing_span

    @contextmanager
    def trying(self, now: float, *, again: bool) -> Iterator[None]:
        """Spare it while it gets a request without admission, and after: if it fails, one tries it.

        None that failed elsewhere (`again`), and none whose client leaves: else they would keep it out.
        """
        before, until = self.spared_until, now + TUNING.failing_span
        if not again:
            self.spared_until = until
        try:
            yield
        except BaseException:
            if self.spared_until == until:  # and no later one failed or tries it
                self.spared_until = before
            raise

    def fails(self, now: float) -> bool:
        """Whether it fails on requests without admission and gets none now, by the core's rule `failing`.

        As it fails at once, it would have the fewest, and get all that come.
        """
        return self.broken >= TUNING.failing_after and now < self.spared_until

    @contextmanager
    def relaying(self, request: RequestId) -> Iterator[None]:
        """Count a request without admission while the block runs: its engine must not end meanwhile."""
        self.watch.dispatched(request, None)
        try:
            with self.asked():
                yield
        finally:
            self.watch.finished(request)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Count a question while the block runs: one that answers none would be asked first, time and again."""
        self.relayed += 1
        try:
            yield
        finally:
            self.relayed -= 1


class Pool:
    """The endpoints of one model, the admission to them, and the counter they share."""

    def __init__(self, name: str, admission: Admission, counter: ModelCounter, relay_concurrency: int) -> None:
        self.name = name
        self.admission = admission
        self.counter = counter
        self.relay_places = Places(relay_concurrency)
        """The concurrency cap on relayed requests, which are not admitted."""
        self.retries = RetryBudget()
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self._turn = 0
        self.index()

    def index(self) -> None:
        """Find out what follows from the identities of its endpoints, for all requests until one of them changes."""
        self.identities = [there.identity for there in self.endpoints.values() if there.identity is not None]
        """The last ones; never empty once it is found, as an endpoint joins by its identity."""
        names = dict.fromkeys([self.name])
        for identity in self.identities:
            names.update(dict.fromkeys((*identity.names, *identity.loras)))
        self.names = tuple(names)
        """Every name a client may use, its own first."""
        self.max_model_len = max([identity.max_model_len for identity in self.identities], default=0)
        """The longest length any of its endpoints takes, in tokens."""
        kinds = {identity.kind for identity in self.identities}
        self.overriding = frozenset[str]().union(*(named(Use.OVERRIDING, kind) for kind in kinds))
        """The fields in which some endpoint reads limits that its API does not have."""
        self.ignored = frozenset[str]().union(*map(unread_limits, kinds))
        """The fields of the output limit that some endpoint does not read."""
        self.caseless = any(KINDS[kind].caseless for kind in kinds)
        """Whether some endpoint takes the name of a field for the same in any case of its letters."""
        self.ends_completions = all(KINDS[kind].ends_completions for kind in kinds)
        """Whether every endpoint ends a completion without a limit after 16 tokens."""
        self.takes_band = not any(named(Use.DROPPED, kind) for kind in kinds)
        """Whether every endpoint may get a request's band as its `priority`."""

    def flow_of(self, name: str | None) -> str | None:
        """The flow of requests for this name, where it is an adapter that is a flow of its own."""
        for endpoint in self.endpoints.values():
            if endpoint.settings.lora_flows and endpoint.identity is not None and name in endpoint.identity.loras:
                return f"adapter {name}"
        return None

    def takes(self, prompt: int, limit: int) -> bool:
        """Whether an endpoint takes a prompt and an output limit of so many tokens, by its length or by clamping.

        A vLLM that clamps takes no limit over its whole length. One that was not asked yet refuses by itself what it
        does not take.
        """
        endpoints = self.endpoints.values()
        if any(endpoint.kind.clamps for endpoint in endpoints):
            return True
        if limit <= self.max_model_len and any(endpoint.clamps is not False for endpoint in endpoints):
            return True
        return any(prompt + limit <= identity.max_model_len for identity in self.identities)

    def least_length(self, prompt: int, limit: int) -> int:
        """The length below which an endpoint refuses a prompt with an output limit of so many tokens; 0: none does.

        A vLLM that clamps takes no limit over its whole length.
        """
        refusing = [endpoint for endpoint in self.endpoints.values() if not endpoint.kind.clamps]
        if not refusing:
            return 0
        return limit if all(endpoint.clamps is not False for endpoint in refusing) else prompt + limit

    def shortest_for(self, prompt: int) -> int:
        """The shortest length, in tokens, that takes a prompt of so many; the longest if none does."""
        lengths = (identity.max_model_len for identity in self.identities)
        return min((length for length in lengths if length > prompt), default=self.max_model_len)

    def default_max_tokens(self, prompt: int) -> int | None:
        """The output limit for a request that has none, after a prompt of so many tokens; None if it needs none.

        An engine that holds the whole limit from the start gets the configured one. Where a full KV cache fails all
        requests and none is configured, it is what a slot's share of the context leaves, but at least a quarter.
        """
        given: list[int] = []
        for endpoint in self.endpoints.values():
            identity, most = endpoint.identity, endpoint.settings.default_max_tokens
            if identity is None or endpoint.kind.kv_out is KvOut.PREEMPT:
                continue
            if most is not None:
                given.append(most)
            elif endpoint.kind.kv_out is KvOut.KILL_ALL:
                share = identity.max_model_len // (identity.slots or 1)
                given.append(max(share - prompt, share // 4, 1))
        return min(given, default=None)

    def healthy(self) -> list[Endpoint]:
        """The endpoints that take traffic now."""
        return [endpoint for endpoint in self.endpoints.values() if endpoint.healthy]

    def healthy_for(self, demand: Demand) -> list[Endpoint]:
        """Those that would get a request with this demand, by their lengths."""
        told = [(there, there.identity.max_model_len) for there in self.healthy() if there.identity is not None]
        prompt = demand.longest_prompt + 1
        needed = max(prompt, demand.least_length)
        for least in (max(needed, demand.whole_length), needed, prompt):
            if fitting := [there for there, length in told if length >= least]:
                return fitting
        return []

    @property
    def failures(self) -> int:
        """How often an engine that was to start for a request did not."""
        return sum(endpoint.failures for endpoint in self.endpoints.values())

    def in_turn(self, now: float) -> list[Endpoint]:
        """The healthy endpoints for a request without admission, that with the fewest of these first.

        Those with equally many take turns. One that fails comes last, after one on trial that has a request.
        """
        healthy = self.healthy()
        if len(healthy) < 2:  # noqa: PLR2004  # nothing to choose
            return healthy
        self._turn += 1
        start = self._turn % len(healthy)

        def rank(endpoint: Endpoint) -> tuple[bool, bool, int]:
            return endpoint.fails(now), endpoint.relayed > 0 and endpoint.watch.on_trial, endpoint.relayed

        return sorted(healthy[start:] + healthy[:start], key=rank)


class NotStartedError(Exception):
    """The engine that a request waited for does not start."""


class Directory:
    """Finds the pool of a model; grows as endpoints report their identities. The `Follower` of one front.

    Args:
        make_pool: builds a pool of this name for the first endpoint of a model.
        verify: compares our counting with an endpoint that came up.
        evacuate: takes unanswered requests off an endpoint that went down or hangs.
        expire: ends requests silent for too long.
        left: called with an endpoint that is gone.
    """

    def __init__(
        self,
        make_pool: Callable[[Endpoint, Identity, str], Pool],
        verify: Callable[[Endpoint], None],
        evacuate: Callable[[EndpointId], None],
        expire: Callable[[Collection[RequestId]], None],
        left: Callable[[Endpoint], None],
    ) -> None:
        self.endpoints: dict[EndpointId, Endpoint] = {}
        self.pools: dict[str, Pool] = {}
        self.ever_healthy = False
        self.expecting = False
        """Whether a model has no endpoint so far because none was found."""
        self._make_pool = make_pool
        self._verify = verify
        self.evacuate = evacuate
        self.expire = expire
        self._left = left
        self._by_name: dict[str, Pool] = {}
        self._changed = asyncio.Event()
        self._responses = StoredResponses()

    def add(self, endpoint: Endpoint) -> None:
        """Add a configured endpoint. It has yet to report what it serves."""
        self.endpoints[endpoint.id] = endpoint

    async def find(self, model: str | None) -> Pool | None:
        """The pool that serves a name; the only pool if no name is given.

        Waits while endpoints have not said yet what they serve.

        Raises:
            NotStartedError: the engine that serves it does not start.
        """
        failures = sum(there.failures for there in self.starting(model))
        while (pool := self.lookup(model)) is None and self.undiscovered(model):
            if sum(there.failures for there in self.starting(model)) > failures:
                raise NotStartedError
            await self._changed.wait()
        return pool

    def lookup(self, model: str | None) -> Pool | None:
        """The pool of a name, if it is known now.

        An engine that does not run lists no adapter that it got meanwhile: a request for that starts it all the same.
        One that it lacked while it ran would be lacking again.
        """
        if model is None:
            return next(iter(self.pools.values())) if len(self.pools) == 1 else None
        if (pool := self._by_name.get(model)) is not None:
            return pool
        got = (there for there in self.starting(model) if there.told is not None and not is_for(there.told, model))
        return next((there.pool for there in got), None)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Configured names of endpoints that were not reached yet."""
        names = [endpoint.settings.name for endpoint in self.endpoints.values() if endpoint.identity is None]
        return tuple(dict.fromkeys(name for name in names if name is not None and name not in self._by_name))

    def undiscovered(self, model: str | None) -> bool:
        """Whether an endpoint that may serve this name has not yet said so, or is yet to be found."""
        unknown = (endpoint for endpoint in self.endpoints.values() if endpoint.identity is None)
        return self.expecting or any(not there.on_demand or is_for(there.settings, model) for there in unknown)

    def starting(self, model: str | None) -> list[Endpoint]:
        """The endpoints whose engines start for a request of this name, as far as settings say.

        Without a name: those of the only model.
        """
        if model is None and len({there.settings.name for there in self.endpoints.values()}) > 1:
            return []
        return [there for there in self.endpoints.values() if there.on_demand and is_for(there.settings, model)]

    def configured(self, model: str | None) -> str | None:
        """The configured name of the model that requests of this name are for; None if none is, or it has no name."""
        named = (there.settings for there in self.endpoints.values() if model is not None)
        return next((settings.name for settings in named if is_for(settings, model)), None)

    @property
    def on_demand(self) -> bool:
        """Whether an engine starts when a request waits for it."""
        return any(endpoint.on_demand for endpoint in self.endpoints.values())

    async def wait_for_endpoint(self, pool: Pool) -> None:
        """Wait until an endpoint of the pool is healthy, or it has none any more: others that come are another pool's.

        Raises:
            NotStartedError: its engine does not start.
        """
        failures = pool.failures
        while pool.endpoints and not pool.healthy():
            await self._changed.wait()
            if pool.failures > failures:
                raise NotStartedError

    def remember_response(self, response_id: str, response: StoredResponse) -> None:
        """Note where a stored response was made."""
        self._responses.remember(response_id, response)

    def stored_response(self, response_id: str) -> StoredResponse | None:
        """The response with this id; None if it is not known, or its endpoint is gone."""
        response = self._responses.find(response_id)
        return response if response is not None and response.endpoint in self.endpoints else None

    # The `Follower`.

    def up(self, endpoint: EndpointId, model: str, identity: Identity) -> None:
        """An endpoint takes traffic for this model, or its identity changed."""
        known = self.endpoints[endpoint]
        moves = known.pool is None or known.pool.name != model
        if moves:
            self._move(known, identity, model)
        was_healthy, known.healthy = known.healthy, True
        another = known.identity is None or not known.identity.is_as(identity)
        known.identity, known.told = identity, known.settings
        if another:
            known.clamps = known.kind.clamps
        self.ever_healthy = True
        self._index()
        self._announce()
        if moves or another or not was_healthy:
            self._verify(known)

    def down(self, endpoint: EndpointId) -> None:
        """An endpoint takes no traffic."""
        self.endpoints[endpoint].healthy = False

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        """An engine is expected to be up in so many seconds, or does not start."""
        known = self.endpoints[endpoint]
        known.ready_at = None if ready_in is None else asyncio.get_running_loop().time() + ready_in
        if failed:
            known.failures += 1
            self._announce()

    def gone(self, endpoint: EndpointId) -> None:
        """An endpoint is no longer configured, and has no requests."""
        known = self.endpoints.pop(endpoint)
        self._leave(known)
        self._left(known)
        self._index()
        self._announce()

    def _move(self, endpoint: Endpoint, identity: Identity, name: str) -> None:
        self._leave(endpoint)
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = self._make_pool(endpoint, identity, name)
        pool.endpoints[endpoint.id] = endpoint
        endpoint.pool = pool

    def _leave(self, endpoint: Endpoint) -> None:
        pool = endpoint.pool
        if pool is not None:
            del pool.endpoints[endpoint.id]
            if not pool.endpoints:
                del self.pools[pool.name]

    def _index(self) -> None:
        for pool in self.pools.values():
            pool.index()
        configured = {there.settings.name for there in self.endpoints.values()}  # perhaps of models yet to be reached
        pools = reversed(self.pools.values())  # of two pools with one name, the older keeps it, but no model's own
        names = {name: pool for pool in pools for name in pool.names if name not in configured}
        # An adapter that moved is told of by the engine that had it, too: nobody unloads it there.
        for endpoint in reversed(self.endpoints.values()):
            adapters = {adapter.name for adapter in endpoint.settings.lora} - configured
            if (own := endpoint.pool) is not None:
                names |= dict.fromkeys(adapters.intersection(own.names), own)
        self._by_name = names | self.pools

    def _announce(self) -> None:
        self._changed.set()
        self._changed.clear()


def is_for(model: ModelSettings, name: str | None) -> bool:
    """Whether requests of this name are for a model, by its settings."""
    return name is None or name == model.name or any(adapter.name == name for adapter in model.lora)
