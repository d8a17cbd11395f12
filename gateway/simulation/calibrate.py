"""The calibration of a real engine's step times from its answer times on one workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.admission.events import RequestId
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.workload import Workload

ROUNDS = 10
"""Iterations. Each finds the step times for a schedule, then the schedule for them. Half as many are enough."""
STEP_TERMS = 4

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer times of one request, in seconds on the clock of the workload's arrivals."""

    first_token_at: float
    ended_at: float


def calibrated(workload: Workload, machine: Machine, answers: Sequence[Answer]) -> Machine:
    """The machine with the step times that make the model answer like the engine, with nothing in front of either.

    The model gives the engine's work between a request's first and last token: steps, sequences in them, prefilled
    tokens, tokens of context. For requests that found the engine idle it also gives the work up to the first token. The
    time a request spends outside of the engine is estimated along with it and dropped. A least-squares fit on relative
    errors does the rest.

    The workload should leave the engine idle and busy in turn, with prompts and outputs of many lengths: the fit finds
    only what the workload exercises. It should not overload the engine: a slightly longer step would then change the
    whole schedule.
    """
    for _ in range(ROUNDS):
        rows, seconds = [], []
        for (first, rest), request, answer in zip(_work(workload, machine), workload, answers, strict=True):
            if first is not None:
                rows.append((*first, 1.0))
                seconds.append(answer.first_token_at - request.arrival)
            if any(rest):
                rows.append((*rest, 0.0))
                seconds.append(answer.ended_at - answer.first_token_at)
        found = _least_squares(rows, seconds)
        machine = replace(machine, step=StepTime(*found[:STEP_TERMS]))
    return machine


def _work(workload: Workload, machine: Machine) -> list[tuple[Row | None, Row]]:
    """The engine's work up to each request's first token, if it was idle before, and from there to its end."""
    engine = Engine(machine)
    jobs = [engine.job(RequestId(number), request) for number, request in enumerate(workload)]
    left = list(reversed(jobs))
    total: Row = (0.0,) * STEP_TERMS
    began: dict[Job, Row] = {}
    first: dict[Job, Row] = {}
    work: list[tuple[Row | None, Row]] = [(None, total)] * len(jobs)
    now = 0.0
    while left or not engine.idle:
        if engine.idle:
            now = max(now, left[-1].request.arrival)
            began[left[-1]] = total
        while left and left[-1].request.arrival <= now:
            engine.submit(left.pop(), now)
        now = engine.begin(now)
        total = tuple(had + new for had, new in zip(total, (1, *engine.batch), strict=True))
        done = engine.complete(now)
        for job in (*engine.running, *done):
            if job.first_token_at == now:
                first[job] = total
        for job in done:
            until_first = _less(first[job], began[job]) if job in began else None
            work[job.number] = (until_first, _less(total, first[job]))
    return work


def _less(one: Row, other: Row) -> Row:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def _least_squares(rows: Sequence[Row], values: Sequence[float]) -> list[float]:
    """The non-negative coefficients with the least sum of squared relative errors."""
    width = len(rows[0])
    used = list(range(width))
    while True:
        matrix = [[0.0] * (len(used) + 1) for _ in used]
        for row, value in zip(rows, values, strict=True):
            scaled = [row[index] / value for index in used] + [1.0]
            for line, factor in zip(matrix, scaled, strict=False):
                for column, entry in enumerate(scaled):
                    line[column] += factor * entry
        solution = _solve(matrix)
        if all(value >= 0 for value in solution):
            found = [0.0] * width
            for index, value in zip(used, solution, strict=True):
                found[index] = value
            return found
        del used[solution.index(min(solution))]


def _solve(matrix: list[list[float]]) -> list[float]:
    """Gauss-Jordan on a symmetric system, its right side in the last column. Undetermined unknowns are 0."""
    size = len(matrix)
    for pivot in range(size):
        line = matrix[pivot]
        if abs(line[pivot]) < 1e-12 * max(1.0, abs(line[-1])):
            matrix[pivot] = [0.0] * (size + 1)
            continue
        matrix[pivot] = line = [entry / line[pivot] for entry in line]
        for other in range(size):
            if other != pivot and (factor := matrix[other][pivot]):
                matrix[other] = [a - factor * b for a, b in zip(matrix[other], line, strict=True)]
    return [line[-1] for line in matrix]
