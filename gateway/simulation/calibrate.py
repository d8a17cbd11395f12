"""The step times of a real engine, from the times at which it answered one workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.admission.events import RequestId
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.workload import Workload

ROUNDS = 10
"""Each finds the step times for a schedule, and the schedule for them. Half of it is enough."""
STEP_TERMS = 4

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """When one request was answered, seconds on the clock of the workload's arrivals."""

    first_token_at: float
    ended_at: float


def calibrated(workload: Workload, machine: Machine, answers: Sequence[Answer]) -> Machine:
    """The machine with the step times under which the model answers as the engine did, nothing in front of either.

    The model says what the engine did in the time that passed between a request's first token and its last: so many
    steps, so many sequences in them, tokens prefilled, tokens of context. Of the time to the first token it says so of
    requests that found the engine idle, up to what any request takes outside of the engine, which is estimated with it
    and dropped. The rest is least squares on relative errors.

    The workload should keep the engine idle and busy in turn, with prompts and outputs of many lengths: what it does
    not exercise cannot be found. It should not overload it: then a little more time for a step makes a schedule of
    its own.
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
    """What the engine does until each request's first token, where it was idle before, and from then to its end."""
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
    """The coefficients, none of them negative, with the least sum of squared relative errors."""
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
    """Gauss-Jordan on a symmetric system with its right side as last column; what is not determined is 0."""
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
