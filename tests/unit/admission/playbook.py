"""Scripts of what the core is told and what it must answer, in the order of reading.

    play() >> at(0) >> up("a", blocks=10) >> arrived(1) << Dispatch(1, "a") >> arrived(2) << nothing

`>>` feeds an event, `at(t)` moves the clock, `<<` names the next command. A command that nobody named fails the script
at the next `>>`, or at the end of the test. `WakeAt` is only looked at where it is asked for, by `<< wakes(t)`.
"""

from dataclasses import dataclass, replace

from gateway.admission.commands import Command, Reject, WakeAt
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Declared,
    Demand,
    EndpointId,
    EndpointUp,
    Event,
    Finished,
    Observed,
    Prefix,
    Progress,
    RequestId,
    Verdict,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.admission.snapshot import EndpointSnapshot

BLOCK = 16


@dataclass(frozen=True)
class at:  # noqa: N801 - reads as a word of the script
    """The time of what follows, seconds."""

    time: float


@dataclass(frozen=True)
class wakes:  # noqa: N801
    """The core asked to be woken at this time; None: it asks for nothing new."""

    time: float | None


class Nothing:
    """No command is left."""


nothing = Nothing()


class Playbook:
    """One script under way."""

    def __init__(self, policy: Policy) -> None:
        self.controller = AdmissionController(policy)
        self.now = 0.0
        self.pending: list[Command] = []
        self.woken: float | None = None
        self.log: list[str] = []

    def __rshift__(self, step: Event | at) -> "Playbook":
        self.finish()
        if isinstance(step, at):
            assert step.time >= self.now, "time runs forward"
            self.now = step.time
            return self
        self.log.append(f"{self.now:g}: {step}")
        self.woken = None
        for command in self.controller.handle(step, self.now):
            if isinstance(command, WakeAt):
                self.woken = command.at
            else:
                self.pending.append(command)
        return self

    def __lshift__(self, expected: Command | wakes | Nothing) -> "Playbook":
        if isinstance(expected, wakes):
            assert self.woken == expected.time, self._story(f"wakes at {self.woken}")
            return self
        if isinstance(expected, Nothing):
            self.finish()
            return self
        assert self.pending, self._story(f"expected {expected}, got nothing")
        command = self.pending.pop(0)
        if isinstance(command, Reject) and isinstance(expected, Reject) and expected.retry_after is None:
            command = replace(command, retry_after=None)
        assert command == expected, self._story(f"expected {expected}, got {command}")
        return self

    def finish(self) -> None:
        """Fail if a command was not named."""
        assert not self.pending, self._story(f"not asserted: {self.pending}")

    def endpoint(self, name: str) -> EndpointSnapshot:
        """What the core shows of an endpoint now."""
        (state,) = [e for e in self.controller.snapshot(self.now).endpoints if e.id == name]
        return state

    def _story(self, problem: str) -> str:
        return "\n".join([*self.log, problem])


def up(
    name: str,
    *,
    blocks: int | None = 100,
    length: int = 4096,
    seqs: int | None = None,
    block: int = BLOCK,
    shares_prefix: bool = True,
    holds_limit: bool = False,
) -> EndpointUp:
    """An endpoint comes up."""
    return EndpointUp(name, Capacity(length, blocks, block, seqs, shares_prefix, holds_limit))


def arrived(
    request: int,
    *prompts: int,
    blocks: int | None = None,
    n: int = 1,
    max_tokens: int = 1000,
    band: int = 0,
    size: int = 0,
    streamed: bool = True,
    flow: str = "",
    ttft: float | None = None,
    prefix: Prefix = (),
    key: int = 0,
    waited: float = 0.0,
    failures: int = 0,
    avoid: str | None = None,
) -> Arrived:
    """A request arrives, with prompts of so many tokens, or one that holds so many blocks with its first token."""
    if blocks is not None:
        prompts = (blocks * BLOCK - 1,)
    demand = Demand(prompts or (10,), max_tokens, n)
    return Arrived(
        request,
        demand,
        band=band,
        flow=flow,
        body_bytes=size,
        streamed=streamed,
        ttft_target=ttft,
        prefix=prefix,
        key=key,
        waited=waited,
        failures=failures,
        avoid=None if avoid is None else EndpointId(avoid),
    )


def declared(arrival: Arrived, endpoint: str, generated: int = 0) -> Declared:
    """A request is in flight that an earlier core dispatched."""
    return Declared(arrival, EndpointId(endpoint), generated)


def done(request: int, tokens: int | None = None) -> Finished:
    """A request is answered to its end."""
    return Finished(request, Verdict.DONE, tokens)


def aborted(request: int) -> Finished:
    """We closed its connection."""
    return Finished(request, Verdict.ABORTED)


def progress(**tokens: int) -> Progress:
    """What was seen of requests so far: `progress(r1=5)`."""
    return Progress(tuple((RequestId(int(name[1:])), seen) for name, seen in tokens.items()))


def scrape(
    name: str,
    time: float,
    *,
    kv: float | None = None,
    running: int | None = None,
    waiting: int | None = None,
    tokens: float | None = None,
    preemptions: float | None = None,
) -> Observed:
    """A scrape of an endpoint."""
    return Observed(name, time, kv, running, waiting, tokens, preemptions)


def refused(request: int, outcome: Outcome) -> Reject:
    """A refusal, with any Retry-After."""
    return Reject(request, outcome)
