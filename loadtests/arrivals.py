"""The requests of a scenario, with arrival times and lengths, the same for the same seed.

Every flow has random numbers of its own, so it sends the same requests with or without the others.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from loadtests.scenario import Flow, Length, Request, Scenario, ScenarioError, Trace, scaled
from loadtests.traces import Row, read_trace

TOKEN_IDS = range(100, 5001)
"""Inside any vocabulary, away from the special ones at its ends."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to come. Lengths are tokens."""

    number: int
    at: float
    """Seconds after the run's start; 0 if it comes when another has ended."""
    flow: str
    kind: int
    """Index of its kind among its flow's."""
    prompt: int
    """Including the shared prefix."""
    output: int
    max_tokens: int
    prefix: int = 0
    group: int = 0
    """Index of the shared prefix it begins with."""

    def prompt_ids(self, salt: str) -> list[int]:
        """Token ids of its prompt. Another salt gives others, so that no run hits the cache of the one before."""
        shared = _prefix(f"{salt} {self.kind} {self.group}", self.prefix) if self.prefix else ()
        own = random.Random(f"{salt} {self.flow} {self.number}").choices(TOKEN_IDS, k=self.prompt - self.prefix)
        return [*shared, *own]


@cache
def _prefix(seed: str, tokens: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(TOKEN_IDS, k=tokens))


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a run with one rate."""

    start: float
    end: float
    rate: float
    """Arrivals per second."""
    spike: bool


def segments(scenario: Scenario, rate: float) -> list[Segment]:
    """The scenario's phases in order until its end. `rate` is requests per second at a load of 1."""
    found, start = [], 0.0
    for phase in itertools.cycle(scenario.phases):
        end = min(start + phase.seconds, scenario.duration)
        found.append(Segment(start, end, phase.load * rate, phase.spike))
        if end >= scenario.duration:
            return found
        start = end
    raise AssertionError("a scenario has at least one phase")


def open_loop(scenario: Scenario, rate: float, seed: int, context: int | None = None) -> list[Planned]:
    """Every request of a run, by arrival. `context` is the model's longest sequence, in tokens.

    Raises:
        ScenarioError: a request, or every row of a trace, is longer than that.
    """
    timeline = segments(scenario, rate)
    shares = sum(flow.share for flow in scenario.flows)
    planned = []
    for flow in scenario.flows:
        drawn = _Draw(scenario, flow, seed, context)
        own = [Segment(s.start, s.end, s.rate * flow.share / shares, s.spike) for s in timeline]
        planned += [drawn.request(at) for at in _times(drawn.gaps(), own)]
    return sorted(planned, key=lambda request: request.at)


def closed_loop(scenario: Scenario, seed: int, context: int | None = None) -> Iterator[Planned]:
    """An endless supply of requests without times, for clients that wait.

    Raises:
        ScenarioError: as in `open_loop`.
    """
    draws = [_Draw(scenario, flow, seed, context) for flow in scenario.flows]
    rng = random.Random(f"{seed} flows")
    while True:
        yield rng.choices(draws, [flow.share for flow in scenario.flows])[0].request(0.0)


def mean_output(scenario: Scenario, context: int | None = None, sample: int = 4000) -> float:
    """Mean output tokens of a request of this scenario."""
    drawn = itertools.islice(closed_loop(scenario, 0, context), sample)
    return sum(request.output for request in drawn) / sample


def _times(gaps: Iterator[float], timeline: Iterable[Segment]) -> Iterator[float]:
    """Arrival times: gaps at rate 1, stretched to the rates of the timeline."""
    owed = next(gaps)
    for segment in timeline:
        at = segment.start
        while segment.rate > 0 and at + owed / segment.rate < segment.end:
            at += owed / segment.rate
            yield at
            owed = next(gaps)
        owed -= (segment.end - at) * segment.rate


class _Draw:
    """The requests of one flow, one after the other."""

    def __init__(self, scenario: Scenario, flow: Flow, seed: int, context: int | None) -> None:
        self._flow = flow.name
        self._kinds = scenario.kinds(flow)
        self._weights = [kind.weight for kind in self._kinds]
        self._process = scenario.arrivals
        self._context = context
        self._lengths = random.Random(f"{seed} {flow.name} lengths")
        self._gaps = random.Random(f"{seed} {flow.name} gaps")
        self._numbers = itertools.count()
        self._rows = [_fitting(kind.trace, _beside(kind), context) if kind.trace else () for kind in self._kinds]
        self._next_row = self._gaps.randrange(len(self._rows[0])) if self._process == "trace" else 0

    def gaps(self) -> Iterator[float]:
        """Gaps between arrivals, 1 on average."""
        if self._process == "constant":
            yield from itertools.repeat(1.0)
        while self._process == "poisson":
            yield self._gaps.expovariate(1.0)
        rows = self._rows[0]
        rate = (len(rows) - 1) / (rows[-1].at - rows[0].at)
        while True:
            before, row = rows[self._next_row - 1], rows[self._next_row]
            yield (row.at - before.at) * rate if self._next_row else 1.0

    def request(self, at: float) -> Planned:
        index = self._lengths.choices(range(len(self._kinds)), self._weights)[0]
        kind = self._kinds[index]
        if kind.trace is None:
            prompt, output = self._of(kind.prompt), self._of(kind.output)
        else:
            row = self._row(index)
            prompt, output = row.prompt, row.output
        prefix = kind.prefix.tokens if kind.prefix else 0
        group = self._lengths.randrange(kind.prefix.groups) if kind.prefix else 0
        whole = prefix + prompt + output
        if self._context is not None and whole > self._context:
            raise ScenarioError(
                f"a request of {prefix + prompt} tokens in and {output} out exceeds the model's {self._context}: "
                "scale the lengths with --prompt-scale and --output-scale"
            )
        slack = kind.max_tokens_slack if self._context is None else min(kind.max_tokens_slack, self._context - whole)
        return Planned(
            next(self._numbers), at, self._flow, index, prefix + prompt, output, output + slack, prefix, group
        )

    def _of(self, length: Length | None) -> int:
        assert length is not None
        return self._lengths.randint(length[0], length[1]) if isinstance(length, tuple) else length

    def _row(self, kind: int) -> Row:
        rows = self._rows[kind]
        if self._process != "trace":
            return self._lengths.choice(rows)
        row = rows[self._next_row]
        self._next_row = (self._next_row + 1) % len(rows)
        return row


def _beside(kind: Request) -> int:
    return kind.prefix.tokens if kind.prefix else 0


@cache
def _fitting(trace: Trace, beside: int, context: int | None) -> tuple[Row, ...]:
    """The scaled rows that the model takes. Longer ones are left out, since it would refuse them."""
    rows = [
        Row(row.at, scaled(row.prompt, trace.prompt_scale), scaled(row.output, trace.output_scale))
        for row in read_trace(trace.file)
    ]
    fitting = tuple(row for row in rows if context is None or beside + row.prompt + row.output <= context)
    if not fitting:
        raise ScenarioError(f"no row of {trace.file} fits {context} tokens: scale it with --prompt-scale")
    return fitting
