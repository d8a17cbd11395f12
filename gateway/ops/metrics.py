"""kvgate's own metrics. Times are seconds, sizes are tokens.

Counters and histograms are updated where things happen, through children bound in advance. Gauges (queue depth, usage,
health) are read from one snapshot at each scrape and cost nothing in between.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS

from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Load
from gateway.ops.exposition import END, exposition
from gateway.ops.merged import Exemplar as Shown
from gateway.ops.merged import Family, Figures, Sample
from gateway.ops.pictures.digest import TTFT_EDGES
from gateway.ops.returns import Returns
from gateway.ops.state import Decided, TierState
from gateway.ops.tally import TRACE, Tallies

UNKNOWN = "unknown"
"""The `model` label of requests for unknown models: client text must not become a label value."""

MOST_MODELS = 32
"""Models with labels of their own; those served now may be more. An engine can rename its model every second."""

_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120)
_TOKEN_BUCKETS = tuple(size * 2**power for power in range(4, 19) for size in (1, 1.5))
"""16 to 393,216 tokens. Each edge is at most 1.5 times the one before, so lengths are known to that precision."""
_COUNT_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_SHARE_BUCKETS = tuple(percent / 100 for percent in range(5, 101, 5))
_OVERHEAD_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


class ModelMetrics:
    """The counters of one model, bound to its label."""

    def __init__(self, metrics: "Metrics", model: str) -> None:
        self._requests = {outcome: metrics.requests.labels(model=model, outcome=outcome.value) for outcome in Outcome}
        self._returned = metrics.returns.labels(model=model)
        self._returns: Returns[bool] = Returns()
        self._retries = {sent: metrics.retries.labels(model=model, sent=str(sent).lower()) for sent in (True, False)}
        self._would = metrics.would
        self._fallbacks = metrics.fallbacks
        self._model = model
        self._prompt = metrics.tokens.labels(model=model, kind="prompt")
        self._completion = metrics.tokens.labels(model=model, kind="completion")
        self._drift = metrics.drift.labels(model=model)
        self._lengths = tuple(metrics.lengths.of(model, kind) for kind in ("prompt", "output", "total"))

    def ended(self, outcome: Outcome) -> None:
        """Count a request that ended; call once for each."""
        self._requests[outcome].inc()

    def came(self, fingerprint: int, now: float) -> None:
        """Note the arrival of a request with this fingerprint."""
        if self._returns.came(fingerprint, now):
            self._returned.inc()

    def refused(self, fingerprint: int, now: float) -> None:
        """Note that a request with this fingerprint was refused for lack of room."""
        self._returns.refused(fingerprint, True, now)

    def retried(self, *, sent: bool) -> None:
        """Count a request that an endpoint failed on: sent again, or not, as too many fail."""
        self._retries[sent].inc()

    def fell_back(self, to: str, reason: Outcome, outcome: Outcome) -> None:
        """Count a request for this model that ended elsewhere. `reason`: the refusal of this model."""
        self._fallbacks.labels(model=self._model, to=to, reason=reason.value, outcome=outcome.value).inc()

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens an endpoint processed for a request."""
        self._prompt.inc(prompt_tokens)
        self._completion.inc(completion_tokens)

    def answered(self, prompt: int, output: int) -> None:
        """Count the lengths of a completely answered request: tokens of its prompt, and of each of its sequences."""
        prompts, outputs, totals = self._lengths
        prompts.observe(prompt)
        outputs.observe(output)
        totals.observe(prompt + output)

    def drifted(self, tokens: int) -> None:
        """Count a drift of our prompt count from the engine's `usage`, in tokens, in either direction."""
        self._drift.inc(abs(tokens))

    def would(self, decision: str) -> None:
        """In observe mode, count what `enforce` would have done: "queued" or an outcome."""
        self._would.labels(model=self._model, decision=decision).inc()


