"""The contenders: the policies in front of the engine that decide which request may go to it, and when."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from gateway.admission.commands import Command, Dispatch, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    EndpointId,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Progress,
    RequestId,
    Tick,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine
from gateway.simulation.oracle import Oracle

ENDPOINT = EndpointId("engine")


class Admission(Protocol):
    """The interface of `AdmissionController` and of its stand-ins."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle an event at `now` and return commands."""
        ...


@dataclass(frozen=True, slots=True)
class Contender:
    """One policy to compare."""

    name: str
    build: Callable[[Engine, Sequence[Job]], Admission]
    """Called once per simulation, with the engine and all requests. Only an oracle may look at them."""
    watermark: float | None = None
    """The engine's watermark, if it differs from the machine's."""
    reports: bool = True
    """Whether it wants the requests' progress."""
    polls: bool = True
    """Whether it wants scrapes of the engine."""
    delay: float = 0.0
    """Seconds to it, and back: it is behind a socket. Its scrapes are its own."""


class Direct:
    """Nothing in front of vLLM except, if given, its own `--max-num-queued-reqs`."""

    def __init__(self, engine: Engine, most: int | None) -> None:
        self._engine = engine
        self._most = most

    def handle(self, event: Event, _now: float) -> list[Command]:
        """Dispatch every request that the engine takes."""
        if not isinstance(event, Arrived):
            return []
        engine = self._engine
        if self._most is not None and len(engine.running) + len(engine.waiting) >= self._most:
            return [Reject(event.request, Outcome.QUEUE_FULL)]
        return [Dispatch(event.request, ENDPOINT)]


class ScrapedGate:
    """A 90/80 gate on the engine's own gauge. A scrape above `high` closes it and one below `low` opens it again."""

    def __init__(self, high: float, low: float) -> None:
        self._high = high
        self._low = low
        self._open = True
        self._waiting: deque[RequestId] = deque()

    def handle(self, event: Event, _now: float) -> list[Command]:
        """Dispatch every request while the gate is open."""
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


class Apart:
    """Gateways that know nothing of each other. Each decides for its own requests within its share of the engine.

    Requests are dealt to them in turn, as `deploy/nginx` does.
    """

    def __init__(self, cores: Sequence[Admission]) -> None:
        self._cores = cores
        self._wake_at = [inf] * len(cores)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Let each gateway handle what it hears of this event."""
        commands: list[Command] = []
        for number, core in enumerate(self._cores):
            heard = self._heard(event, number, now)
            if heard is None:
                continue
            if isinstance(heard, Tick):
                self._wake_at[number] = inf
            for command in core.handle(heard, now):
                if isinstance(command, WakeAt):
                    self._wake_at[number] = command.at
                else:
                    commands.append(command)
        wake_at = min(self._wake_at)
        if wake_at < inf:
            commands.append(WakeAt(wake_at))
        return commands

    def _heard(self, event: Event, number: int, now: float) -> Event | None:
        """What a gateway hears of an event; None for nothing. Requests are numbered in the order in which they came."""
        gateways = len(self._cores)
        match event:
            case Arrived() | Finished():
                return event if event.request % gateways == number else None
            case Progress():
                own = tuple(each for each in event.generated if each[0] % gateways == number)
                return Progress(own) if own else None
            case Tick():
                return event if self._wake_at[number] <= now else None
            case EndpointUp():
                return replace(event, capacity=event.capacity.part(1 / gateways))
            case _:
                return event


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


def kvgate(policy: Policy, delay: float = 0.0) -> Contender:
    """The admission core; `delay` seconds away if it is behind a socket."""
    name = f"kvgate {policy.bounds.value}"
    if delay:
        name += f", {1000 * delay:g} ms away"
    return Contender(name, lambda *_: AdmissionController(policy), delay=delay)


def apart(policy: Policy, gateways: int) -> Contender:
    """Several gateways with a core each, which decides within an equal share of the engine."""
    name = f"{gateways} with 1/{gateways} each"
    return Contender(name, lambda *_: Apart([AdmissionController(policy) for _ in range(gateways)]))


def oracle(ttft_target: float | None) -> Contender:
    """First come first served, with every length known. It drops requests that cannot have a first token in time."""
    return Contender("oracle", lambda engine, jobs: Oracle(engine, jobs, ttft_target), polls=False)


def watermarked(contender: Contender, machine: Machine) -> float:
    """The watermark the engine has with this contender."""
    return machine.watermark if contender.watermark is None else contender.watermark
