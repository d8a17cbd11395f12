"""The token counter of one model: counts here what is proven to match the engine, and asks the engine for the rest."""

import contextlib
import functools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import msgspec

from gateway.tokens.body_fields import dear_values
from gateway.tokens.count import (
    Counted,
    CountingOverloadedError,
    CountUnavailableError,
    PromptCount,
    PromptTooLongError,
    Source,
)
from gateway.tokens.drift import LIMIT, LONGEST_WAIT, WINDOW, Drift, DriftWatch, Part
from gateway.tokens.engine_count import EngineCounter, QuestionRefusedError, RouteMissingError, Target
from gateway.tokens.estimate import estimate_body
from gateway.tokens.features import ALL, Feature, Kind
from gateway.tokens.fields import OURS
from gateway.tokens.hand_over import PROBED, HandOver
from gateway.tokens.interruption import TooMuchHereError, limited
from gateway.tokens.loading import Tokenizers
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.pool import CountingPool, WorkerDiedError
from gateway.tokens.prefix import new_key
from gateway.tokens.probes import MAX_MODEL_LEN, ParityReport, Probe, Read, Reading, UncountedError, compare, probes
from gateway.tokens.render import TokenizerChangedError, TokenizerSource, is_quick, loaded_from
from gateway.tokens.work import WORK
from gateway.wire.engine_kinds import VLLM, KvOut
from gateway.wire.request import Api, GenerationRequest, InvalidRequestError
from gateway.wire.token_ids import IdsField

R = TypeVar("R")

_PROBING = "probes"
"""The flow of kvgate's own probes."""
AT_ONCE_BYTES = 4096
"""Largest body in bytes that is counted on the event loop. Ordinary text of this size takes 0.6 ms. A thread takes as
much CPU, holds the GIL meanwhile, and lets requests that come together wait for each other: with 32 at once, kvgate
added 5 ms to each instead of 0.2."""
AT_ONCE_VALUES = 200
"""Most values of such a body (`dear_values`). A template may print them one below the other, each indented by its
depth: of 4 KB of brackets that took 2 s."""
AT_ONCE_SECONDS = 0.01
"""CPU time that it may take on the event loop, as far as can be told from its prompt: a template may repeat a part of
the body for each message. After that it begins anew in the pool."""

FIRST_AGAIN = 5.0
"""Seconds after which an endpoint is probed again that did not answer all probes. Each further time doubles them."""
_MOST_TRUSTS = 64


@dataclass(frozen=True, slots=True)
class NotHere:
    """Requests that kvgate does not count itself; with the feature `PROMPT`, all of that API."""

    api: Api
    feature: Feature
    source: Source
    """The source of their counts."""
    reason: str


@dataclass(frozen=True, slots=True)
class _Trust:
    known: tuple[str, ...]
    """URLs of the endpoints that are up and were compared."""
    distrusted: frozenset[Feature]
    """The features of requests that must not be counted here."""
    excludes_unused: bool
    """Whether all of these endpoints leave out tools that the model may not use."""
    kinds: frozenset[str]
    """The kinds of the endpoints that are up."""


@dataclass(frozen=True, slots=True)
class _Again:
    """Probes of an endpoint that are to be repeated: not all were answered."""

    due: float
    wait: float
    """Seconds from the last time until then."""


