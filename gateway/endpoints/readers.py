"""PURE. The readers of each engine kind's answers, as a table."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.admission.events import Capacity
from gateway.config.endpoint import Reached
from gateway.endpoints.capacity import capacity
from gateway.endpoints.exposition import EXPECTED, EngineMetrics, parse
from gateway.endpoints.foreign import (
    SGLANG_GAUGES,
    TGI_GAUGES,
    IterationReader,
    gauge_reader,
    gauged_capacity,
    gauges_missing,
    identify_ollama,
    identify_sglang,
    identify_tensorrt_llm,
    identify_tgi,
    longer,
    no_gauges,
    plain_capacity,
)
from gateway.endpoints.identity import Identity, identify
from gateway.endpoints.llama_server import SlotReader, identify_llama_server
from gateway.wire.engine_kinds import LLAMA_SERVER, OLLAMA, SGLANG, TENSORRT_LLM, TGI, VLLM


class Readers(NamedTuple):
    """The readers of one kind."""

    metrics: Callable[[], Callable[[bytes, Reached], EngineMetrics]]
    """Makes the reader of one endpoint's answers of `EngineKind.gauges`."""
    identity: Callable[[bytes, bytes | None], Identity]
    """Of the answers of `/v1/models` and `EngineKind.about`; a length of 0 is not told. Raises UnidentifiedError."""
    capacity: Callable[[EngineMetrics, Identity, Reached], Capacity]
    unscraped: EngineMetrics = EngineMetrics()
    """What stands for a scrape that never came."""
    holding: Callable[[bytes | None, bytes], bytes] = lambda _before, now: now
    """Which of two answers of `EngineKind.about` holds: the one before, if any, or the one of now."""


def _vllm_metrics(body: bytes, _settings: Reached) -> EngineMetrics:
    return parse(body)


def _vllm_capacity(metrics: EngineMetrics, identity: Identity, settings: Reached) -> Capacity:
    return capacity(
        metrics.cache_config,
        identity.max_model_len,
        ranks=metrics.ranks,
        kv_tokens=settings.kv_tokens,
        max_num_seqs=settings.max_num_seqs,
    )


READERS = {
    VLLM.name: Readers(lambda: _vllm_metrics, identify, _vllm_capacity, EngineMetrics(missing=EXPECTED)),
    LLAMA_SERVER.name: Readers(lambda: SlotReader().read, identify_llama_server, plain_capacity),
    SGLANG.name: Readers(
        lambda: gauge_reader(SGLANG_GAUGES),
        identify_sglang,
        plain_capacity,
        EngineMetrics(missing=gauges_missing(SGLANG_GAUGES)),
    ),
    TGI.name: Readers(
        lambda: gauge_reader(TGI_GAUGES),
        identify_tgi,
        plain_capacity,
        EngineMetrics(missing=gauges_missing(TGI_GAUGES)),
    ),
    TENSORRT_LLM.name: Readers(lambda: IterationReader().read, identify_tensorrt_llm, gauged_capacity),
    OLLAMA.name: Readers(lambda: no_gauges, identify_ollama, plain_capacity, holding=longer),
}
