"""Counts the prompts of one model: here where that is proven right, by the engine where it is not."""

from collections.abc import Callable

from gateway.tokens.count import (
    CountingOverloadedError,
    CountUnavailableError,
    PromptCount,
    PromptTooLongError,
    Source,
)
from gateway.tokens.counting import Counted, count_body, engine_work, estimate_body, load
from gateway.tokens.drift import LIMIT, WINDOW, Drift, DriftWatch
from gateway.tokens.engine_count import EngineCounter, RouteMissingError, Target
from gateway.tokens.features import ALL, Feature
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.pool import CountingPool, WorkerDiedError
from gateway.tokens.prefix import new_key
from gateway.tokens.probes import MAX_MODEL_LEN, ParityReport, Probe, UncountedError, compare, probes
from gateway.tokens.render import TokenizerSource, TokenizerUnavailableError
from gateway.wire.request import Api, GenerationRequest, InvalidRequestError

_PROBING = "probes"
"""The flow of our own counting."""


class ModelCounter:
    """A `TokenCounter` for one served model and all its endpoints.

    Call `start` once, and `verify` each time an endpoint comes up. Until an endpoint was compared, counts are local.
    """

    def __init__(
        self,
        model: str,
        source: TokenizerSource | None,
        pool: CountingPool,
        engine: EngineCounter,
        *,
        on_drift: Callable[[Drift], None],
        on_switch: Callable[[str], None],
    ) -> None:
        """Nothing is loaded yet.

        Args:
            model: its served name.
            source: its tokenizer; None where none is known.
            pool: shared with other models; closed by whoever made it.
            engine: asks its endpoints.
            on_drift: told of each count that `usage` contradicts.
            on_switch: told why, each time the engine takes over counting.
        """
        self._model = model
        self._source = source
        self._pool = pool
        self._engine = engine
        self._on_drift = on_drift
        self._on_switch = on_switch
        self._unavailable = "no tokenizer is configured" if source is None else "the tokenizer is not loaded yet"
        self._drift = DriftWatch()
        self._drifted = False
        self._reports: dict[str, ParityReport] = {}
        self._key = new_key()

    async def start(self) -> None:
        """Load the tokenizer, here and in the processes. Takes seconds; where it fails, the engine counts."""
        if self._source is not None:
            try:
                await self._pool.run_everywhere(load, self._source)
            except (TokenizerUnavailableError, WorkerDiedError) as error:
                self._unavailable = str(error)
            else:
                self._unavailable = ""
        if self._unavailable:
            self._on_switch(self._unavailable)

    async def verify(self, target: Target) -> ParityReport | None:
        """Compare the probes with an endpoint that has come up; None where there is no tokenizer to compare.

        Raises:
            CountUnavailableError: the endpoint did not answer; what was known of it stays.
        """
        if self._unavailable:
            return None

        async def by_engine(probe: Probe) -> int | None:
            try:
                work = engine_work(probe.api, probe.body, MAX_MODEL_LEN)
                return sum(await self._engine.count_at(target, work))
            except InvalidRequestError:
                return None
            except RouteMissingError:
                raise UncountedError from None

        report = await compare(probes(self._model), self._probe_here, by_engine)
        self._reports[target.url] = report
        if not report.equal:
            self._on_switch(_difference(target, report))
        return report

    @property
    def mode(self) -> Source:
        """Who counts an ordinary conversation: `LOCAL` or `ENGINE`."""
        return Source.ENGINE if Feature.PROMPT in self._distrusted(Api.CHAT) else Source.LOCAL

    @property
    def reason(self) -> str:
        """Why the engine counts all or some requests; empty where it counts none that we can."""
        if self._unavailable or self._drifted:
            return self._unavailable or _DRIFTED
        return "; ".join(_difference(target, report) for target, report in self._known() if not report.equal)

    async def count(self, request: GenerationRequest, *, flow: str, max_model_len: int) -> PromptCount:
        """Count a request's prompts; see `TokenCounter.count`."""
        distrusted = self._distrusted(request.api)
        if Feature.PROMPT not in distrusted:
            try:
                counted = await self._here(flow, request.api, request.body, max_model_len, distrusted)
                return PromptCount(counted.prompts, Source.LOCAL, counted.kind, counted.prefix)
            except (NeedsEngineError, WorkerDiedError):
                pass
            except NotCountableError:
                return await self._estimate(flow, request)
        return await self._by_engine(flow, request, max_model_len)

    def settle(self, count: PromptCount, usage_prompt_tokens: int) -> None:
        """Hold a count against the engine's `usage.prompt_tokens`; see `TokenCounter.settle`."""
        drift = self._drift.settle(count, usage_prompt_tokens)
        if drift is None:
            return
        self._on_drift(drift)
        if self._drift.persists and not self._drifted:
            self._drifted = True
            self._on_switch(_DRIFTED)

    async def _here(
        self, flow: str, api: Api, body: bytes, max_model_len: int, distrusted: frozenset[Feature] = frozenset()
    ) -> Counted:
        if self._source is None:
            raise NeedsEngineError(self._unavailable)
        return await self._pool.run(
            flow, len(body), count_body, self._source, api, body, max_model_len, distrusted, key=self._key
        )

    async def _by_engine(self, flow: str, request: GenerationRequest, max_model_len: int) -> PromptCount:
        try:
            work = await self._pool.run(flow, len(request.body), engine_work, request.api, request.body, max_model_len)
            counts = await self._engine.count(work, max_model_len)
        except (NeedsEngineError, NotCountableError, RouteMissingError):
            return await self._estimate(flow, request)
        except WorkerDiedError as error:
            raise CountUnavailableError(str(error)) from None
        return PromptCount(counts, Source.ENGINE, work.kind)

    async def _estimate(self, flow: str, request: GenerationRequest) -> PromptCount:
        """By our own conversion, or failing that by all the request's texts."""
        body = request.body
        source = None if self._unavailable else self._source
        try:
            if source is not None:
                counted = await self._here(flow, request.api, body, MAX_MODEL_LEN)
                return PromptCount(counted.prompts, Source.ESTIMATE, counted.kind)
        except (NeedsEngineError, NotCountableError, PromptTooLongError):
            pass
        except WorkerDiedError:
            source = None
        counted = await self._pool.run(flow, len(body), estimate_body, source, request.api, body)
        return PromptCount(counted.prompts, Source.ESTIMATE, counted.kind)

    async def _probe_here(self, probe: Probe) -> int | None:
        try:
            return sum((await self._here(_PROBING, probe.api, probe.body, MAX_MODEL_LEN)).prompts)
        except InvalidRequestError:
            return None
        except (NeedsEngineError, NotCountableError, CountingOverloadedError):
            raise UncountedError from None

    def _distrusted(self, api: Api) -> frozenset[Feature]:
        """What must not be counted here in requests of an API."""
        if self._unavailable or self._drifted:
            return ALL
        return frozenset().union(*(report.distrusted(api) for _, report in self._known()))

    def _known(self) -> list[tuple[Target, ParityReport]]:
        """The endpoints that are up, as far as they were compared."""
        return [(target, self._reports[target.url]) for target in self._engine.targets() if target.url in self._reports]


_DRIFTED = f"{LIMIT} of the last {WINDOW} local counts differ from the engine's usage"


def _difference(target: Target, report: ParityReport) -> str:
    first = report.mismatches[0]
    probes = ", ".join(f'"{mismatch.probe.name}"' for mismatch in report.mismatches)
    return f"{target.url} differs in the probes {probes} (the first: {first.engine} tokens there, {first.local} here)"
