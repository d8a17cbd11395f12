"""What the admission core is told.

Times are seconds on one monotonic clock; sizes are tokens unless named otherwise.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NewType

from gateway.admission.policy import Policy

RequestId = NewType("RequestId", int)
EndpointId = NewType("EndpointId", str)
Prefix = tuple[tuple[int, int], ...]
"""Leading parts of a prompt, the shortest first: `(tokens, hash)`, the hash of those tokens and of all else that
decides their KV content (model, LoRA, cache salt). Parts that are equal in two prompts can be held once."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks of the KV cache: a group of sequences that share their prompts.

    `prompts` holds the token count of each prompt (more than one for a list of prompts), `n` the sequences
    sampled from each, `max_tokens` the most tokens each sequence may generate (always known: where the client
    sets none, what the model's length leaves, or the API's own default; 0 where only its prompts are read).
    """

    prompts: tuple[int, ...]
    max_tokens: int
    n: int = 1

    @property
    def sequences(self) -> int:
        """How many it generates: each takes a place of the engine's sequence limit."""
        return len(self.prompts) * self.n

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest of its prompts: it decides which endpoints can serve the request."""
        return max(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        """As the engine's `usage.prompt_tokens` counts them: each prompt once, however many sequences it has."""
        return sum(self.prompts)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A counted request asks to be dispatched. It is answered by exactly one `Dispatch` or `Reject`."""

    request: RequestId
    demand: Demand
    band: int = 0
    """Priority band: lower goes first, as in vLLM."""
    flow: str = ""
    body_bytes: int = 0
    streamed: bool = True
    """Whether its tokens can be counted as they go by. Where not, the endpoint's decode rate stands in for them."""
    tools: bool = False
    """Whether it brings tools: their calls are of another length than prose."""
    ttft_target: float | None = None
    """Seconds to its first token that its client asks for; None: its band's."""
    prefix: Prefix = ()
    key: int = 0
    """Keyed hash of its flow and its body: a request that was refused is known by it when it comes back. 0: unknown."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of a request that still waits has left. Ignored when it was already answered."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch of what the relay saw since the last: `(request, tokens generated so far)`, summed over a group.

    It may leave out what changes nothing, see `AdmissionController.news`.
    """

    generated: tuple[tuple[RequestId, int], ...]


class Verdict(Enum):
    """How a dispatched request ended on its endpoint."""

    DONE = auto()
    """Answered to the end, or refused by the endpoint with a 4xx: its blocks are free."""
    ABORTED = auto()
    """We closed the connection: its blocks are free only after the engine's next step."""
    FAILED = auto()
    """The endpoint failed and the request ends with it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A dispatched request left its endpoint for good."""

    request: RequestId
    verdict: Verdict
    completion_tokens: int | None = None
    """From `usage` where the endpoint gave it; 0 where it refused the request."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A dispatched request comes back unanswered, to be dispatched again.

    `busy` says the endpoint refused it for lack of room (a saturation sample, no ill health); otherwise the
    endpoint failed on it, and the core allows one more dispatch, elsewhere where there is an elsewhere.
    Answered by exactly one `Dispatch` or `Reject`.
    """

    request: RequestId
    busy: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an endpoint has, read live from it (`/v1/models`, `vllm:cache_config_info`) or configured."""

    max_model_len: int
    kv_blocks: int | None
    """Usable blocks: vLLM keeps one for itself (the null block). None where the engine does not say."""
    block_size: int = 16
    """Tokens of a block."""
    max_num_seqs: int | None = None
    """None where not configured: learned."""
    shares_prefix: bool = True
    """Whether sequences of one prompt share its full blocks (prefix caching on)."""


@dataclass(frozen=True, slots=True)
class EndpointUp:
    """An endpoint takes traffic: it is new, came back, was undrained, or its capacity changed."""

    endpoint: EndpointId
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class EndpointDown:
    """An endpoint takes no new traffic. What runs on it reports its own end."""

    endpoint: EndpointId
    reason: str


@dataclass(frozen=True, slots=True)
class EndpointGone:
    """An endpoint was removed."""

    endpoint: EndpointId


@dataclass(frozen=True, slots=True)
class Observed:
    """One scrape of an endpoint's `/metrics`. None: the engine does not export it, which is not zero."""

    endpoint: EndpointId
    sampled_at: float
    """When the engine answered, seconds."""
    kv_usage: float | None
    running: int | None
    waiting: int | None
    """Requests waiting for capacity (not those deferred for other reasons)."""
    generation_tokens: float | None
    """The engine's counter of generated tokens."""
    preemptions: float | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """How long the outputs of requests of one kind were, the oldest first. `Predictor` says what makes a kind."""

    prompt: int
    """The class of the prompt's length, and of `max_tokens`."""
    max_tokens: int
    tools: bool
    streamed: bool
    lengths: tuple[int | None, ...]
    """Tokens; None for one that ended at its `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What another core of this model has learned of its outputs. One that has learned itself ignores it."""

    everything: tuple[int | None, ...]
    """The last lengths of all kinds, as in `Outputs`."""
    outputs: tuple[Outputs, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator decided otherwise. Who waits keeps its place, and what is in flight goes on.

    Whoever has waited longer than it may by now is refused as ever. A shorter queue is for newcomers: nobody is sent
    away for it. `poll_interval` is the one there was.
    """

    policy: Policy


@dataclass(frozen=True, slots=True)
class ShutdownStarted:
    """The gateway takes no new work: whoever waits is refused, whoever runs finishes."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: the answer to a `WakeAt`."""


Event = (
    Arrived
    | Cancelled
    | Progress
    | Finished
    | Returned
    | EndpointUp
    | EndpointDown
    | EndpointGone
    | Observed
    | Learned
    | PolicyChanged
    | ShutdownStarted
    | Tick
)