class TenantMetrics:
    """The counters of one tenant, each from its first count on.

    With all of them from the start, a scrape of a thousand keys stopped every stream for half a second.
    """

    def __init__(self, metrics: "Metrics", tenant: str) -> None:
        self._tenant = tenant
        self._metrics = metrics
        self._requests: dict[Outcome, Counter] = {}
        self._tokens: tuple[Counter, Counter] | None = None

    def ended(self, outcome: Outcome) -> None:
        """Count a request that ended; call once for each."""
        counter = self._requests.get(outcome)
        if counter is None:
            counter = self._metrics.tenant_requests.labels(tenant=self._tenant, outcome=outcome.value)
            self._requests[outcome] = counter
        counter.inc()

    def used(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens an endpoint processed for a request."""
        if self._tokens is None:
            of = self._metrics.tenant_tokens.labels
            self._tokens = of(tenant=self._tenant, kind="prompt"), of(tenant=self._tenant, kind="completion")
        prompt, completion = self._tokens
        prompt.inc(prompt_tokens)
        completion.inc(completion_tokens)


class Metrics:
    """Every metric family of kvgate, in a registry of its own.

    The event loop's thread counts. Another thread may read: of a thousand tenants that takes a tenth of a second.

    Attributes:
        queue_wait: wait of a generation request until its dispatch or its timeout; `.observe(seconds)`.
        ttft: time from a request's first byte to the first event of its stream handed to the client.
        overhead: time kvgate itself added to a request, without the queue and the endpoint.
    """

    def __init__(self, version: str, models: Iterable[str] = ()) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "kvgate_requests", "Requests, by how they ended.", ("model", "outcome"), registry=registry
        )
        self.returns = Counter(
            "kvgate_returns",
            "Requests that were refused for want of room before, and came back.",
            ("model",),
            registry=registry,
        )
        self.retries = Counter(
            "kvgate_retries",
            "Requests that an endpoint failed on: sent again, or not, because of `upstream.retry_share`.",
            ("model", "sent"),
            registry=registry,
        )
        self.tokens = Counter("kvgate_tokens", "Tokens the endpoints processed.", ("model", "kind"), registry=registry)
        self.tenant_requests = Counter(
            "kvgate_tenant_requests",
            "Requests of each configured key, by how they ended.",
            ("tenant", "outcome"),
            registry=registry,
        )
        self.tenant_tokens = Counter(
            "kvgate_tenant_tokens",
            "Tokens the endpoints processed for each configured key.",
            ("tenant", "kind"),
            registry=registry,
        )
        self.drift = Counter(
            "kvgate_prompt_token_drift",
            "Tokens by which kvgate's count of prompts and the engine's usage differed.",
            ("model",),
            registry=registry,
        )
        self.would = Counter(
            "kvgate_would",
            "What enforce would have done to requests that observe let through.",
            ("model", "decision"),
            registry=registry,
        )
        self.fallbacks = Counter(
            "kvgate_fallbacks",
            "Requests that a fallback took: why not their own model, and how they ended there.",
            ("model", "to", "reason", "outcome"),
            registry=registry,
        )
        self.refused_connections = Counter(
            "kvgate_refused_connections",
            "Connections beyond `server.max_connections`, with none idle to give way: answered with 503 and closed.",
            registry=registry,
        )
        queue_wait = Tallies(
            "kvgate_queue_wait_seconds",
            "From arrival in the queue to dispatch, or until the time to live passed.",
            (),
            _WAIT_BUCKETS,
        )
        ttft = Tallies(
            "kvgate_ttft_seconds",
            "From the request to the first event of its stream, queue included.",
            (),
            TTFT_EDGES,
        )
        overhead = Tallies(
            "kvgate_overhead_seconds",
            "What kvgate added to a request, the queue not counted.",
            (),
            _OVERHEAD_BUCKETS,
        )
        self.lengths = Tallies(
            "kvgate_request_tokens",
            "Lengths of the requests that were answered: prompt, output of a sequence, and both together.",
            ("model", "kind"),
            _TOKEN_BUCKETS,
        )
        self._sequences = Tallies(
            "kvgate_sequences_over_time", "Sequences on the endpoints of a model, sampled.", ("model",), _COUNT_BUCKETS
        )
        self._waiting = Tallies(
            "kvgate_queue_depth_over_time", "Requests that wait, sampled.", ("model",), _COUNT_BUCKETS
        )
        self._usage = Tallies(
            "kvgate_kv_usage_over_time",
            "Effective share of the endpoint's KV cache in use, 0 to 1, sampled.",
            ("endpoint",),
            _SHARE_BUCKETS,
        )
        for tallies in (queue_wait, ttft, overhead, self.lengths, self._sequences, self._waiting, self._usage):
            registry.register(tallies)
        self.queue_wait, self.ttft, self.overhead = queue_wait.of(), ttft.of(), overhead.of()
        ProcessCollector(registry=registry)
        registry.register(_Build(version))
        self._unknown = ModelMetrics(self, UNKNOWN)
        self._models: dict[str, ModelMetrics] = {}
        self._tenants: dict[str, TenantMetrics] = {}
        for model in models:
            self.know(model)

    def know(self, model: str, served: Collection[str] = ()) -> None:
        """Give a model a label of its own: it is one of ours.

        Counters of a model that is gone stay, so that they go on if it comes back; of too many, the oldest are dropped.

        Args:
            model: its name.
            served: the models that are served now.
        """
        known = self._models.pop(model, None)
        if known is None:
            gone = [name for name in self._models if name not in served]
            for name in gone[: max(0, len(self._models) + 1 - MOST_MODELS)]:
                self._forget_model(name)
        self._models[model] = known or ModelMetrics(self, model)

    def model(self, name: str | None) -> ModelMetrics:
        """The counters of a model; those of `unknown` if it is not one of ours."""
        return self._unknown if name is None else self._models.get(name, self._unknown)

    def know_tenants(self, names: Collection[str]) -> None:
        """Give these tenants labels of their own, and drop those of all others: only what is configured has one."""
        for gone in self._tenants.keys() - set(names):
            del self._tenants[gone]
            for counter in (self.tenant_requests, self.tenant_tokens):
                counter.remove_by_labels({"tenant": gone})
        for name in names:
            if name not in self._tenants:
                self._tenants[name] = TenantMetrics(self, name)

    def tenant(self, flow: str) -> TenantMetrics | None:
        """The counters of the tenant that this flow is; None if it is none."""
        return self._tenants.get(flow)

    def sample(self, loads: Mapping[str, Load]) -> None:
        """Sample the load of each model's pool; call at even intervals."""
        for model, load in loads.items():
            self._waiting.of(model).observe(load.waiting)
            self._sequences.of(model).observe(load.sequences)
            for endpoint, usage in load.usage:
                self._usage.of(endpoint).observe(usage)

    def keep_endpoints(self, endpoints: Iterable[str]) -> None:
        """Drop the metrics of all endpoints but these."""
        self._usage.keep({(endpoint,) for endpoint in endpoints})

    def _forget_model(self, model: str) -> None:
        del self._models[model]
        for counter in (self.requests, self.returns, self.retries, self.tokens, self.drift, self.would, self.fallbacks):
            counter.remove_by_labels({"model": model})
        for tallies in (self.lengths, self._sequences, self._waiting):
            tallies.forget(model)

    def exposition(self, decided: Decided | None = None, *, openmetrics: bool = False) -> bytes:
        """The answer to `GET /metrics`, with the gauges of this state; only OpenMetrics has exemplars."""
        return exposition(self._collected(decided), openmetrics=openmetrics)

    def figures(self, decided: Decided | None = None, fronts: int | None = None) -> list[Family]:
        """What is counted and measured in this process, and the gauges of this state, to be merged with others'."""
        return [_figures(metric) for metric in self._collected(decided, fronts)]

    def _collected(self, decided: Decided | None, fronts: int | None = None) -> Iterator[Metric]:
        yield from self.registry.collect()
        if decided is not None:
            yield from _gauges(decided, fronts)


def exposed(figures: Figures, *, openmetrics: bool = False) -> bytes:
    """The answer to `GET /metrics` with these figures; only OpenMetrics has exemplars."""
    return exposition(_shown(figures), openmetrics=openmetrics)


def content_type(text: bytes) -> str:
    """The content type of an answer to `GET /metrics`: OpenMetrics has an end, and the older format none."""
    found: str = OPENMETRICS if text.endswith(END.encode()) else CONTENT_TYPE_PLAIN_0_0_4
    return found


def _figures(metric: Metric) -> Family:
    samples: list[Sample] = []
    exemplars: list[Shown] = []
    for sample in metric.samples:
        labels = tuple(chain.from_iterable(sample.labels.items()))
        samples.append((sample.name, labels, float(sample.value)))
        if (shown := sample.exemplar) is not None:
            exemplars.append((sample.name, labels, shown.labels[TRACE], shown.value, shown.timestamp))
    return Family(metric.name, metric.documentation, metric.type, samples, exemplars)


def _shown(figures: Figures) -> Iterator[Metric]:
    for family in figures:
        metric = Metric(family.name, family.meaning, family.kind)
        exemplars = {
            (name, labels): Exemplar({TRACE: trace}, value, at) for name, labels, trace, value, at in family.exemplars
        }
        for name, labels, value in family.samples:
            exemplar = exemplars.get((name, labels))
            metric.add_sample(name, dict(zip(labels[::2], labels[1::2], strict=True)), value, exemplar=exemplar)
        yield metric


class _Build:
    """`kvgate_build_info`, constant."""

    def __init__(self, version: str) -> None:
        self._version = version

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("kvgate_build_info", "The version that runs; always 1.", labels=["version"])
        family.add_metric([self._version], 1)
        yield family


def _gauges(state: Decided, fronts: int | None) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """The gauges. An unknown value has no sample: absent is not zero."""
    if fronts is not None:
        processes = _gauge("kvgate_fronts", "Processes that serve clients.")
        processes.add_metric([], fronts)
        yield processes
    yield from _queue_gauges(state)
    yield from _endpoint_gauges(state)
    yield from _engine_counters(state)


def exposed_tier(tier: TierState) -> bytes:
    """The text of the gauges of a tier, to stand before that of other metrics: gauges read the same in both formats."""
    return exposition(_tier_gauges(tier), openmetrics=False)


def _tier_gauges(tier: TierState) -> Iterator[GaugeMetricFamily]:
    role = _gauge("kvgate_tier_role", "1 for what this gateway is in its tier: alone, owner or front.", "role")
    for name in get_args(TierState.model_fields["role"].annotation):
        role.add_metric([name], name == tier.role)
    figures = (
        ("kvgate_tier_epoch", "Number of the reign that this gateway decides under or follows.", tier.epoch),
        ("kvgate_tier_members", "Gateways of the tier that Redis has just heard of.", tier.gateways),
        ("kvgate_tier_share", "Share of each engine that this gateway may fill, 0 to 1.", tier.share),
        (
            "kvgate_tier_lease_seconds",
            "How long this gateway may decide without an answer of Redis.",
            tier.lease_seconds,
        ),
        ("kvgate_tier_redis_up", "1 if Redis answered the last question.", tier.redis),
    )
    yield role
    for name, meaning, value in figures:
        if value is not None:
            family = _gauge(name, meaning)
            family.add_metric([], value)
            yield family


def _queue_gauges(state: Decided) -> Iterator[GaugeMetricFamily]:
    depth = _gauge("kvgate_queue_depth", "Requests that wait.", "model")
    saturation = _gauge(
        "kvgate_saturation", "What runs and waits, as a share of what the endpoints may be filled to.", "model"
    )
    backlog = _gauge("kvgate_backlog_seconds", "How long all that waits takes to serve.", "model")
    stranded = _gauge("kvgate_waiting_without_endpoint", "Requests that wait while no endpoint takes traffic.", "model")
    for queue in state.queues:
        for family, value in (
            (depth, queue.depth),
            (saturation, queue.saturation),
            (backlog, queue.backlog_seconds),
            (stranded, queue.waiting_without_endpoint),
        ):
            if value is not None:
                family.add_metric([queue.model], value)
    return iter((depth, saturation, backlog, stranded))


def _endpoint_gauges(state: Decided) -> Iterator[GaugeMetricFamily]:
    in_flight = _gauge(
        "kvgate_in_flight", "Requests on the endpoint, and those whose answers are only passed on.", "endpoint"
    )
    peak = _gauge("kvgate_sequences_peak", "The most sequences that were on the endpoint at once.", "endpoint")
    usage = _gauge("kvgate_kv_usage", "Share of the endpoint's KV cache in use, 0 to 1.", "endpoint", "source")
    gate = _gauge("kvgate_gate_open", "1 while no rule closes the endpoint to every request.", "endpoint")
    healthy = _gauge("kvgate_endpoint_healthy", "1 while the endpoint takes traffic.", "endpoint")
    stands = _gauge("kvgate_endpoint_state", "1: the state in which the endpoint is.", "endpoint", "state")
    ready_in = _gauge(
        "kvgate_engine_ready_in_seconds", "Until an engine that starts on demand would be up.", "endpoint"
    )
    age = _gauge("kvgate_scrape_age_seconds", "Since the last scrape of the endpoint's metrics.", "endpoint")
    for endpoint in state.endpoints:
        in_flight.add_metric([endpoint.id], endpoint.in_flight)
        peak.add_metric([endpoint.id], endpoint.peak_sequences)
        healthy.add_metric([endpoint.id], endpoint.healthy)
        stands.add_metric([endpoint.id, endpoint.state], 1)
        if endpoint.ready_in_seconds is not None:
            ready_in.add_metric([endpoint.id], endpoint.ready_in_seconds)
        if endpoint.gate is not None:
            gate.add_metric([endpoint.id], endpoint.gate.open)
        if endpoint.scrape_age_seconds is not None:
            age.add_metric([endpoint.id], endpoint.scrape_age_seconds)
        if endpoint.kv is not None:
            for source in ("ledger", "observed", "effective", "forecast"):
                share = getattr(endpoint.kv, source)
                if share is not None:
                    usage.add_metric([endpoint.id, source], share)
    return iter((in_flight, peak, usage, gate, healthy, stands, ready_in, age))


def _engine_counters(state: Decided) -> Iterator[CounterMetricFamily]:
    preemptions = _counter("kvgate_engine_preemptions_total", "Requests that the engine preempted.", "endpoint")
    tokens = _counter("kvgate_engine_tokens_total", "Tokens the engine processed, for anybody.", "endpoint", "kind")
    cached = _counter(
        "kvgate_engine_prefix_cache_tokens_total",
        "Prompt tokens that the engine looked up in its prefix cache, and found there.",
        "endpoint",
        "kind",
    )
    for endpoint in state.endpoints:
        engine = endpoint.engine
        for family, kind, value in (
            (preemptions, None, engine.preemptions),
            (tokens, "prompt", engine.prompt_tokens),
            (tokens, "completion", engine.generated_tokens),
            (cached, "queried", engine.prefix_queried_tokens),
            (cached, "hit", engine.prefix_hit_tokens),
        ):
            if value is not None:
                family.add_metric([endpoint.id] if kind is None else [endpoint.id, kind], value)
    return iter((preemptions, tokens, cached))


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, meaning, labels=list(labels))


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=list(labels))
