"""Scenarios, as data in `loadtests/scenarios`: the flows, their requests and their rates.

Rates are multiples of a capacity in requests per second, which is given or measured. So a scenario means the same on a
laptop and on a rack.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec.structs import replace

SCENARIOS = Path(__file__).parent / "scenarios"

Positive = Annotated[float, msgspec.Meta(gt=0)]
Tokens = Annotated[int, msgspec.Meta(ge=1)]
# Msgspec 0.20 misreads a fixed-length tuple beside a bounded number, and may crash.
Length = Tokens | Annotated[tuple[Tokens, ...], msgspec.Meta(min_length=2, max_length=2)]
"""A fixed number of tokens, or the ends of a uniform distribution, both included."""


class ScenarioError(ValueError):
    """A scenario cannot be run. The message names the file and the field."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Slo(_Table, frozen=True):
    """The limits for a served request, in seconds."""

    ttft: Positive = 5.0
    """From the arrival to the first token."""
    gap: Positive = 0.5
    """The longest wait between two events of a stream."""


class Trace(_Table, frozen=True):
    """Lengths from a recorded trace: prompt and output of one row together."""

    file: str
    """Name in `loadtests/traces`, gzip-compressed there or not, or an absolute path."""
    prompt_scale: Positive = 1.0
    output_scale: Positive = 1.0


class Prefix(_Table, frozen=True):
    """Tokens that requests share at the start, before their own prompt."""

    tokens: Tokens
    groups: Tokens = 1
    """Number of different prefixes, all equally likely."""


class Request(_Table, frozen=True):
    """A kind of request. Lengths come from a trace, or separately from `prompt` and `output`."""

    weight: Positive = 1.0
    """Its frequency, relative to the weights of the other kinds."""
    trace: Trace | None = None
    prompt: Length | None = None
    """Tokens of the prompt, without the shared prefix."""
    output: Length | None = None
    """Generated tokens."""
    prefix: Prefix | None = None
    max_tokens_slack: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Excess of the client's `max_tokens` over the generated tokens."""

    def __post_init__(self) -> None:
        own = self.prompt is not None and self.output is not None
        either = self.prompt is not None or self.output is not None
        if own == (self.trace is not None) or either != own:
            raise ValueError("expected either `trace`, or both `prompt` and `output`")
        for name in ("prompt", "output"):
            length = getattr(self, name)
            if isinstance(length, tuple) and length[0] > length[1]:
                raise ValueError(f"`{name}` runs from {length[0]} down to {length[1]}")


class Flow(_Table, frozen=True):
    """A client that the gateway distinguishes, by its key or by a header."""

    name: str
    share: Positive = 1.0
    """Its part of all arrivals, relative to the shares of the other flows."""
    requests: tuple[Request, ...] = ()
    """Its requests, if they differ from the scenario's."""


