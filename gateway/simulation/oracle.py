"""The best that first come first served can do: admission that knows how long every answer will be."""

from collections import deque
from collections.abc import Sequence

from gateway.admission.commands import Command, Dispatch, Reject
from gateway.admission.events import Arrived, EndpointId, Event
from gateway.admission.outcomes import Outcome
from gateway.simulation.engine import Engine, Job


class Oracle:
    """Lets the first in line go as soon as the peak of all that is in flight, and it, fits the cache.

    The peak is that of the Past-Future scheduler (arXiv 2507.10150) with true lengths, counted in blocks.
    """

    def __init__(self, engine: Engine, jobs: Sequence[Job], ttft_target: float | None) -> None:
        self._engine = engine
        self._jobs = jobs
        self._target = ttft_target
        self._queue: deque[Job] = deque()
        self._in_flight: list[Job] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event as a moment to look again: what it says the oracle knows."""
        if isinstance(event, Arrived):
            self._queue.append(self._jobs[event.request])
        commands: list[Command] = []
        queue = self._queue
        if not queue:
            return commands
        self._in_flight = [job for job in self._in_flight if job.ended_at is None]
        while queue:
            job = queue[0]
            if self._late(job, now):
                commands.append(Reject(job.number, Outcome.QUEUE_TIMEOUT))
            elif self._fits(job):
                commands.append(Dispatch(job.number, EndpointId("engine")))
                self._in_flight.append(job)
            else:
                break
            queue.popleft()
        return commands

    def _late(self, job: Job, now: float) -> bool:
        """Whether its first token would come too late even if it went now."""
        if self._target is None:
            return False
        machine = self._engine.machine
        backlog = job.prompt
        for other in reversed(self._in_flight):
            if other.joined:
                break
            backlog += other.prompt + other.generated - other.computed
        steps = -(-backlog // machine.max_num_batched_tokens)
        prefill = steps * machine.step.base + backlog * machine.step.per_prefill_token
        return now + prefill > job.request.arrival + self._target

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
        # Who has at least so many tokens to go holds, when so many have come, all of its prompt and output but the
        # tokens that remain then.
        held = 0
        shared: dict[int, int] = {}
        ends: list[int] = []
        for remaining, other in flights:
            ends.append(other.prompt + other.output - remaining)
            group = other.request.group
            if group is not None and other.request.shared and engine.machine.prefix_caching:
                leading = min(other.request.shared, other.prompt - 1) // block
                shared[group] = max(shared.get(group, 0), leading)
                held -= leading
            total = sum([-(-(had + remaining) // block) for had in ends]) + held + sum(shared.values())
            if total > blocks:
                return False
        return True


def _remaining(flight: tuple[int, Job]) -> int:
    return flight[0]
