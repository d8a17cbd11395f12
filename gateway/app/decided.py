"""The state of endpoints and queues, as their owner knows it, in the words of `/kvgate/state`."""

from collections.abc import Mapping
from types import MappingProxyType

from gateway.admission.events import EndpointId
from gateway.admission.snapshot import EndpointSnapshot as Admitted
from gateway.admission.snapshot import PoolState
from gateway.endpoints.monitor import EndpointMonitor
from gateway.ops.state import Decided, EndpointState, EngineTotals, GateState, KvState, QueueState
from gateway.pools.cores import Cores


def decided(
    cores: Cores,
    monitors: Mapping[EndpointId, EndpointMonitor],
    now: float,
    ready_in: Mapping[EndpointId, float | None] = MappingProxyType({}),
) -> Decided:
    """The endpoints and queues at this time. `ready_in`: of engines that do not run, seconds until they would be up."""
    return told(cores, monitors, snapshots(cores, now), now, ready_in)


def snapshots(cores: Cores, now: float) -> dict[str, PoolState]:
    """Each model's pool at this time."""
    return {name: driver.controller.snapshot(now) for name, driver in cores.drivers.items()}


def told(
    cores: Cores,
    monitors: Mapping[EndpointId, EndpointMonitor],
    pools: Mapping[str, PoolState],
    now: float,
    ready_in: Mapping[EndpointId, float | None] = MappingProxyType({}),
) -> Decided:
    """The endpoints and queues as in these snapshots of this time."""
    admitted = {state.id: state for snapshot in pools.values() for state in snapshot.endpoints}
    endpoints = [
        _endpoint(monitor, cores.serves(endpoint), admitted.get(endpoint), ready_in.get(endpoint), now)
        for endpoint, monitor in monitors.items()
    ]
    queues = [_queue(name, snapshot) for name, snapshot in pools.items()]
    return Decided(endpoints=tuple(endpoints), queues=tuple(queues))


def _endpoint(
    monitor: EndpointMonitor, model: str | None, admitted: Admitted | None, ready_in: float | None, now: float
) -> EndpointState:
    status = monitor.status
    identity, capacity, totals = status.identity, status.capacity, status.totals
    gate = kv = None
    if admitted is not None:
        gate = GateState(open=admitted.gate_open, reason=", ".join(admitted.closed_by) or None)
        kv = KvState(
            ledger=admitted.ledger_usage,
            observed=admitted.observed_usage,
            effective=admitted.effective_usage,
            forecast=admitted.forecast_usage,
            blocks=admitted.capacity.kv_blocks,
            block_size=admitted.capacity.block_size,
        )
    return EndpointState(
        id=status.id,
        url=status.url.rstrip("/"),
        healthy=status.healthy,
        state=status.state.value,
        reason=status.reason,
        cause=status.cause,
        remedy=status.remedy,
        since_seconds=max(0.0, now - status.since),
        gate=gate,
        kv=kv,
        in_flight=monitor.passing + (admitted.in_flight if admitted is not None else 0),
        sequences=admitted.sequences if admitted is not None else 0,
        peak_sequences=admitted.peak_sequences if admitted is not None else 0,
        max_num_seqs=admitted.sequence_limit if admitted is not None else None,
        max_model_len=capacity.max_model_len if capacity is not None else None,
        kind=identity.kind if identity is not None else None,
        version=identity.version if identity is not None else None,
        models=(*identity.names, *identity.loras) if identity is not None else (),
        adapters=dict(status.adapters),
        missing_metrics=status.missing_metrics,
        ready_in_seconds=ready_in,
        scrape_age_seconds=now - status.scraped_at if status.scraped_at is not None else None,
        model=model,
        engine=EngineTotals(
            preemptions=totals.preemptions,
            prompt_tokens=totals.prompt,
            generated_tokens=totals.generated,
            prefix_queried_tokens=totals.prefix_queried,
            prefix_hit_tokens=totals.prefix_hit,
        ),
        pace=monitor.pace,
    )


def _queue(name: str, snapshot: PoolState) -> QueueState:
    queue = snapshot.queue
    return QueueState(
        model=name,
        depth=queue.depth,
        bytes=queue.bytes,
        oldest_seconds=queue.oldest_age if queue.depth else None,
        saturation=snapshot.scaling.saturation,
        backlog_seconds=snapshot.scaling.backlog_seconds,
        waiting_without_endpoint=snapshot.scaling.waiting_without_endpoint,
    )
