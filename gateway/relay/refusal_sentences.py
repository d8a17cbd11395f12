"""The sentences that tell a client why the core refused its request."""

from math import ceil, inf

from gateway.admission.commands import Reject
from gateway.admission.limits.limit import Exceeded, Limit
from gateway.admission.outcomes import Outcome
from gateway.relay.demand import NO_ENDPOINT
from gateway.relay.exchange import RefusedError
from gateway.wire.errors import SHUTTING_DOWN


def _never(exceeded: Exceeded) -> bool:
    """Whether a request asks for more than its limit ever allows."""
    return exceeded.which is not Limit.CONCURRENT and exceeded.asked > exceeded.limit


def _over(exceeded: Exceeded) -> str:
    """The sentence about a limit, for the tenant."""
    sentence = f"Your limit is {exceeded.limit} {exceeded.which}."
    match exceeded.which:
        case _ if _never(exceeded):
            return f"{sentence} This request alone asks for {exceeded.asked}: shorten its prompt."
        case Limit.TOKENS:
            return f"{sentence} This request asks for {exceeded.asked}."
        case Limit.CONCURRENT:
            return f"{sentence} As many wait or run: wait until one has ended."
        case Limit.KV:
            return f"{sentence} Your own requests hold them: wait until one has ended."
    return sentence


_SENTENCES: dict[Outcome, str] = {
    Outcome.QUEUE_FULL: "The queue is full.",
    Outcome.WAIT_TOO_LONG: "The first token could not come within the TTFT target.",
    Outcome.QUEUE_TIMEOUT: "No room became free in time.",
    Outcome.NO_ENDPOINT: NO_ENDPOINT,
    Outcome.DRAINING: SHUTTING_DOWN,
    Outcome.CONTEXT_LENGTH_EXCEEDED: "The prompt fits the model length and the KV cache of no endpoint.",
}


def refusal(command: Reject, earlier: str = "") -> RefusedError:
    """What its client is told of a refusal; `earlier`: what it is told of an earlier attempt."""
    over = "" if command.exceeded is None else _over(command.exceeded)
    sentence = " ".join(said for said in (_SENTENCES.get(command.outcome), over, earlier) if said)
    if command.exceeded is not None and _never(command.exceeded):
        return RefusedError(command.outcome, sentence, retry_after=inf)
    if command.retry_after is not None:
        sentence += f" Please retry in {ceil(command.retry_after)} s."
    return RefusedError(command.outcome, sentence, retry_after=command.retry_after)
