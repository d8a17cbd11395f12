"""The load of a pool in the terms of an autoscaler: how much more capacity would serve all that runs and waits."""

from collections.abc import Iterable, Sequence

from gateway.admission.queueing.queue import Queue
from gateway.admission.snapshot import EndpointSnapshot, Scaling
from gateway.admission.tuning import TUNING


def scaling(endpoints: Iterable[EndpointSnapshot], waiting: Queue, drain_rate: float | None) -> Scaling:
    """The signals of a pool.

    Args:
        endpoints: all of its endpoints. Those that take no traffic count for nothing.
        waiting: its queue, of which only sums are asked: it may be long.
        drain_rate: tokens of service per second; None while unknown.
    """
    live = [endpoint for endpoint in endpoints if endpoint.up]
    return Scaling(
        saturation=_saturation(live, waiting),
        backlog_seconds=_backlog(waiting, drain_rate if live else None),
        waiting_without_endpoint=0 if live else waiting.depth,
    )


def _saturation(live: Sequence[EndpointSnapshot], waiting: Queue) -> float | None:
    """The fuller of KV cache and sequences counts. Each counts where every live endpoint has a limit of it."""
    tokens = _load([(e.kv_load, e.kv_room) for e in live], _tokens(waiting))
    sequences = _load([(e.sequences, e.sequence_limit) for e in live], waiting.sequences)
    return max((load for load in (tokens, sequences) if load is not None), default=None)


def _load(endpoints: Iterable[tuple[float | None, float | None]], waiting: float) -> float | None:
    """What runs and what waits, as a share of what there may be; None if that is unknown or nothing."""
    load, room = waiting, 0.0
    for here, most in endpoints:
        if here is None or most is None:
            return None
        load, room = load + here, room + most
    return load / room if room else None


def _tokens(waiting: Queue) -> float:
    """Tokens that the waiting requests are expected to hold at their ends, see `service`."""
    return waiting.prompt_tokens + (waiting.cost - waiting.prompt_tokens) / TUNING.output_weight


def _backlog(waiting: Queue, drain_rate: float | None) -> float | None:
    if not waiting.depth:
        return 0.0
    return waiting.cost / drain_rate if drain_rate else None
