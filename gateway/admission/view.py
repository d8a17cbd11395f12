"""How the core's live objects are shown as the values of `state`."""

from gateway.admission.endpoint import Endpoint
from gateway.admission.queue import Queue
from gateway.admission.state import BandState, EndpointState, QueueState


def endpoint_state(endpoint: Endpoint, now: float) -> EndpointState:
    """One endpoint at this time."""
    ledger, blocks, observed = endpoint.ledger, endpoint.capacity.kv_blocks, endpoint.observed
    closed_by = endpoint.closed_by(now)
    return EndpointState(
        id=endpoint.id,
        up=endpoint.up,
        reason=endpoint.reason,
        gate_open=not closed_by,
        closed_by=tuple(reason.value for reason in closed_by),
        capacity=endpoint.capacity,
        ledger_usage=None if blocks is None else ledger.held / blocks,
        observed_usage=None if observed is None else observed.kv_usage,
        effective_usage=endpoint.usage(now),
        forecast_usage=None if blocks is None else endpoint.forecast(now) / blocks,
        held_blocks=ledger.held,
        in_flight=len(ledger),
        aborting=ledger.aborting,
        sequences=ledger.sequences,
        peak_sequences=endpoint.peak_sequences,
        unconfirmed_sequences=ledger.unconfirmed_sequences,
        sequence_limit=endpoint.limit.value,
        sequence_limit_learned=endpoint.limit.learned,
        decode_rate=endpoint.decode_rate,
        scrape_age=None if observed is None else now - observed.sampled_at,
    )


def queue_state(queue: Queue, now: float) -> QueueState:
    """The queue at this time."""
    return QueueState(
        depth=queue.depth,
        bytes=queue.bytes,
        oldest_age=now - min((request.arrived_at for request in queue), default=now),
        bands=tuple(BandState(band, queue.depth_of(band)) for band in queue.bands),
    )
