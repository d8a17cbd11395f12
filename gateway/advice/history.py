"""The history of a kvgate's models, from a running kvgate or its event log."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from engine.plan.histogram import rank_of
from engine.plan.samples import Samples
from engine.plan.traffic import TrafficError, from_exposition
from gateway.admission.events import EndpointId, Prefix
from gateway.admission.outcomes import Outcome
from gateway.advice.rules import Alternative, EndpointPast, Past
from gateway.advice.traffic import client_of, fetch, lengths
from gateway.ops.pace import Pace, Work, pace
from gateway.ops.state import EndpointState, GatewayState
from gateway.record.lines import EventLogError
from gateway.record.served import Recording, Served, Watched, recording
from gateway.record.whatif import Fate, compare, waits

ALTERNATIVES = (
    ("admission.kv_high=0.95", "admission.kv_low=0.85"),
    ("admission.kv_high=0.85", "admission.kv_low=0.75"),
    ("admission.policy=hysteresis",),
    ("admission.policy=forecast",),
    ("admission.policy=both",),
)
"""Settings to try on a recorded load. Those that change nothing are skipped."""
PERCENT = 100


class HistoryError(Exception):
    """No history can be read. The message names the source and what was expected."""


def running(url: str, key: str | None) -> tuple[Past, ...]:
    """The history of every model of a running kvgate.

    Args:
        url: its base URL.
        key: its admin key, if it has one.

    Raises:
        HistoryError: it cannot be reached, refuses the request, or is no kvgate.
    """
    base = url.rstrip("/")
    address = f"{base}/metrics"
    try:
        with client_of(base) as client:
            state = GatewayState.model_validate_json(fetch(client, base, "/kvgate/state", key))
            metrics = fetch(client, base, "/metrics", key)
        samples = Samples(metrics)
        return tuple(_running(address, queue.model, state, metrics, samples) for queue in state.queues)
    except TrafficError as error:
        raise HistoryError(str(error)) from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise HistoryError(f"{base}: expected a kvgate of this version, its answer cannot be read: {reason}") from None


def _running(address: str, model: str, state: GatewayState, metrics: str, samples: Samples) -> Past:
    mine = [endpoint for endpoint in state.endpoints if endpoint.model == model]
    traffic = from_exposition(address, metrics, now=time.time(), model=model)
    queried = sum(endpoint.engine.prefix_queried_tokens or 0 for endpoint in mine)
    hit = sum(endpoint.engine.prefix_hit_tokens or 0 for endpoint in mine)
    waiting = samples.histogram("kvgate_queue_depth_over_time", {"model": model})
    nobody = sum(bucket.count for bucket in waiting.buckets if bucket.high == 0)
    seen = samples.total("kvgate_tokens_total", {"model": model, "kind": "completion"}) or 0.0
    generated = sum(endpoint.engine.generated_tokens or 0 for endpoint in mine)
    ended = samples.by("outcome", "kvgate_requests_total", {"model": model})
    return Past(
        model,
        replace(traffic, hit_rate=hit / queried if queried else None),
        endpoints=tuple(_endpoint(endpoint, samples) for endpoint in mine),
        outcomes={name: round(count) for name, count in ended.items()},
        returns=round(samples.total("kvgate_returns_total", {"model": model}) or 0.0),
        busy=1 - nobody / waiting.count if waiting.count else None,
        around=max(0.0, 1 - seen / generated) if generated else None,
    )


def _endpoint(endpoint: EndpointState, samples: Samples) -> EndpointPast:
    usage = samples.histogram("kvgate_kv_usage_over_time", {"endpoint": endpoint.id}, scale=PERCENT).distribution()
    kv = endpoint.kv
    return EndpointPast(
        endpoint.id,
        max_model_len=endpoint.max_model_len,
        sequence_limit=endpoint.max_num_seqs,
        kv_tokens=kv.blocks * kv.block_size if kv is not None and kv.blocks is not None else None,
        peak_sequences=endpoint.peak_sequences,
        usage_p99=usage.p99.high / PERCENT if usage is not None else None,
        usage_most=usage.most.high / PERCENT if usage is not None else None,
        preemptions=endpoint.engine.preemptions,
        pace=endpoint.pace,
    )


def recorded(file: Path) -> tuple[Past, ...]:
    """The history of every model of an event log.

    Raises:
        HistoryError: the file is no event log.
        ConfigurationError: its settings are not this version's.
    """
    try:
        found = recording(file)
        alternatives = _alternatives(file, found)
    except EventLogError as error:
        raise HistoryError(str(error)) from None
    models = dict.fromkeys([*(each.model for each in found.endpoints.values()), *(one.model for one in found.requests)])
    return tuple(_recorded(file, model, found, alternatives.get(model, ())) for model in models)


def _recorded(file: Path, model: str, found: Recording, alternatives: Sequence[Alternative]) -> Past:
    requests = [one for one in found.requests if one.model == model]
    watched = {name: each for name, each in found.endpoints.items() if each.model == model}
    outcomes = Counter(str(one.refused) for one in requests if one.refused is not None)
    outcomes[Outcome.COMPLETED] = sum(one.done for one in requests)
    generated = sum(each.generated for each in watched.values())
    return Past(
        model,
        lengths(str(file), requests),
        endpoints=tuple(_watched(name, each, requests) for name, each in watched.items()),
        outcomes=outcomes,
        returns=sum(one.came_back for one in requests),
        busy=_busy(requests, found.seconds),
        around=max(0.0, 1 - sum(one.generated for one in requests) / generated) if generated else None,
        shareable=_shareable(requests),
        alternatives=tuple(alternatives),
    )


def _watched(name: EndpointId, watched: Watched, requests: Sequence[Served]) -> EndpointPast:
    capacity, usages = watched.capacity, sorted(watched.usages)
    return EndpointPast(
        name,
        max_model_len=capacity.max_model_len,
        sequence_limit=capacity.max_num_seqs,
        kv_tokens=capacity.kv_blocks * capacity.block_size if capacity.kv_blocks is not None else None,
        peak_sequences=watched.peak_sequences,
        usage_p99=usages[rank_of(0.99, len(usages)) - 1] if usages else None,
        usage_most=usages[-1] if usages else None,
        preemptions=watched.preemptions if watched.counts_preemptions else None,
        pace=_pace(watched, [one for one in requests if one.endpoint == name]),
    )


def _pace(watched: Watched, requests: Iterable[Served]) -> Pace | None:
    """The change of an endpoint's pace over its current time in service."""
    since = watched.up_since
    if since is None:
        return None
    work = [
        Work(one.dispatched_at, one.ended_at, one.demand.longest_prompt, one.generated / one.demand.sequences, one.done)
        for one in requests
        if one.dispatched_at is not None and one.dispatched_at >= since
    ]
    return pace(work, list(zip(watched.used_at, watched.usages, strict=True)))


