"""Snapshots of the core's live objects."""

from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.rules import closed_by
from gateway.admission.queueing.queue import Queue
from gateway.admission.snapshot import BandSnapshot, EndpointSnapshot, QueueSnapshot


def endpoint_state(endpoint: EndpointRecord, now: float) -> EndpointSnapshot:
    """Snapshot of one endpoint."""
    ledger, blocks, observed = endpoint.ledger, endpoint.capacity.kv_blocks, endpoint.observed
    closing = closed_by(endpoint, now)
    return EndpointSnapshot(
        id=endpoint.id,
        up=endpoint.live,
        reason=endpoint.reason,
        gate_open=not closing,
        closed_by=tuple(rule.name for rule in closing),
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


def queue_state(queue: Queue, now: float) -> QueueSnapshot:
    """Snapshot of the queue."""
    return QueueSnapshot(
        depth=queue.depth,
        bytes=queue.bytes,
        oldest_age=now - min((request.arrived_at for request in queue), default=now),
        bands=tuple(BandSnapshot(band, queue.depth_of(band)) for band in queue.bands),
    )
