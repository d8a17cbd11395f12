"""The result of a simulation, and its figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.placing.request import service
from gateway.simulation.engine import Job


@dataclass(frozen=True, slots=True)
class Slo:
    """The limits for a request to count. Seconds."""

    ttft: float = 5.0
    """To its first token."""
    gap: float = 0.5
    """The most between two of its tokens."""

    def met(self, job: Job) -> bool:
        """Whether a request met it."""
        first = job.first_token_at
        return (
            job.ended_at is not None
            and first is not None
            and first - job.request.arrival <= self.ttft
            and job.worst_gap <= self.gap
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one time."""

    at: float
    kv_usage: float
    running: int
    waiting: int
    """Requests that wait inside the engine."""
    queued: int
    """Requests that wait in front of it."""


@dataclass(frozen=True, slots=True)
class Result:
    """One workload against one contender."""

    contender: str
    jobs: tuple[Job, ...]
    """Every request, in the order of arrival."""
    seconds: float
    """From the first arrival to the last end."""
    preemptions: int
    tokens: int
    """Generated."""
    samples: tuple[Sample, ...]

    @property
    def refused(self) -> int:
        """Number of refused requests."""
        return sum(1 for job in self.jobs if job.refused is not None)

    @property
    def throughput(self) -> float:
        """Generated tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def preemption_rate(self) -> float:
        """Preemptions per request."""
        return self.preemptions / len(self.jobs)

    @property
    def kv_usage(self) -> float:
        """Mean, over the time in which requests arrived."""
        last = self.jobs[-1].request.arrival
        usages = [sample.kv_usage for sample in self.samples if sample.at <= last]
        return sum(usages) / len(usages) if usages else 0.0

    def in_slo(self, slo: Slo) -> float:
        """Share of all requests, including refused ones."""
        return sum(1 for job in self.jobs if slo.met(job)) / len(self.jobs)

    def goodput(self, slo: Slo) -> int:
        """Generated tokens of the requests in SLO."""
        return sum(job.output for job in self.jobs if slo.met(job))

    def ttft(self, quantile: float) -> float | None:
        """Seconds to the first token, of requests that had one."""
        return _quantile(
            [job.first_token_at - job.request.arrival for job in self.jobs if job.first_token_at is not None], quantile
        )

    def worst_gap(self, quantile: float) -> float | None:
        """Seconds of the longest gap of each request that ended."""
        return _quantile([job.worst_gap for job in self.jobs if job.ended_at is not None], quantile)

    @property
    def fairness(self) -> float:
        """What the flow that came off worst was served, as a share of what it was owed of all that was served.

        A flow is owed what it asked for, or as much as any other if there is not enough for all (max-min). 1 is fair.
        """
        asked: Counter[str] = Counter()
        served: Counter[str] = Counter()
        for job in self.jobs:
            tokens = round(service(job.prompt, job.output))
            asked[job.request.flow] += tokens
            served[job.request.flow] += tokens if job.ended_at is not None else 0
        left, worst = float(served.total()), 1.0
        for number, (flow, tokens) in enumerate(reversed(asked.most_common())):
            owed = min(tokens, left / (len(asked) - number))
            left -= owed
            if owed:
                worst = min(worst, served[flow] / owed)
        return worst

    def saturated_rate(self) -> float:
        """Requests per second from the tenth to the ninetieth percent of ends: the capacity, if work never lacked."""
        ends = sorted(job.ended_at for job in self.jobs if job.ended_at is not None)
        low, high = len(ends) // 10, len(ends) * 9 // 10
        return (high - low) / (ends[high] - ends[low])


def _quantile(values: Sequence[float], quantile: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
