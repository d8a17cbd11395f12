"""The calibration of a real engine's step times from its answer times on one workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.admission.events import RequestId
from gateway.simulation.engine import Engine, Job
from gateway.simulation.machine import Machine, StepTime
from gateway.simulation.workload import Request, Workload, at_rate

ROUNDS = 10
"""Iterations. Each finds the step times for a schedule, then the schedule for them. Half as many are enough."""
STEP_TERMS = 4

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer times of one request, in seconds on the clock of the workload's arrivals."""

    first_token_at: float
    ended_at: float


def in_phases(workload: Workload, rates: Sequence[float]) -> Workload:
    """The same requests, split into equal parts in order, each at one of these rates (requests per second)."""
    size = -(-len(workload) // len(rates))
    phased: list[Request] = []
    start = 0.0
    for number, requests_per_second in enumerate(rates):
        part = workload[number * size : (number + 1) * size]
        paced = at_rate(part, requests_per_second) if part else ()
        phased += [replace(request, arrival=start + request.arrival) for request in paced]
        start = phased[-1].arrival + 1 / requests_per_second
    return tuple(phased)


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
    """The non-negative coefficients with the least sum of squared relative errors; undetermined ones are small."""
    matrix = np.array(rows) / np.array(values)[:, None]
    used = [*range(matrix.shape[1])]
    while True:
        solution = np.linalg.lstsq(matrix[:, used], np.ones(len(matrix)))[0].tolist()
        if min(solution) >= 0:
            found = dict(zip(used, solution, strict=True))
            return [found.get(column, 0.0) for column in range(matrix.shape[1])]
        del used[solution.index(min(solution))]
