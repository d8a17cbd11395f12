"""Who is compared: what stands in front of the engine and decides who may go to it, and when."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.admission.commands import Command, Dispatch, Reject
from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, EndpointId, Event, Observed, RequestId
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine
from gateway.simulation.oracle import Oracle

ENDPOINT = EndpointId("engine")


class Admission(Protocol):
    """What `AdmissionController` is, and what stands in for it."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event that happened at `now`, and say what to do."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the compared."""

    name: str
    build: Callable[[Engine, Sequence[Job]], Admission]
    """Called once for each simulation, with the engine and all requests. Only an oracle may look at them."""
    watermark: float | None = None
    """The engine's, where it is another than the machine's."""
    reports: bool = True
    """Whether it wants to hear how far the requests are."""
    polls: bool = True
    """Whether it wants to hear what a scrape of the engine shows."""


class Direct:
    """Nothing in front of vLLM but, where told, its own `--max-num-queued-reqs`."""

    def __init__(self, engine: Engine, most: int | None) -> None:
        self._engine = engine
        self._most = most

    def handle(self, event: Event, _now: float) -> list[Command]:
        """Everybody goes, while the engine takes them."""
        if not isinstance(event, Arrived):
            return []
        engine = self._engine
        if self._most is not None and len(engine.running) + len(engine.waiting) >= self._most:
            return [Reject(event.request, Outcome.QUEUE_FULL)]
        return [Dispatch(event.request, ENDPOINT)]


class ScrapedGate:
    """90/80 on the engine's own gauge: closed by a scrape above `high`, opened again by one below `low`."""

    def __init__(self, high: float, low: float) -> None:
        self._high = high
        self._low = low
        self._open = True
        self._waiting: deque[RequestId] = deque()

    def handle(self, event: Event, _now: float) -> list[Command]:
        """While it is open everybody goes."""
        if isinstance(event, Observed) and event.kv_usage is not None:
            if event.kv_usage > self._high:
                self._open = False
            elif event.kv_usage < self._low:
                self._open = True
        elif isinstance(event, Arrived):
            self._waiting.append(event.request)
        if not self._open:
            return []
        commands: list[Command] = [Dispatch(request, ENDPOINT) for request in self._waiting]
        self._waiting.clear()
        return commands


def direct(watermark: float | None = None, max_queued: int | None = None) -> Contender:
    """VLLM alone, perhaps with a watermark, and with a bound on its requests, running and waiting."""
    name = "vllm"
    if watermark is not None:
        name += f", {watermark:.0%} watermark"
    if max_queued is not None:
        name += f", <= {max_queued}"
    return Contender(
        name, lambda engine, _: Direct(engine, max_queued), watermark=watermark, reports=False, polls=False
    )


def scraped(high: float = 0.9, low: float = 0.8) -> Contender:
    """The gate on scraped metrics alone."""
    return Contender(f"scraped {high:.0%}/{low:.0%}".replace("%", ""), lambda *_: ScrapedGate(high, low), reports=False)


def kvgate(policy: Policy, name: str | None = None) -> Contender:
    """The admission core."""
    return Contender(name or f"kvgate {policy.rule.value}", lambda *_: AdmissionController(policy))


def oracle(ttft_target: float | None) -> Contender:
    """First come first served by one who knows every length, and drops who cannot have a first token in time."""
    return Contender("oracle", lambda engine, jobs: Oracle(engine, jobs, ttft_target), polls=False)


def watermarked(contender: Contender, machine: Machine) -> float:
    """The watermark the engine has with this contender."""
    return machine.watermark if contender.watermark is None else contender.watermark
