"""The comparison of all contenders on one workload at one offered load."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.admission.policy import Bounds, Policy
from gateway.simulation.contenders import Contender, apart, direct, kvgate, oracle, scraped
from gateway.simulation.machine import Machine
from gateway.simulation.result import Result, Slo
from gateway.simulation.simulate import simulate
from gateway.simulation.workload import Workload

ROOM = 0.8
"""Share of the TTFT target that a queue inside the engine may cost, for a careful operator's bound on requests."""

SOCKET = (0.0001, 0.0003)
"""Seconds to a core behind a socket: the least and the most."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The oracle's throughput on a machine that never lacks work of this kind."""

    requests_per_second: float
    in_flight: float
    """Mean requests in the engine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one load."""

    load: float
    result: Result
    slo: Slo
    best: int
    """The oracle's tokens of requests in SLO."""

    @property
    def relative(self) -> float:
        """Its tokens of requests in SLO, as a share of the oracle's."""
        return self.result.goodput(self.slo) / self.best if self.best else 1.0

    @property
    def goodput_rate(self) -> float:
        """Tokens of requests in SLO per second of arrivals."""
        result = self.result
        return result.goodput(self.slo) / (result.jobs[-1].request.arrival or result.seconds or 1.0)

    def as_json(self) -> dict[str, Any]:
        """The figures, for other programs. Seconds, tokens and shares."""
        result, slo = self.result, self.slo
        return {
            "contender": result.contender,
            "load": self.load,
            "requests": len(result.jobs),
            "preemptions": result.preemptions,
            "preemptions_per_request": result.preemption_rate,
            "tokens_per_second": result.throughput,
            "in_slo": result.in_slo(slo),
            "goodput_tokens": result.goodput(slo),
            "goodput_of_oracle": self.relative,
            "refused": result.refused,
            "ttft_p50": result.ttft(0.5),
            "ttft_p99": result.ttft(0.99),
            "worst_gap_p99": result.worst_gap(0.99),
            "kv_usage": result.kv_usage,
            "fairness": result.fairness,
            "seconds": result.seconds,
        }


def capacity(workload: Workload, machine: Machine) -> Capacity:
    """Offered load 1.0: the oracle's throughput when all requests arrive at the start and none is dropped."""
    backlog = tuple(replace(request, arrival=0.0) for request in workload)
    result = simulate(backlog, machine, oracle(None))
    middle = result.samples[len(result.samples) // 10 : len(result.samples) * 9 // 10] or result.samples
    in_flight = sum(sample.running + sample.waiting for sample in middle) / max(1, len(middle))
    return Capacity(result.saturated_rate(), in_flight)


def contenders(policy: Policy, slo: Slo, known: Capacity) -> tuple[Contender, ...]:
    """The default contenders.

    vLLM's bound on its requests is that of an operator who knows the workload: the requests that run at capacity, plus
    those that can start within the target.
    """
    most = max(1, round(known.in_flight + ROOM * slo.ttft * known.requests_per_second))
    return (
        direct(),
        direct(watermark=0.05),
        direct(watermark=0.05, max_queued=most),
        scraped(policy.kv_high, policy.kv_low),
        *(kvgate(replace(policy, bounds=bounds)) for bounds in Bounds),
    )


def together_and_apart(policy: Policy, gateways: Sequence[int]) -> tuple[Contender, ...]:
    """One core that decides for all gateways, beside as many gateways with a core and a share of the engine each."""
    together = [kvgate(policy, delay) for delay in (0.0, *SOCKET)]
    return (*together, *(apart(policy, number) for number in gateways))


def compare(
    workload: Workload, machine: Machine, compared: Sequence[Contender], slo: Slo, load: float
) -> tuple[Row, ...]:
    """Play a workload, at its own rate, against the oracle and all contenders. `load` is that rate as a load."""
    best = simulate(workload, machine, oracle(slo.ttft))
    results = [simulate(workload, machine, contender) for contender in compared]
    return tuple(Row(load, result, slo, best.goodput(slo)) for result in (*results, best))
