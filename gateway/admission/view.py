"""Snapshots of the core's live objects."""

from dataclasses import replace

from gateway.admission.account.ledger import Reservation
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.rules import closed_by
from gateway.admission.pool import Pool
from gateway.admission.queueing.queue import Queue
from gateway.admission.snapshot import BandSnapshot, EndpointSnapshot, FlowSnapshot, QueueSnapshot, RequestSnapshot


def endpoint_state(endpoint: EndpointRecord, now: float) -> EndpointSnapshot:
    """Snapshot of one endpoint."""
    ledger, blocks, observed = endpoint.ledger, endpoint.capacity.kv_blocks, endpoint.observed
    closing = closed_by(endpoint, now)
    usage = endpoint.usage(now)
    forecast = None if blocks is None else endpoint.forecast(now) / blocks
    load, limit = (forecast, endpoint.forecast_limit) if endpoint.forecasts else (usage, endpoint.max_usage)
    size = None if blocks is None else blocks * endpoint.capacity.block_size
    return EndpointSnapshot(
        id=endpoint.id,
        up=endpoint.live,
        reason=endpoint.reason,
        gate_open=not closing,
        closed_by=tuple(rule.name for rule in closing),
        capacity=endpoint.capacity,
        ledger_usage=None if blocks is None else ledger.held / blocks,
        observed_usage=None if observed is None else observed.kv_usage,
        effective_usage=usage,
        forecast_usage=forecast,
        kv_load=None if load is None or size is None else max(0.0, load) * size,
        kv_room=None if size is None else limit * size,
        held_blocks=ledger.held,
        shared_blocks=ledger.shared_tokens // endpoint.capacity.block_size,
        used_blocks=ledger.used,
        beyond_blocks=endpoint.unaccounted(now),
        in_flight=endpoint.carried,
        aborting=ledger.aborting,
        sequences=ledger.sequences,
        peak_sequences=endpoint.peak_sequences,
        unconfirmed_sequences=ledger.unconfirmed_sequences,
        sequence_limit=endpoint.sequence_limit.value,
        sequence_limit_learned=endpoint.sequence_limit.learned,
        decode_rate=endpoint.decode_rate,
        prefill_rate=endpoint.prefill.rate,
        scrape_age=None if observed is None else now - observed.sampled_at,
    )


def oldest_arrival(queue: Queue) -> float | None:
    """When the oldest waiting request arrived; None if none waits."""
    first = queue.first_arrival()
    return None if first is None else first.arrived_at


def queue_state(queue: Queue, now: float) -> QueueSnapshot:
    """Snapshot of the queue."""
    oldest = oldest_arrival(queue)
    return QueueSnapshot(
        depth=queue.depth,
        bytes=queue.bytes,
        oldest_age=0.0 if oldest is None else now - oldest,
        bands=tuple(BandSnapshot(band, queue.depth_of(band)) for band in queue.bands),
    )


def flow_states(pool: Pool, now: float, most: int) -> tuple[FlowSnapshot, ...]:
    """Snapshots of the flows that wait: at most so many, those with the most requests, by band."""
    states = []
    for band, flow in sorted(pool.queue.most_waiting(most), key=lambda found: (found[0].number, found[1].name)):
        oldest, last = band.ends(flow.name)
        states.append(
            FlowSnapshot(
                band=band.number,
                flow=flow.name,
                weight=pool.policy.weights.get(flow.name, 1.0),
                waiting=flow.waiting,
                oldest_at=oldest,
                predicted_wait=pool.waits.predicted(last, now),
            )
        )
    return tuple(states)


def waiting_state(request: RequestRecord) -> RequestSnapshot:
    """Snapshot of a request that waits."""
    return RequestSnapshot(
        request=request.arrival.request,
        flow=request.arrival.flow,
        band=request.arrival.band,
        endpoint=None,
        arrived_at=request.arrived_at,
        sent_at=None,
        prompt_tokens=request.size,
        generated=0,
        expected=0,
        held_blocks=0,
        ends_at=None,
    )


def delivering_state(request: RequestRecord, endpoint: EndpointRecord, reservation: Reservation) -> RequestSnapshot:
    """Snapshot of a request that its engine is done with, whose answer is still on its way: it holds no blocks."""
    reported, sent_at = reservation.reported, reservation.sent_at
    return replace(waiting_state(request), endpoint=endpoint.id, sent_at=sent_at, generated=reported, expected=reported)


def flight_state(
    request: RequestRecord, endpoint: EndpointRecord, reservation: Reservation, now: float
) -> RequestSnapshot:
    """Snapshot of a request in flight."""
    generated = endpoint.ledger.tokens_so_far(reservation, now)
    length, sequences = endpoint.outlook.expected_length(reservation), reservation.sequences
    rate, left = endpoint.decode_rate, max(0.0, length - generated / sequences)
    return RequestSnapshot(
        request=request.arrival.request,
        flow=request.arrival.flow,
        band=request.arrival.band,
        endpoint=endpoint.id,
        arrived_at=request.arrived_at,
        sent_at=reservation.sent_at,
        prompt_tokens=request.size,
        generated=generated,
        expected=max(generated, length * sequences),
        held_blocks=reservation.held,
        ends_at=now + left / rate if rate else None,
    )
