"""Clients that come back, before the core and the simulated engine, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any

from gateway.admission.commands import Dispatch, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Progress,
    Tick,
    Verdict,
)
from gateway.admission.policy import Policy
from gateway.simulation.engine import Engine
from gateway.simulation.machine import Machine
from gateway.simulation.workload import Request

LATENCY = 0.005
"""Seconds between a client and the gateway."""


@dataclass(eq=False)
class Client:
    """Sends one request after the other, each until it is served or it has had enough of trying.

    Attributes:
        back: seconds after a refusal that told so many until it comes back.
        retries: how often; then it turns to its next request.
        begins: when it comes for the first time.
        draw: lengths of a request, prompt and output.
        limit: of the output.
        known: whether its requests are known when they come back.
    """

    back: Callable[[float], float]
    retries: float = inf
    flow: str = ""
    begins: float = 0.0
    band: int = 0
    draw: Callable[[Random], tuple[int, int]] = lambda random: (random.randint(100, 200), random.randint(100, 300))
    limit: int = 600
    known: bool = True
    given_up: int = 0
    told: list[tuple[float, float]] = field(default_factory=list)
    """When a request of it was refused for the first time, and what it was told."""
    ends: list[float] = field(default_factory=list)
    """When it was served."""
    generated: int = 0
    """Output tokens that it got."""
    tries: int = 0
    key: int = 0
    lengths: tuple[int, int] = (0, 0)


def polite(**settings) -> Client:
    """As the OpenAI SDK: it waits as told, and tries three times in all."""
    return Client(lambda told: told + 2 * LATENCY, **{"retries": 2, **settings})


def rude(**settings) -> Client:
    """Comes back after a second, whatever it is told."""
    return Client(lambda told: 1.0, **settings)


class Crowd:
    """Plays clients against a policy, see `play`."""

    def __init__(self, clients, machine: Machine, policy: Policy, seed: int = 1) -> None:
        self.clients = clients
        self.controller = AdmissionController(policy)
        self.engine = Engine(machine)
        self.machine = machine
        self.random = Random(seed)  # noqa: S311 - the same load every time
        self.numbers = count(1)
        self.bodies = count(1)
        self.coming: list[tuple[float, int, Client]] = []
        self.jobs: dict[int, Any] = {}
        self.wake_at = inf
        self.busy = 0.0
        """Seconds in which the engine worked."""
        self.report_at, self.poll_at = 0.04, 1.0

    def play(self, seconds: float):
        """Until no more requests begin."""
        machine, engine = self.machine, self.engine
        capacity = Capacity(machine.max_model_len, machine.blocks, machine.block_size, machine.max_num_seqs)
        self.tell(EndpointUp("engine", capacity), 0.0)
        for client in self.clients:
            self.begin(client, client.begins)
        now = 0.0
        while now < seconds:
            now = max(now, self.next())
            self.happen(now)
            while not engine.idle and now < seconds:
                end = engine.begin(now)
                while self.next() < end:
                    self.happen(self.next())
                self.busy += end - now
                now = end
                for job in engine.complete(now):
                    client = self.jobs.pop(job.number)[0]
                    client.ends.append(now)
                    client.generated += job.output
                    self.tell(Finished(job.number, Verdict.DONE, job.output), now)
                    self.begin(client, now + LATENCY)
        return self

    def begin(self, client, at):
        client.key, client.tries = next(self.bodies) if client.known else 0, 0
        client.lengths = client.draw(self.random)
        heappush(self.coming, (at, next(self.numbers), client))

    def next(self):
        return min(self.coming[0][0] if self.coming else inf, self.report_at, self.poll_at, self.wake_at)

    def happen(self, now):
        engine = self.engine
        while self.coming and self.coming[0][0] <= now:
            _, number, client = heappop(self.coming)
            prompt, output = client.lengths
            job = engine.job(number, Request(now, prompt, output, client.limit))
            self.jobs[number] = (client, job)
            self.tell(
                Arrived(number, Demand((prompt,), client.limit), band=client.band, flow=client.flow, key=client.key),
                now,
            )
        if self.wake_at <= now:
            self.wake_at = inf
            self.tell(Tick(), now)
        if self.report_at <= now:
            self.report_at += 0.04
            if progress := engine.progress():
                self.tell(Progress(progress), now)
        if self.poll_at <= now:
            self.poll_at += 1.0
            usage = engine.gauge_used / engine.pool.total
            tokens = float(engine.tokens)
            self.tell(Observed("engine", now, usage, engine.gauge_running, engine.gauge_waiting, tokens, 0.0), now)

    def tell(self, event: Event, now: float):
        for command in self.controller.handle(event, now):
            match command:
                case Dispatch():
                    self.engine.submit(self.jobs[command.request][1], now)
                case WakeAt():
                    self.wake_at = command.at
                case Reject():
                    client = self.jobs.pop(command.request)[0]
                    self.refused(client, command.retry_after, now)

    def refused(self, client, told, now):
        if not client.tries:
            client.told.append((now, told))
        if client.tries >= client.retries:
            client.given_up += 1
            self.begin(client, now + 1.0)
            return
        client.tries += 1
        heappush(self.coming, (now + client.back(told), next(self.numbers), client))
