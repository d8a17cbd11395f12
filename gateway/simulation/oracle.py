"""The oracle: first come first served at its best, knowing the length of every answer."""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from math import inf

from gateway.admission.commands import Command, Dispatch, Reject
from gateway.admission.events import Arrived, EndpointId, Event
from gateway.admission.outcomes import Outcome
from gateway.simulation.blocks import Chain
from gateway.simulation.engine import Engine, Job


class Oracle:
    """Dispatches the first in line as soon as the cache fits the peak of it and all requests in flight.

    The peak is that of the Past-Future scheduler (arXiv 2507.10150), with true lengths, in blocks.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], ttft_target: float | None) -> None:
        self._engine = engine
        self._jobs = jobs
        self._target = ttft_target
        self._queue: deque[Job] = deque()
        self._in_flight: list[Job] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        """Decide again at an event. The oracle already knows its content."""
        if isinstance(event, Arrived):
            self._queue.append(self._jobs[event.request])
        commands: list[Command] = []
        queue = self._queue
        if not queue:
            return commands
        self._in_flight = [job for job in self._in_flight if job.ended_at is None]
        while queue:
            job = queue[0]
            first_token, others_deadline = self._first_token(job, now)
            if first_token > self._deadline(job):
                commands.append(Reject(job.number, Outcome.QUEUE_TIMEOUT))
            elif first_token <= others_deadline and self._fits(job):
                commands.append(Dispatch(job.number, EndpointId("engine")))
                self._in_flight.append(job)
            else:
                break
            queue.popleft()
        return commands

    def _first_token(self, job: Job, now: float) -> tuple[float, float]:
        """The time of its first token if dispatched now, and the deadline of requests that its prompt would delay."""
        engine = self._engine
        machine, cost, decoding = engine.machine, engine.machine.step, len(engine.running)
        batch = max(1, machine.max_num_batched_tokens - decoding)
        backlog = 0
        ends: list[tuple[int, Job]] = []
        for other in [*takewhile(_prefills, reversed(self._in_flight))][::-1]:
            backlog += engine.to_prefill(other)
            ends.append((-(-backlog // batch), other))
        backlog += engine.to_prefill(job)
        steps = -(-backlog // batch)
        step = cost.base + cost.per_sequence * decoding + cost.per_context_token * (engine.context + backlog)
        first_token = max(now, engine.busy_until) + steps * step + backlog * cost.per_prefill_token
        return first_token, min([self._deadline(other) for end, other in ends if end == steps], default=inf)

    def _deadline(self, job: Job) -> float:
        return inf if self._target is None else job.request.arrival + self._target

    def _fits(self, job: Job) -> bool:
        engine = self._engine
        if len(self._in_flight) >= engine.machine.max_num_seqs:
            return False
        blocks, block = engine.pool.total, engine.machine.block_size
        flights = sorted(
            [(other.output - engine.generated(other), other) for other in (*self._in_flight, job)],
            key=_remaining,
            reverse=True,
        )
        # After as many further tokens as one request still lacks, every request that lacks at least as many holds that
        # many more than now.
        had: list[int] = []
        tokens = saved = 0
        shared: dict[Chain, int] = {}
        for remaining, other in flights:
            had.append(other.prompt + other.output - remaining)
            tokens += had[-1]
            for chain, high in other.shared:
                saved += min(high, shared.get(chain, chain.start)) - chain.start
                shared[chain] = max(high, shared.get(chain, high))
            peak = tokens + len(had) * remaining
            room = (blocks + saved) * block
            if peak > room:
                return False
            # Count partly filled blocks one by one only if they decide.
            if peak + len(had) * block > room and sum([-(-(own + remaining) // block) for own in had]) > room // block:
                return False
        return True


def _prefills(job: Job) -> bool:
    return not job.joined


def _remaining(flight: tuple[int, Job]) -> int:
    return flight[0]