class ModelCounter:
    """Counts the prompts of one served model, as its endpoints count them.

    Call `start` once, `verify` each time an endpoint comes up, and `recheck` every few seconds. Until an endpoint was
    compared, the local count is taken for right.

    Attributes:
        source: its tokenizer; None if unknown.
    """

    def __init__(
        self,
        model: str,
        source: TokenizerSource | None,
        pool: CountingPool,
        tokenizers: Tokenizers,
        engine: EngineCounter,
        *,
        up: Callable[[], Collection[str]],
        on_drift: Callable[[Drift], None],
        on_switch: Callable[[str], None],
        on_return: Callable[[str], None],
        on_refusal: Callable[[str], None],
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
        hand_over_from: Callable[[], int | None] = lambda: None,
        key: bytes | None = None,
    ) -> None:
        """Nothing is loaded yet.

        Args:
            model: its served name.
            source: its tokenizer; None if unknown.
            pool: shared with other models; its maker closes it.
            tokenizers: those of the pool. A loaded one is used at once.
            engine: asks its endpoints.
            up: base URLs of the endpoints that are up.
            on_drift: called for each count that `usage` contradicts.
            on_switch: called with the reason each time requests are counted otherwise from then on.
            on_return: called with the requests each time they are counted here again.
            on_refusal: called with the reason each time an endpoint takes token ids no more.
            clock: monotonic seconds.
            chance: a number from 0 to 1, drawn for each prompt whose token ids an endpoint takes.
            hand_over_from: tokens of a prompt from which on endpoints get its ids; None for never.
            key: of the prefix hashes; a new one if it is not given.
        """
        self._model = model
        self.source = source
        self._pool = pool
        self._engine = engine
        self._up = up
        self._on_drift = on_drift
        self._on_switch = on_switch
        self._on_return = on_return
        self._on_refusal = on_refusal
        self._clock = clock
        self._tokenizers = tokenizers
        self._unavailable = _NO_TOKENIZER if source is None else tokenizers.unavailable(source)
        self._drift = DriftWatch()
        self._engine_drift = DriftWatch()
        """Of the engine's own counts: a counting route may build a prompt otherwise than the route that answers."""
        self._hand_over = HandOver(model, engine, on_refusal, chance)
        self._hand_over_from = hand_over_from
        self._reports: dict[str, ParityReport] = {}
        self._again: dict[str, _Again] = {}
        self._kinds = OURS
        """The kinds of the endpoints that were up last."""
        self._trusts: dict[tuple[Api, frozenset[str]], _Trust] = {}
        """What follows from the reports and drifts for the endpoints that are up, until one of them changes."""
        self._key = key or new_key()

    async def start(self) -> None:
        """Load the tokenizer. Takes seconds; until then, and if it fails, the engine counts.

        Raises:
            TokenizerUnavailableError, WorkerDiedError, OSError: another call may succeed.
        """
        if self.source is not None:
            self._unavailable = await self._tokenizers.load(self.source)
            self._trusts.clear()
        elif self._engine.kind().counts:
            self._unavailable = f"{self._engine.kind().name} counts its prompts itself"
            return
        elif not self._can_ask:
            self._unavailable = _BOUNDED.format(self._engine.kind().name)
        if self._unavailable:
            self._on_switch(self._unavailable)

    async def verify(self, target: Target) -> ParityReport | None:
        """Compare the probes with an endpoint that came up; None if it does not count, or there is no tokenizer.

        What an engine other than vLLM refuses to count stays counted here, and is checked against its `usage` only.

        Raises:
            CountUnavailableError: the endpoint did not answer, or too much waits to be counted here. The earlier report
                on it stays, and `recheck` tries again.
        """
        self._again.pop(target.url, None)
        return await self._verify(target)

    async def _verify(self, target: Target) -> ParityReport | None:
        last = self._again.get(target.url)
        wait = FIRST_AGAIN if last is None else min(2 * last.wait, LONGEST_WAIT)
        under_way = self._again[target.url] = _Again(inf, wait)
        complete = False
        try:
            report, complete = await self._probed(target)
        finally:
            if self._again.get(target.url) is under_way:  # and no later one, as the endpoint came up again meanwhile
                del self._again[target.url]
                if not complete:
                    self._again[target.url] = _Again(self._clock() + wait, wait)
        return report

    async def _probed(self, target: Target) -> tuple[ParityReport | None, bool]:
        """The report on an endpoint, and whether all of its probes were answered."""
        self._hand_over.forget(target.url)
        if not self._compares(target):
            return None, True

        async def by_engine(probe: Probe) -> Reading | None:
            try:
                work = WORK[target.kind.name](probe.api, probe.body, MAX_MODEL_LEN)
                return await self._engine.read_at(target, work, flow=_PROBING)
            except InvalidRequestError:
                return None
            except (RouteMissingError, NeedsEngineError):
                raise UncountedError from None

        made, kinds = probes(self._model), frozenset({target.kind.name})

        excludes = await self._excludes_unused(made, by_engine, kinds)

        async def here(probe: Probe) -> Reading | None:
            return await self._probe_here(probe, kinds, excludes_unused=excludes)

        report = replace(await compare(made, here, by_engine), excludes_unused=excludes)
        if target.kind is not VLLM:
            report = report.as_far_as_counted()
        known = self._reports.get(target.url)
        self._reports[target.url] = report
        self._trusts.clear()
        if report.differs and report != known:
            self._on_switch(_difference(target, report))
        return report, await self._hands_over(target, report)

    async def _hands_over(self, target: Target, report: ParityReport) -> bool:
        """Find out whether an endpoint may get token ids; False if it did not answer, or cannot be asked just now."""
        if self._hand_over_from() is None or Feature.PROMPT in report.distrusted(Api.CHAT):
            return True
        if report.other_ids:
            self._on_refusal(_other_ids(target, report))
        if report.other_ids or not report.same_ids:
            return True
        ids = await self._probed_ids()
        if ids is None:
            return False
        return not ids or await self._hand_over.probe(target, ids)

    async def recheck(self) -> None:
        """Probe the endpoints if counts drifted and a probe is due; what matches is counted here again.

        Those that did not answer all of their probes are probed again by themselves. What the engine counted wrong is
        no estimate any more once its time is over.
        """
        self._engine_drift.probed(lambda _: True, self._clock())  # only live requests can show it again
        targets = self._engine.targets()
        if not self._drift.due(self._clock()):
            for target in targets:
                again = self._again.get(target.url)
                if again is not None and again.due <= self._clock():
                    with contextlib.suppress(CountUnavailableError):
                        await self._verify(target)
            return
        try:
            compared = [await self._verify(target) for target in targets]
        except CountUnavailableError:
            compared = []

        def equal(part: Part) -> bool:
            api, feature = part
            reports = [report for report in compared if report is not None]
            return bool(reports) and not any({feature, Feature.PROMPT} & report.distrusted(api) for report in reports)

        returned = self._drift.probed(equal, self._clock())
        self._trusts.clear()
        for api, feature in returned:
            self._on_return(_named(api, feature))

    @property
    def mode(self) -> Source:
        """The source of an ordinary conversation's count."""
        return self._elsewhere(Api.CHAT) if Feature.PROMPT in self._trust(Api.CHAT).distrusted else Source.LOCAL

    @property
    def refuted(self) -> bool:
        """Whether all endpoints that are up were compared, and none counts an ordinary conversation as it is here."""
        reports = [self._reports.get(url) for url in self._up()]
        return bool(reports) and all(
            report is not None and Feature.PROMPT in report.distrusted(Api.CHAT) for report in reports
        )

    def _compares(self, target: Target) -> bool:
        """Whether its counts can be compared with local ones."""
        return not self._unavailable and target.kind.name in WORK

    @property
    def _can_ask(self) -> bool:
        """Whether the engine to ask first has routes that count."""
        return self._engine.kind().name in WORK

    def _elsewhere(self, api: Api, *features: Feature) -> Source:
        """The source of the counts of requests that bring these and are not counted here."""
        if self._can_ask:
            return Source.ESTIMATE if {Feature.PROMPT, *features} & self._engine_drift.doubted(api) else Source.ENGINE
        return Source.BOUND if self.source is None or self._unavailable else Source.ESTIMATE

    @property
    def reason(self) -> str:
        """Why all or some requests are not counted here; empty if all that can be are."""
        return "; ".join(dict.fromkeys(kind.reason for kind in self.not_here()))

    def not_compared(self) -> frozenset[str]:
        """URLs of the endpoints that are up and whose counts are yet to be compared: the local ones pass for right."""
        return frozenset(t.url for t in self._engine.targets() if self._compares(t) and t.url not in self._reports)

    def not_here(self) -> list[NotHere]:
        """The requests not counted here, the source of their counts, and why."""
        if self._unavailable:
            return [NotHere(api, Feature.PROMPT, self._elsewhere(api), self._unavailable) for api in Api]
        found = []
        for api in Api:
            for target, report in self._known():
                if api in report.unverified:
                    reason = f"{target.url} has no route that counts it"
                    found.append(NotHere(api, Feature.PROMPT, Source.ESTIMATE, reason))
                else:
                    found += [
                        NotHere(api, feature, self._elsewhere(api, feature), _difference(target, report))
                        for feature in sorted(report.distrusted(api))
                    ]
            found += [
                NotHere(api, feature, self._elsewhere(api, feature), _drifted(api, feature))
                for feature in sorted(self._drift.doubted(api))
            ]
        return found

    async def count(self, request: GenerationRequest, *, flow: str, max_model_len: int) -> PromptCount:
        """Count a request's prompts, without ever blocking the event loop.

        Args:
            request: the request; its `body` is what the engine will get.
            flow: of the request, for its fair share of the counting pool.
            max_model_len: in tokens; a prompt with too many characters to fit it is refused untokenized.

        Raises:
            InvalidRequestError: the engine would refuse the request while building its prompt, or has.
            PromptTooLongError: refused before tokenizing.
            CountingOverloadedError: too many bytes wait to be counted.
            CountUnavailableError: neither kvgate nor an engine could count.
        """
        return replace(await self._count(flow, request, max_model_len), by=self)

    async def _count(self, flow: str, request: GenerationRequest, max_model_len: int) -> PromptCount:
        trust = self._trust(request.api)
        taken = (
            request.api is Api.CHAT and not request.names_ids and any(self._hand_over.field(url) for url in trust.known)
        )
        if Feature.PROMPT not in trust.distrusted:
            try:
                counted = await self._here(
                    flow,
                    request.api,
                    request.body,
                    max_model_len,
                    trust.distrusted,
                    size=request.counted_bytes,
                    kinds=trust.kinds,
                    excludes_unused=trust.excludes_unused,
                    ids_from=self._hand_over_from() if taken else None,
                )
                return PromptCount(counted.prompts, Source.LOCAL, counted.kind, counted.prefix, counted.ids)
            except (NeedsEngineError, WorkerDiedError):
                pass
            except NotCountableError:
                return await self._estimate(flow, request, max_model_len)
        return await self._by_engine(flow, request, max_model_len)

    def ids_field(self, url: str) -> IdsField | None:
        """The field by which an endpoint takes the ids of one prompt; see `HandOver.drawn`."""
        return self._hand_over.drawn(url)

    def takes_ids(self, url: str) -> bool:
        """Whether an endpoint takes token ids."""
        return self._hand_over.field(url) is not None

    def settle(self, count: PromptCount, usage_prompt_tokens: int, *, handed_to: str | None = None) -> None:
        """Compare a count with the engine's `usage.prompt_tokens`; count a drift and act on it.

        `handed_to`: base URL of the endpoint that got the prompt's token ids, and only says how many it got.
        """
        if handed_to is not None:
            self._hand_over.settle(handed_to, count.tokens, usage_prompt_tokens)
            return
        if not count.source.exact:
            return
        watch = self._drift if count.source is Source.LOCAL else self._engine_drift
        drift = watch.settle(count, usage_prompt_tokens, self._clock())
        if drift is None:
            return
        self._on_drift(drift)
        self._trusts.clear()
        for api, feature in drift.doubted:
            self._on_switch(_drifted(api, feature, count.source))

    async def _here(
        self,
        flow: str,
        api: Api,
        body: bytes,
        max_model_len: int,
        distrusted: frozenset[Feature] = frozenset(),
        *,
        size: int,
        kinds: frozenset[str] | None = None,
        excludes_unused: bool | None = None,
        ids_from: int | None = None,
    ) -> Counted:
        if self.source is None:
            raise NeedsEngineError(self._unavailable)
        if kinds is None or excludes_unused is None:
            trust = self._trust(api)
            kinds, excludes_unused = trust.kinds, trust.excludes_unused
        given = (self.source, api, body, max_model_len, distrusted)
        work = functools.partial(count_body, *given, kinds=kinds, excludes_unused=excludes_unused, key=self._key)
        work = functools.partial(work, ids_from=ids_from, files=loaded_from(self.source))
        return await self._do(flow, api, body, size, work)

    async def _do(self, flow: str, api: Api, body: bytes, size: int, work: Callable[[], R]) -> R:
        """Do work on a body that counts as so many bytes: at once if it is and stays little, else in the pool."""
        little = (
            size <= AT_ONCE_BYTES
            and api is not Api.RESPONSES  # whose tools may have long names made for each of them
            and dear_values(api, body) <= AT_ONCE_VALUES
        )
        if little and (self.source is None or self._unavailable or is_quick(self.source)):
            with contextlib.suppress(TooMuchHereError), limited(AT_ONCE_SECONDS):
                return work()
        try:
            return await self._pool.run(flow, size, work)
        except TokenizerChangedError as error:
            if self.source is not None and self._tokenizers.changed(self.source):
                self._on_switch(str(error))
            raise

    async def _by_engine(self, flow: str, request: GenerationRequest, max_model_len: int) -> PromptCount:
        if not self._can_ask:
            return await self._estimate(flow, request, max_model_len)
        trust = self._trust(Api.CHAT)
        proven = Feature.PROMPT not in trust.distrusted
        try:
            api, body = request.api, request.body
            kind = self._engine.kind()
            convert = functools.partial(WORK[kind.name], api, body, max_model_len)
            if kind is VLLM:
                convert = functools.partial(convert, excludes_unused=trust.excludes_unused, proven=proven)
            work = await self._do(flow, api, body, request.counted_bytes, convert)
        except (NeedsEngineError, NotCountableError):
            return await self._estimate(flow, request, max_model_len)
        except WorkerDiedError as error:
            raise CountUnavailableError(str(error)) from None
        try:
            counts = await self._engine.count(work, max_model_len, flow=flow, kind=kind)
        except (QuestionRefusedError, RouteMissingError):
            return await self._estimate(flow, request, max_model_len)
        source = self._elsewhere(api, *work.kind.features) if work.exact else Source.ESTIMATE
        return PromptCount(counts, source, work.kind)

    async def _estimate(self, flow: str, request: GenerationRequest, max_model_len: int) -> PromptCount:
        """Estimate by our own conversion or, if that fails, by all the request's texts.

        Of an engine that counts nothing, without a tokenizer: a bound.
        """
        body = request.body
        source = None if self._unavailable else self.source
        try:
            if source is not None:
                counted = await self._here(flow, request.api, body, max_model_len, size=request.counted_bytes)
                return PromptCount(counted.prompts, Source.ESTIMATE, counted.kind)
        except (NeedsEngineError, NotCountableError, PromptTooLongError):
            pass
        except WorkerDiedError:
            source = None
        if source is not None:
            with contextlib.suppress(NeedsEngineError):  # the process has none, or another
                return await self._estimated(flow, request, source)
        return await self._estimated(flow, request, None)

    async def _estimated(self, flow: str, request: GenerationRequest, source: TokenizerSource | None) -> PromptCount:
        """Estimate by all the request's texts, with a tokenizer or without."""
        body = request.body
        kills = self._engine.kind().kv_out is KvOut.KILL_ALL  # there a count that is too low fails others
        at_most = source is None and (kills or not self._can_ask)
        kinds = self._trust(request.api).kinds
        files = None if source is None else loaded_from(source)
        estimate = functools.partial(
            estimate_body, source, request.api, body, kinds=kinds, at_most=at_most, files=files
        )
        counted = await self._do(flow, request.api, body, request.counted_bytes, estimate)
        return PromptCount(counted.prompts, Source.BOUND if at_most else Source.ESTIMATE, counted.kind)

    async def _probe_here(self, probe: Probe, kinds: frozenset[str], *, excludes_unused: bool) -> Reading | None:
        try:
            counted = await self._here(
                _PROBING,
                probe.api,
                probe.body,
                MAX_MODEL_LEN,
                size=len(probe.body),
                kinds=kinds,
                excludes_unused=excludes_unused,
                ids_from=0 if probe.api is Api.CHAT else None,
            )
            ids = msgspec.json.decode(counted.ids, type=tuple[int, ...]) if counted.ids else None
            return Reading(sum(counted.prompts), ids)
        except InvalidRequestError:
            return None
        except (NeedsEngineError, NotCountableError):
            raise UncountedError from None
        except CountingOverloadedError as error:
            raise CountUnavailableError(str(error)) from None

    async def _probed_ids(self) -> list[int] | None:
        """The token ids of `PROBED`; empty if it cannot be counted here, None if it cannot just now."""
        body = msgspec.json.encode({"model": self._model} | PROBED)
        try:
            counted = await self._here(_PROBING, Api.CHAT, body, MAX_MODEL_LEN, size=len(body), ids_from=0)
        except (InvalidRequestError, NeedsEngineError, NotCountableError):
            return []
        except (CountingOverloadedError, WorkerDiedError):
            return None
        return msgspec.json.decode(counted.ids, type=list[int])

    async def _excludes_unused(self, made: tuple[Probe, ...], by_engine: Read, kinds: frozenset[str]) -> bool:
        """Whether an engine leaves out tools that the model may not use."""
        probe = next(probe for probe in made if probe.feature is Feature.UNUSED_TOOLS)
        try:
            there = await by_engine(probe)
            left, kept = [await self._probe_here(probe, kinds, excludes_unused=excludes) for excludes in (True, False)]
        except UncountedError:
            return False
        return there == left != kept

    def _trust(self, api: Api) -> "_Trust":
        """What of an API's requests may be counted here."""
        up = frozenset(self._up())
        found = self._trusts.get((api, up))
        if found is None:
            reports = {url: self._reports[url] for url in up if url in self._reports}
            doubted = self._drift.doubted(api).union(*(report.distrusted(api) for report in reports.values()))
            excludes = bool(reports) and all(report.excludes_unused for report in reports.values())
            # While none is up, another of its kind is waited for.
            self._kinds = frozenset(target.kind.name for target in self._engine.targets()) or self._kinds
            found = _Trust(tuple(reports), ALL if self._unavailable else doubted, excludes, self._kinds)
            if len(self._trusts) >= _MOST_TRUSTS:  # endpoints come and go
                self._trusts.clear()
            self._trusts[api, up] = found
        return found

    def _known(self) -> list[tuple[Target, ParityReport]]:
        """The endpoints that are up and were compared, with their reports."""
        return [(target, self._reports[target.url]) for target in self._engine.targets() if target.url in self._reports]


