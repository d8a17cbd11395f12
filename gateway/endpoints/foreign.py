"""PURE. The readers of what SGLang, TGI, TensorRT-LLM and Ollama answer: metrics, an identity, and a capacity.

Fields are those of their sources (see `gateway.wire.engine_kinds`). What an engine does not tell is None.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from gateway.admission.events import Capacity
from gateway.config.endpoint import Reached
from gateway.endpoints.capacity import capacity
from gateway.endpoints.exposition import EngineMetrics, lines_of, samples, whole, within
from gateway.endpoints.identity import Identity, UnidentifiedError, check_names, identify
from gateway.endpoints.replies import crowded
from gateway.wire.engine_kinds import KINDS, OLLAMA, SGLANG, TENSORRT_LLM, TGI, KvOut

_MOST = 2.0**53
_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_T = TypeVar("_T")

OLLAMA_LENGTH = 4096
"""Tokens of context of an Ollama that has loaded no model yet: the least it takes by itself."""
OLLAMA_SLOTS = 1
"""Requests an Ollama runs at once; it does not tell `OLLAMA_NUM_PARALLEL`, and this is its default."""
_LATEST = ":latest"
_TGI_ALIAS = "tgi"
"""The name by which TGI is asked for the model it has, whatever that is called."""


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


class _SglangInfo(msgspec.Struct):
    version: str | None = None
    max_total_num_tokens: _Size | None = None
    max_running_requests: _Size | None = None
    dp_size: _Size | None = None
    disable_radix_cache: bool = False


class _TgiInfo(msgspec.Struct):
    max_total_tokens: _Size
    max_concurrent_requests: _Size | None = None
    version: str | None = None


class _Version(msgspec.Struct):
    version: str | None = None


class _Loaded(msgspec.Struct):
    name: str
    context_length: _Size = 0


class _Processes(msgspec.Struct):
    models: list[_Loaded]


class _KvCache(msgspec.Struct, rename="camel"):
    max_num_blocks: _Size = 0
    used_num_blocks: _Size = 0
    tokens_per_block: _Size = 0


class _Iteration(msgspec.Struct, rename="camel"):
    kv_cache_stats: _KvCache | None = None
    num_active_requests: _Size | None = None
    num_queued_requests: _Size | None = None
    max_num_active_requests: _Size = 0


_models = msgspec.json.Decoder(_Models)
_sglang = msgspec.json.Decoder(_SglangInfo)
_tgi = msgspec.json.Decoder(_TgiInfo)
_version = msgspec.json.Decoder(_Version)
_processes = msgspec.json.Decoder(_Processes)
_iterations = msgspec.json.Decoder(list[_Iteration])


class Gauges(NamedTuple):
    """The names of an engine's gauges and counters in its exposition; None for one it does not have."""

    prefix: str
    running: str
    waiting: str
    generated: str
    prompt: str
    work: str
    """What rises as it works: its counters of tokens move only when a request ends."""
    usage: str | None = None
    """Share of the KV cache in use."""
    held: str | None = None
    """Tokens of it that are held; needs the configured size."""


SGLANG_GAUGES = Gauges(
    "sglang:",
    "num_running_reqs",
    "num_queue_reqs",
    "generation_tokens_total",
    "prompt_tokens_total",
    "num_used_tokens",  # its usage is rounded to hundredths
    "token_usage",
)
TGI_GAUGES = Gauges(
    "tgi_",
    "batch_current_size",
    "queue_size",
    "request_generated_tokens_sum",
    "request_input_length_sum",
    "batch_inference_success",
    held="batch_current_max_tokens",
)
"""What it holds is what its batch may grow to."""


def gauges_missing(gauges: Gauges) -> tuple[str, ...]:
    """The full names of the gauges that admission goes by."""
    needed = (gauges.usage or gauges.held, gauges.running, gauges.waiting)
    return tuple(f"{gauges.prefix}{name}" for name in needed if name is not None)


def gauge_reader(gauges: Gauges) -> Callable[[bytes, Reached], EngineMetrics]:
    """A reader of an exposition with these names. Ranks are added up; the fullest cache counts."""
    lines = lines_of(gauges.prefix, (name for name in gauges[1:] if name is not None))
    expected = gauges_missing(gauges)

    def read(body: bytes, settings: Reached) -> EngineMetrics:
        found: dict[str, list[float]] = {}
        for name, labels, value in samples(body, lines):
            if not labels.get("priority"):  # of those with one there is a sum beside them
                found.setdefault(name, []).append(value)

        def total(name: str) -> float | None:
            return within(sum(found[name]), _MOST) if name in found else None

        usage = within(max(found[gauges.usage]), 1.0) if gauges.usage in found else None
        if gauges.held in found and settings.kv_tokens is not None:
            usage = min(1.0, max(0.0, sum(found[gauges.held]) / settings.kv_tokens))
        return EngineMetrics(
            kv_usage=usage,
            running=whole(total(gauges.running)),
            waiting=whole(total(gauges.waiting)),
            generation_tokens=total(gauges.generated),
            prompt_tokens=total(gauges.prompt),
            work=total(gauges.work),
            missing=tuple(name for name in expected if name.removeprefix(gauges.prefix) not in found),
        )

    return read


_LONG_ITERATION = 10
"""Answers during the longest iteration."""


