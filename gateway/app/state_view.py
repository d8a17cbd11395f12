"""The view of the gateway's state: of the admission cores and the monitors, in the words of `/kvgate/state`."""

from collections.abc import Callable

import gateway
from gateway.admission.events import EndpointId
from gateway.admission.snapshot import EndpointSnapshot as Admitted
from gateway.admission.snapshot import PoolState
from gateway.config.settings import Settings
from gateway.ops.state import (
    CountingState,
    EndpointState,
    EngineTotals,
    GateState,
    GatewayState,
    KvState,
    NotCountedHere,
    QueueState,
    UnknownEndpointError,
)
from gateway.pools.directory import Directory, Endpoint, Pool


class StateView:
    """Reads the state from its owners when asked; implements `gateway.ops.state.StateSource`.

    Args:
        settings: those in force.
        directory: of endpoints and pools.
        clock: monotonic seconds.

    Attributes:
        draining: whether the gateway is shutting down.
    """

    def __init__(self, settings: Callable[[], Settings], directory: Directory, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self.draining = False

    def state(self) -> GatewayState:
        """The gateway now."""
        now = self._clock()
        pools = {name: pool.driver.controller.snapshot(now) for name, pool in self._directory.pools.items()}
        admitted = {state.id: state for snapshot in pools.values() for state in snapshot.endpoints}
        return GatewayState(
            version=gateway.__version__,
            mode=self._settings().admission.mode,
            draining=self.draining,
            ready=self._directory.ever_healthy and not self.draining,
            endpoints=tuple(
                _endpoint(endpoint, admitted.get(endpoint.id), now) for endpoint in self._directory.endpoints.values()
            ),
            queues=tuple(_queue(name, snapshot) for name, snapshot in pools.items()),
            counting=tuple(_counting(pool) for pool in self._directory.pools.values()),
        )

    def drain(self, endpoint_id: str) -> None:
        """Send no new requests to an endpoint.

        Raises:
            UnknownEndpointError: there is none of this id.
        """
        self._find(endpoint_id).monitor.drain()

    def undrain(self, endpoint_id: str) -> None:
        """Take a drained endpoint back.

        Raises:
            UnknownEndpointError: there is none of this id.
        """
        self._find(endpoint_id).monitor.undrain()

    def _find(self, endpoint_id: str) -> Endpoint:
        endpoint = self._directory.endpoints.get(EndpointId(endpoint_id))
        if endpoint is None:
            raise UnknownEndpointError(endpoint_id)
        return endpoint


def _endpoint(endpoint: Endpoint, admitted: Admitted | None, now: float) -> EndpointState:
    status = endpoint.monitor.status
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
        id=endpoint.id,
        url=endpoint.base_url,
        healthy=status.healthy,
        state=status.state.value,
        reason=status.reason,
        since_seconds=max(0.0, now - status.since),
        gate=gate,
        kv=kv,
        in_flight=admitted.in_flight if admitted is not None else 0,
        sequences=admitted.sequences if admitted is not None else 0,
        peak_sequences=admitted.peak_sequences if admitted is not None else 0,
        max_num_seqs=admitted.sequence_limit if admitted is not None else None,
        max_model_len=capacity.max_model_len if capacity is not None else None,
        version=identity.version if identity is not None else None,
        models=(*identity.names, *identity.loras) if identity is not None else (),
        missing_metrics=status.missing_metrics,
        scrape_age_seconds=now - status.scraped_at if status.scraped_at is not None else None,
        model=endpoint.pool.name if endpoint.pool is not None else None,
        engine=EngineTotals(
            preemptions=totals.preemptions,
            prompt_tokens=totals.prompt,
            generated_tokens=totals.generated,
            prefix_queried_tokens=totals.prefix_queried,
            prefix_hit_tokens=totals.prefix_hit,
        ),
        pace=endpoint.monitor.pace,
    )


def _queue(name: str, snapshot: PoolState) -> QueueState:
    queue = snapshot.queue
    return QueueState(
        model=name,
        depth=queue.depth,
        bytes=queue.bytes,
        oldest_seconds=queue.oldest_age if queue.depth else None,
    )


def _counting(pool: Pool) -> CountingState:
    counter = pool.counter
    exceptions = tuple(
        NotCountedHere(api=kind.api, feature=kind.feature, by=kind.source, reason=kind.reason)
        for kind in counter.not_here()
    )
    return CountingState(model=pool.name, mode=counter.mode, reason=counter.reason, not_here=exceptions)