class Phase(_Table, frozen=True):
    """A stretch of time with one rate."""

    seconds: Positive
    load: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Arrivals per second, as a multiple of the capacity."""
    spike: bool = False
    """Recovery is measured from the end of this phase."""


class Rule(_Table, frozen=True):
    """A limit on a figure. A target that breaks one fails the verdict."""

    figure: str
    most: float | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        if (self.most is None) == (self.least is None):
            raise ValueError("expected one of `most` and `least`")


class Scenario(_Table, frozen=True):
    """One load test."""

    description: str
    phases: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1)]
    """The phases come in order, repeated until `seconds` have passed."""
    requests: tuple[Request, ...] = ()
    flows: Annotated[tuple[Flow, ...], msgspec.Meta(min_length=1)] = (Flow("all"),)
    arrivals: Literal["poisson", "constant", "trace"] = "poisson"
    """`trace`: in the order and at the relative times of the trace that gives the lengths."""
    seconds: Positive | None = None
    """Seconds during which requests arrive. Without it, each phase comes once."""
    concurrency: Tokens | None = None
    """Closed loop: this many clients. Each sends its next request when the one before has ended."""
    slo: Slo = Slo()
    alone: str | None = None
    """A flow that is also measured alone, with the same arrivals."""
    verdict: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        names = [flow.name for flow in self.flows]
        if len(set(names)) < len(names):
            raise ValueError(f"`flows` has a name twice: {', '.join(names)}")
        if self.alone is not None and self.alone not in names:
            raise ValueError(f"`alone` is {self.alone!r}, which is none of the flows {', '.join(names)}")
        for flow in self.flows:
            kinds = self.kinds(flow)
            if not kinds:
                raise ValueError(f"`requests` is empty, and the flow {flow.name!r} has none of its own")
            if self.arrivals == "trace" and (len(kinds) > 1 or kinds[0].trace is None):
                raise ValueError("`arrivals: trace` needs `requests` to be one kind, with lengths from a trace")

    @property
    def duration(self) -> float:
        """Seconds during which requests arrive."""
        return self.seconds or sum(phase.seconds for phase in self.phases)

    def kinds(self, flow: Flow) -> tuple[Request, ...]:
        """The kinds of requests a flow sends."""
        return flow.requests or self.requests

    def with_requests(self, change: "RequestChange") -> "Scenario":
        """The same scenario with every kind of request changed."""
        flows = tuple(replace(flow, requests=tuple(map(change, flow.requests))) for flow in self.flows)
        return replace(self, requests=tuple(map(change, self.requests)), flows=flows)


class RequestChange:
    """Lengths for another machine: scaled, or fixed.

    Args:
        prompt_scale: factor on prompts and prefixes.
        output_scale: factor on outputs and the slack above them.
        prompt: tokens of every prompt without its prefix, instead of the scenario's.
        output: the same of every output.
    """

    def __init__(
        self,
        prompt_scale: float = 1.0,
        output_scale: float = 1.0,
        prompt: int | None = None,
        output: int | None = None,
    ) -> None:
        self._prompt_scale = prompt_scale
        self._output_scale = output_scale
        self._prompt = prompt
        self._output = output

    def __call__(self, request: Request) -> Request:
        """The request, changed.

        Raises:
            ScenarioError: a fixed length is given, but the request's lengths come from a trace.
        """
        if request.trace is not None:
            if self._prompt is not None or self._output is not None:
                raise ScenarioError("lengths that come from a trace can be scaled, not fixed")
            trace = replace(
                request.trace,
                prompt_scale=request.trace.prompt_scale * self._prompt_scale,
                output_scale=request.trace.output_scale * self._output_scale,
            )
            request = replace(request, trace=trace)
        else:
            assert request.prompt is not None
            assert request.output is not None
            request = replace(
                request,
                prompt=self._prompt or _scaled(request.prompt, self._prompt_scale),
                output=self._output or _scaled(request.output, self._output_scale),
            )
        if request.prefix is not None:
            tokens = scaled(request.prefix.tokens, self._prompt_scale)
            request = replace(request, prefix=replace(request.prefix, tokens=tokens))
        return replace(request, max_tokens_slack=round(request.max_tokens_slack * self._output_scale))


def scaled(tokens: int, scale: float) -> int:
    """A length for another machine: at least one token."""
    return max(1, round(tokens * scale))


def _scaled(length: Length, scale: float) -> Length:
    if isinstance(length, tuple):
        return scaled(length[0], scale), scaled(length[1], scale)
    return scaled(length, scale)


def names() -> list[str]:
    """The scenarios that come with the load tests."""
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def load(name: str) -> Scenario:
    """A scenario by its name, or by a file's path.

    Raises:
        ScenarioError: the scenario does not exist, or is wrong.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else SCENARIOS / f"{name}.yaml"
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), Scenario)
    except FileNotFoundError:
        raise ScenarioError(f"no scenario {name!r}; there are {', '.join(names())}, or the path of a .yaml") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from None
