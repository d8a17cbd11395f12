"""PURE. The parts of a picture, from what a core tells of itself.

`epoch` is the time at which the core's clock was zero, on the clock of the picture.
"""

from collections.abc import Iterable, Mapping
from heapq import nlargest

from msgspec import structs

from gateway.admission.snapshot import EndpointSnapshot, FlowSnapshot, RequestSnapshot
from gateway.ops.pictures.digest import GAP_EDGES, TTFT_EDGES, Ended, OfModel, quantiles
from gateway.ops.pictures.picture import MOST_FLOWS, Flow, Model, Request, Split


def split(snapshot: EndpointSnapshot) -> Split | None:
    """What an endpoint's KV cache is used for; None while its size is not known."""
    blocks = snapshot.capacity.kv_blocks
    if blocks is None:
        return None
    beyond = snapshot.beyond_blocks
    shared = min(snapshot.shared_blocks, snapshot.used_blocks)
    running = max(0.0, snapshot.used_blocks - shared + min(0.0, beyond))
    foreign = max(0.0, beyond)
    held = running + shared + foreign
    promised = max(0.0, (snapshot.forecast_usage or 0.0) * blocks - held)
    parts = (
        round(part / blocks, 4) for part in (running, shared, foreign, promised, max(0.0, blocks - held - promised))
    )
    return Split(**dict(zip(("running", "shared", "foreign", "promised", "free"), parts, strict=True)))


def queue(
    name: str,
    depth: int,
    oldest: float | None,
    waiting: Iterable[FlowSnapshot],
    recent: OfModel,
    *,
    ttft_target: float | None,
    weights: Mapping[str, float],
    epoch: float,
) -> Model:
    """A model's queue and what became of its requests. `oldest` is when the oldest that waits arrived."""
    return Model(
        model=name,
        waiting=depth,
        oldest=None if oldest is None else round(epoch + oldest, 1),
        flows=_flows(waiting, recent.served, weights, epoch),
        ttft_target=ttft_target,
        ttft=quantiles(recent.ttft, TTFT_EDGES),
        gap=quantiles(recent.gap, GAP_EDGES),
        outcomes=recent.outcomes,
        drifted=recent.drifted,
    )


def _flows(
    waiting: Iterable[FlowSnapshot], served: Mapping[str, float], weights: Mapping[str, float], epoch: float
) -> tuple[Flow, ...]:
    """Those that wait, then those that were served the most."""
    flows = [
        Flow(
            band=each.band,
            flow=each.flow,
            weight=each.weight,
            waiting=each.waiting,
            oldest=round(epoch + each.oldest_at, 1),
            predicted_wait=None if each.predicted_wait is None else round(each.predicted_wait, 1),
        )
        for each in waiting
    ]
    known = {flow.flow for flow in flows}
    others = ((service, name) for name, service in served.items() if name not in known)
    most = nlargest(MOST_FLOWS - len(flows), others)
    flows += [Flow(flow=name, weight=weights.get(name, 1.0)) for _, name in most]
    total, heavy = sum(served.values()), sum({flow.flow: flow.weight for flow in flows}.values())
    return tuple(
        structs.replace(
            flow,
            service=round(served.get(flow.flow, 0.0) / total, 4) if total else None,
            due=round(flow.weight / heavy, 4),
        )
        for flow in flows
    )


def live(model: str, snapshot: RequestSnapshot, epoch: float) -> Request:
    """A request that waits or runs."""
    sent, ends = snapshot.sent_at, snapshot.ends_at
    return Request(
        key=str(snapshot.request),
        phase="waiting" if sent is None else "running",
        model=model,
        flow=snapshot.flow,
        band=snapshot.band,
        prompt=snapshot.prompt_tokens,
        generated=snapshot.generated,
        expected=snapshot.expected or None,
        held=snapshot.held_blocks,
        came=round(epoch + snapshot.arrived_at, 2),
        waited=None if sent is None else round(max(0.0, sent - snapshot.arrived_at), 2),
        ends=None if ends is None else round(epoch + ends, 1),
        endpoint=snapshot.endpoint,
    )


def gone(one: Ended, ended: float) -> Request:
    """A request that ended at this time."""
    return Request(
        key=f"{ended:.3f} {one.request_id}" if one.number is None else str(one.number),
        phase="ended",
        model=one.model,
        flow=one.flow,
        prompt=one.prompt,
        generated=one.generated,
        came=round(ended - one.took, 2),
        waited=round(one.waited, 2),
        first=None if one.first is None else round(one.first, 3),
        ends=round(ended, 2),
        endpoint=one.endpoint,
        outcome=one.outcome,
        request_id=one.request_id,
    )


def share(value: float | None) -> float | None:
    """A share as it is sent."""
    return None if value is None else round(value, 4)


def rate(value: float) -> float | None:
    """A rate as it is sent; 0 is one that is not known."""
    return round(value, 1) or None