class IterationReader:
    """Reads TensorRT-LLM's `/metrics` again and again: a list of the iterations since it was last asked, as JSON.

    It is empty while nothing runs or an iteration takes long, as over a prompt that is read in one piece; and always
    where `enable_iter_perf_stats` is off: then nothing is known.
    """

    def __init__(self) -> None:
        self._tells = False
        self._empty = 0
        """Answers in a row without an iteration."""

    def read(self, body: bytes, _settings: Reached) -> EngineMetrics:
        """Read one answer. The last iteration in it may be as old as the answer before."""
        try:
            iterations = None if crowded(body) else _iterations.decode(body)
        except _UNREADABLE:
            iterations = None
        if not iterations:
            if not self._tells or iterations is None:
                return EngineMetrics()
            self._empty += 1
            return EngineMetrics(kv_usage=0.0, running=0, waiting=0 if self._empty > _LONG_ITERATION else None)
        self._tells, self._empty = True, 0
        last = iterations[-1]
        cache = last.kv_cache_stats or _KvCache()
        known = cache.max_num_blocks and cache.tokens_per_block
        labels = {}
        if known:
            labels = {"num_gpu_blocks": str(cache.max_num_blocks + 1), "block_size": str(cache.tokens_per_block)}
        if last.max_num_active_requests:
            labels[_SLOTS] = str(last.max_num_active_requests)
        return EngineMetrics(
            kv_usage=min(1.0, cache.used_num_blocks / cache.max_num_blocks) if cache.max_num_blocks else None,
            running=last.num_active_requests,
            waiting=last.num_queued_requests,
            cache_config=labels,
        )


_SLOTS = "max_num_active_requests"


def no_gauges(_body: bytes, _settings: Reached) -> EngineMetrics:
    """An engine without any."""
    return EngineMetrics()


def identify_sglang(models: bytes, about: bytes | None) -> Identity:
    """Of its model list, which is vLLM's, and `/server_info`. Raises UnidentifiedError.

    It finds an adapter behind the name of its base. Asked for the adapter's own, as listed, it answers with the base.
    """
    told = _read(_sglang, about) or _SglangInfo()
    ranks = told.dp_size or 1
    listed = identify(models, None)
    return replace(
        listed,
        loras=check_names([f"{base}:{adapter}" for base in listed.names for adapter in listed.loras]),
        kind=SGLANG.name,
        version=told.version,
        slots=told.max_running_requests or None,
        kv_tokens=(told.max_total_num_tokens or 0) * ranks or None,
        shares_prefix=about is not None and not told.disable_radix_cache,
    )


def identify_tgi(models: bytes, about: bytes | None) -> Identity:
    """Of its model list and `/info`. Raises UnidentifiedError."""
    told = _read(_tgi, about)
    if told is None or not told.max_total_tokens:
        raise UnidentifiedError("TGI's /info tells no max_total_tokens")
    names = (*_names(models, "TGI"), _TGI_ALIAS)
    return _plain(TGI.name, names, told.max_total_tokens, version=told.version, slots=told.max_concurrent_requests)


def identify_tensorrt_llm(models: bytes, about: bytes | None) -> Identity:
    """Of its model list, without a length, and `/version`. Raises UnidentifiedError."""
    told = _read(_version, about) or _Version()
    return _plain(TENSORRT_LLM.name, _names(models, "trtllm-serve"), 0, version=told.version)


def identify_ollama(models: bytes, about: bytes | None) -> Identity:
    """Of its model list and `/api/ps`, which tells the context of each loaded model. Raises UnidentifiedError."""
    names = sorted(_names(models, "Ollama"))  # it lists those first that were changed last
    short = [name.removesuffix(_LATEST) for name in names if name.endswith(_LATEST)]
    length = _longest(about) or OLLAMA_LENGTH
    return _plain(OLLAMA.name, check_names([*names, *short]), length, slots=OLLAMA_SLOTS)


def longer(before: bytes | None, now: bytes) -> bytes:
    """Of two answers of an Ollama's `/api/ps` the one with the longer context.

    Each tells of the models that are loaded now: a small one, as for embeddings, shortens no other, nor does an unload.
    """
    return before if before is not None and _longest(before) > _longest(now) else now


def _longest(about: bytes | None) -> int:
    """The longest context of the models that an Ollama has loaded, in tokens; 0 if it tells none."""
    told = _read(_processes, about) or _Processes([])
    return max([model.context_length for model in told.models], default=0)


def plain_capacity(_metrics: EngineMetrics, identity: Identity, settings: Reached) -> Capacity:
    """The capacity of an engine that tells it beside its gauges, if at all."""
    return Capacity(
        max_model_len=identity.max_model_len,
        kv_blocks=settings.kv_tokens or identity.kv_tokens,
        block_size=1,
        max_num_seqs=settings.max_num_seqs or identity.slots,
        shares_prefix=identity.shares_prefix,
        holds_limit=_holds_limit(identity),
    )


def gauged_capacity(metrics: EngineMetrics, identity: Identity, settings: Reached) -> Capacity:
    """The capacity of an engine whose gauges tell its blocks."""
    slots = metrics.cache_config.get(_SLOTS)
    found = capacity(
        metrics.cache_config,
        identity.max_model_len,
        kv_tokens=settings.kv_tokens,
        max_num_seqs=settings.max_num_seqs or (int(slots) if slots else None),
    )
    return replace(found, holds_limit=_holds_limit(identity))


def _holds_limit(identity: Identity) -> bool:
    return KINDS[identity.kind].kv_out is not KvOut.PREEMPT


def _plain(
    kind: str, names: tuple[str, ...], length: int, *, version: str | None = None, slots: int | None = None
) -> Identity:
    return Identity(names, loras=(), root=None, max_model_len=length, version=version, kind=kind, slots=slots)


def _names(models: bytes, engine: str) -> tuple[str, ...]:
    listed = _read(_models, models)
    if listed is None or not listed.data:
        raise UnidentifiedError(f"{engine}'s /v1/models lists no model")
    return check_names([card.id for card in listed.data])


def _read(decoder: msgspec.json.Decoder[_T], body: bytes | None) -> _T | None:
    try:
        return None if body is None else decoder.decode(body)
    except _UNREADABLE:
        return None