def _busy(requests: Sequence[Served], seconds: float) -> float | None:
    """The share of time with a request waiting."""
    if not seconds:
        return None
    total, until = 0.0, 0.0
    for one in requests:  # in order of arrival
        left = one.ended_at if one.dispatched_at is None else one.dispatched_at
        end = seconds if left is None else left
        total += max(0.0, end - max(until, one.arrived_at))
        until = max(until, end)
    return total / seconds


def _shareable(requests: Sequence[Served]) -> float | None:
    """The share of prompt tokens that repeat the beginning of an earlier prompt; None if no beginnings are recorded."""
    known: set[tuple[int, int]] = set()
    shared = total = 0
    for one in requests:
        if one.prefix:
            total += one.demand.longest_prompt
            shared += _common(one.prefix, known)
            known.update(one.prefix)
    return shared / total if total else None


def _common(prefix: Prefix, known: set[tuple[int, int]]) -> int:
    """Tokens of the longest beginning seen before."""
    return max((part[0] for part in prefix if part in known), default=0)


def _alternatives(file: Path, found: Recording) -> dict[str, list[Alternative]]:
    """The results of other settings, by model, those that ran first."""
    results: dict[str, list[Alternative]] = {}
    for changes in ALTERNATIVES:
        laid_over = dict(_setting(change) for change in changes)
        ran = {} if found.started is None else found.started.admission
        if all(ran.get(name) == value for name, value in laid_over.items()):
            continue
        compared = compare(file, laid_over)
        models = compared.replayed.models
        for model in dict.fromkeys(models.values()):
            pools = {key for key, name in models.items() if name == model}
            if model not in results:
                results[model] = [_outcome((), (fate for (key, _), fate in compared.recorded.items() if key in pools))]
            fates = (fate for (key, _), fate in compared.changed.items() if key in pools)
            results[model].append(_outcome(changes, fates))
    return results


def _setting(change: str) -> tuple[str, Any]:
    name, _, value = change.removeprefix("admission.").partition("=")
    return name, yaml.safe_load(value)


def _outcome(changes: tuple[str, ...], fates: Iterable[Fate]) -> Alternative:
    waited = waits(fates)
    return Alternative(changes, len(waited), waited[rank_of(0.99, len(waited)) - 1] if waited else 0.0)
