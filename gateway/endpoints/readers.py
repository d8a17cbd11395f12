"""PURE. The readers of each engine kind's answers, as a table."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.admission.events import Capacity
from gateway.config.endpoint import Reached
from gateway.endpoints.capacity import capacity
from gateway.endpoints.exposition import EXPECTED, EngineMetrics, parse
from gateway.endpoints.identity import Identity, identify
from gateway.endpoints.llama_server import SlotReader, identify_llama_server, llama_server_capacity
from gateway.wire.engine_kinds import LLAMA_SERVER, VLLM


class Readers(NamedTuple):
    """The readers of one kind."""

    metrics: Callable[[], Callable[[bytes, Reached], EngineMetrics]]
    """Makes the reader of one endpoint's answers of `EngineKind.gauges`."""
    identity: Callable[[bytes, bytes | None], Identity]
    """Of the answers of `/v1/models` and `EngineKind.about`. Raises UnidentifiedError."""
    capacity: Callable[[EngineMetrics, Identity, Reached], Capacity]
    unscraped: EngineMetrics
    """What stands for a scrape that never came."""


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
    LLAMA_SERVER.name: Readers(
        lambda: SlotReader().read, identify_llama_server, llama_server_capacity, EngineMetrics()
    ),
}