_BOUNDED = (
    "{} has no route that counts, and no tokenizer is configured: prompts are bounded from above; give its tokenizer"
)
_NO_TOKENIZER = "no tokenizer is configured, and the endpoint names none: give its folder or hub id with --tokenizer"


def _named(api: Api, feature: Feature) -> str:
    return str(Kind(api, frozenset({feature})))


def _drifted(api: Api, feature: Feature, source: Source = Source.LOCAL) -> str:
    counts = "counts" if source is Source.LOCAL else "the engine's own counts"
    return f"{LIMIT} of the last {WINDOW} {counts} of {_named(api, feature)} differ from the engine's usage"


def _difference(target: Target, report: ParityReport) -> str:
    probes = ", ".join(f'"{mismatch.probe.name}"' for mismatch in report.mismatches)
    if not report.differs:
        return f"{target.url} refuses the probes {probes}"
    first = next(mismatch for mismatch in report.mismatches if mismatch.engine is not None)
    said = f"{target.url} differs in the probes {probes} (the first: {first.engine} tokens there, {first.local} here)"
    if Feature.PROMPT not in report.distrusted(Api.CHAT):
        return said
    return f"{said}; give kvgate the --tokenizer and the --chat-template that it was started with"


def _other_ids(target: Target, report: ParityReport) -> str:
    probes = ", ".join(f'"{name}"' for name in report.other_ids)
    return (
        f"{target.url} makes other tokens of the probes {probes}, though as many: it has another tokenizer or chat "
        "template. If its model was changed, restart kvgate; else give it the --tokenizer and the --chat-template that "
        "the engine was started with"
    )
