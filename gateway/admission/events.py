"""The events that the admission core handles.

Times are seconds on one monotonic clock. Sizes are tokens unless said otherwise.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NewType

from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Policy
from gateway.admission.value import value

RequestId = NewType("RequestId", int)
FRONT_BITS = 32
"""Lower bits of a request's id: the number that its front gave it. The upper ones are the front's own."""
EndpointId = NewType("EndpointId", str)
NOWHERE = EndpointId("")
"""Where a request is dispatched whose front finds an endpoint by itself."""
Prefix = tuple[tuple[int, int], ...]
"""Leading parts of a prompt, shortest first: `(tokens, hash)`. The hash covers these tokens and all else that decides
their KV content (model, LoRA, cache salt). An engine can hold equal parts of two prompts once."""


def front_of(request: RequestId) -> int:
    """The number of the front that carries a request; 0 where there is only one."""
    return request >> FRONT_BITS


@value(frozen=True, slots=True)
class Demand:
    """The demand of one request on the KV cache: a group of sequences that share their prompts.

    `prompts` has the token count of each prompt (several for a list of prompts). `n` sequences are sampled from each.
    `max_tokens` bounds the tokens of each sequence. It is always known: if the client sets none, it is what the model's
    length leaves, or the API's default; 0 if only the prompts are read. An engine whose model length is under
    `least_length` refuses its output limit, and one under `whole_length` has no room for all of that; 0 if none does.
    """

    prompts: tuple[int, ...]
    max_tokens: int
    n: int = 1
    least_length: int = 0
    whole_length: int = 0

    @property
    def sequences(self) -> int:
        """Number of its sequences. Each counts against the engine's sequence limit."""
        return len(self.prompts) * self.n

    @property
    def longest_prompt(self) -> int:
        """Tokens of its longest prompt: it decides which endpoints can serve the request."""
        return max(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once for all its sequences, as in the engine's `usage.prompt_tokens`."""
        return sum(self.prompts)


@value(frozen=True, slots=True)
class Arrived:
    """A counted request arrived. Exactly one `Dispatch` or `Reject` answers it."""

    request: RequestId
    demand: Demand
    band: int = 0
    """Priority band: lower goes first, as in vLLM."""
    flow: str = ""
    body_bytes: int = 0
    streamed: bool = True
    """Whether its tokens can be counted as they go by. If not, the endpoint's decode rate stands in for them."""
    tools: bool = False
    """Whether it has tools: tool calls differ in length from prose."""
    ttft_target: float | None = None
    """TTFT target of its client, seconds; None: its band's."""
    prefix: Prefix = ()
    key: int = 0
    """Its fingerprint, a keyed hash of flow and body: a refused request is known by it if it comes back. 0: unknown.
    `key` is its name in event logs and between gateways."""
    waited: float = 0.0
    """Seconds that it waited already, under an earlier core that took it in: it is not shed any more."""
    failures: int = 0
    """Number of endpoints that failed on it under that core."""
    avoid: EndpointId | None = None
    """The endpoint that failed on it last, or lacks what it names."""
    holder: EndpointId | None = None
    """The endpoint that has the stored response with which it goes on: no other can answer it."""
    relayed: bool = False
    """Whether it needs no place, as an embedding: the driver charges its tenant, and the core never sees it."""
    charged: bool = False
    """Whether it was charged to its tenant's limits when it came: an owner of the decisions was there then."""
    estimated: bool = False
    """Whether its prompt was not counted exactly: its tenant is charged by what `Finished` says of it."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A request is in flight that an earlier core of this model dispatched. Ignored if its endpoint is not known.

    `arrival` says how long ago it came, and what has failed on it. `generated` counts the tokens seen so far, over all
    its sequences.
    """

    arrival: Arrived
    endpoint: EndpointId
    generated: int = 0
    behind: bool = False
    """Whether its client was `Behind`."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client of a waiting request has left. Ignored if the request was already answered."""

    request: RequestId


@value(frozen=True, slots=True)
class Progress:
    """A batch of progress since the last: `(request, tokens generated so far)`, summed over a group's sequences.

    It may leave out reports that change nothing, see `AdmissionController.next_reports`.
    """

    generated: tuple[tuple[RequestId, int], ...]


@dataclass(frozen=True, slots=True)
class Behind:
    """The client of a dispatched request does not take its answer as fast as it comes.

    Its end may be long in coming here. It holds nothing once scrapes show that no request runs or waits for room.
    """

    request: RequestId


class Verdict(Enum):
    """How a dispatched request left its endpoint. `Outcome` is how it ended for its client."""

    DONE = auto()
    """It was answered to the end, or refused by the endpoint with a 4xx: its blocks are free."""
    ABORTED = auto()
    """We closed its connection: its blocks are free only after the engine's next step."""
    FAILED = auto()
    """The endpoint failed, and the request ends."""
    UNSERVED = auto()
    """No engine worked on it: its client left before one saw it, or none has what it names. It costs nothing."""


@value(frozen=True, slots=True)
class Finished:
    """A dispatched request left its endpoint for good."""

    request: RequestId
    verdict: Verdict
    completion_tokens: int | None = None
    """From `usage` if the endpoint gave it; 0 if it refused the request."""
    prompt_tokens: int | None = None
    """From `usage` for a prompt that was `estimated`. What its answer has beyond `Demand.max_tokens` is counted to it:
    too high an estimate leaves that little."""


class ResidencyPhase(Enum):
    """The phase of an engine. Its parent and the gateways of a tier know it by these words."""

    STOPPED = "stopped"
    STARTING = "starting"
    UP = "up"
    LEAVING = "leaving"
    """It takes no new requests, and still holds its cards."""


class Back(Enum):
    """The cause for which a dispatched request comes back unanswered."""

    BUSY = auto()
    """The engine refused it as it is busy: a sign of saturation, not of ill health."""
    FAILED = auto()
    """The endpoint failed on it: the core allows one more dispatch, to another endpoint if there is one."""
    UNREACHED = auto()
    """Its front could not connect. That says nothing of what other fronts can reach."""
    LACKING = auto()
    """The endpoint has no such model or route, and another one may have it. That says nothing of other requests."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A dispatched request comes back unanswered, to be dispatched again. One `Dispatch` or `Reject` answers it."""

    request: RequestId
    why: Back


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of an endpoint, read from it (`/v1/models`, `vllm:cache_config_info`) or configured."""

    max_model_len: int
    kv_blocks: int | None
    """Usable blocks, at least 1: vLLM keeps one for itself (the null block). None if the engine does not say."""
    block_size: int = 16
    """Tokens of a block."""
    max_num_seqs: int | None = None
    """None if not configured: the core learns it."""
    shares_prefix: bool = True
    """Whether sequences of one prompt share its full blocks (prefix caching on)."""
    holds_limit: bool = False
    """Whether a request holds the blocks of its output limit from its start: everything fails on an engine that runs
    out."""
    share: float = 1.0
    """The share of the endpoint that this is."""

    def __post_init__(self) -> None:
        """Check what every share of the cache is divided by.

        Raises:
            ValueError: there is no block, or nothing in it.
        """
        if self.block_size < 1 or (self.kv_blocks is not None and self.kv_blocks < 1):
            raise ValueError(f"{self.kv_blocks} blocks of {self.block_size} tokens are no KV cache")

    def part(self, share: float) -> "Capacity":
        """A share of it. Usage by the gauge counts in proportion, but what is known to be in flight counts in full."""
        if share == 1.0:
            return self
        blocks, sequences = self.kv_blocks, self.max_num_seqs
        return replace(
            self,
            kv_blocks=None if blocks is None else max(1, int(blocks * share)),
            max_num_seqs=None if sequences is None else max(1, int(sequences * share)),
            share=self.share * share,
        )


@dataclass(frozen=True, slots=True)
class EndpointUp:
    """An endpoint takes traffic: it is new, is back, was undrained, or has another capacity."""

    endpoint: EndpointId
    capacity: Capacity
    observed: "Observed | None" = None
    """The last scrape, where its engine is the same as before: all that was seen of it stays known."""


@dataclass(frozen=True, slots=True)
class EndpointDown:
    """An endpoint takes no new traffic. Requests on it report their own ends."""

    endpoint: EndpointId
    reason: str
    capacity: Capacity | None = None
    """Makes it known, if it was never up: requests on it can be declared."""


@dataclass(frozen=True, slots=True)
class EndpointGone:
    """An endpoint was removed."""

    endpoint: EndpointId


@dataclass(frozen=True, slots=True)
class Expected:
    """An engine of the model starts, or is to start as soon as another has made room, while none is live."""

    ready_at: float | None
    """When it is expected to be up; None if that is not known, or no more needed."""
    failed: bool = False
    """It does not start: those that wait for it wait in vain."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One scrape of an endpoint's `/metrics`. None: the engine does not export it, which is not zero."""

    endpoint: EndpointId
    sampled_at: float
    """Time of the engine's answer, seconds."""
    kv_usage: float | None
    running: int | None
    waiting: int | None
    """Requests that wait for capacity, without those deferred for other reasons."""
    generation_tokens: float | None
    """The engine's counter of generated tokens."""
    preemptions: float | None = None

    @property
    def idle(self) -> bool:
        """Whether the engine says that no request runs, and none waits for room."""
        return self.running == self.waiting == 0


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output lengths of one kind of requests, oldest first. See `Predictor` for kinds."""

    prompt: int
    """Class of the prompt's length. `max_tokens` is a class, too."""
    max_tokens: int
    tools: bool
    streamed: bool
    lengths: tuple[int | None, ...]
    """Tokens; None for an output that ended at its `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Output lengths learned by another core of this model. A core with lengths of its own ignores them."""

    everything: tuple[int | None, ...]
    """The latest lengths of all kinds, as in `Outputs`."""
    outputs: tuple[Outputs, ...] = ()


@dataclass(frozen=True, slots=True)
class Promised:
    """An open promise to a refused request, as in `placing.promise.Promise`. Times are seconds from now."""

    key: int
    """The request's fingerprint, as in `Arrived`."""
    band: int
    flow: str
    order: int
    """Below 0: before all that have waited since."""
    outcome: Outcome
    due: float
    until: float
    cost: float
    spans: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Owed:
    """What a tenant has used of its rates: seconds until all of each is there again."""

    flow: str
    requests: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Warmth:
    """What another core of this model knew of its demand, for a core that takes over."""

    drained: tuple[float, float] = (0.0, 0.0)
    """Service completed under pressure, and its seconds (`DrainRate`)."""
    debts: tuple[tuple[int, str, float], ...] = ()
    """Of bands' flows: how far their virtual time is ahead of the others'."""
    promises: tuple[Promised, ...] = ()
    age: float = 0.0
    """Seconds since it was so."""
    owed: tuple[Owed, ...] = ()
    """By all tenants with limits, over all models; the driver's, not the core's."""
    learned: Learned = Learned(())
    """Its output lengths."""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The operator changed the policy. Waiting requests keep their places, and requests in flight go on.

    A request that has now waited too long is refused as usual. A shorter queue applies to new requests only: no waiting
    request is refused for it. `poll_interval` must stay the same.
    """

    policy: Policy


@dataclass(frozen=True, slots=True)
class ShutdownStarted:
    """The gateway takes no new work: waiting requests are refused, requests in flight finish."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the answer to a `WakeAt`."""


Event = (
    Arrived
    | Declared
    | Cancelled
    | Progress
    | Behind
    | Finished
    | Returned
    | EndpointUp
    | EndpointDown
    | EndpointGone
    | Expected
    | Observed
    | Learned
    | Warmth
    | PolicyChanged
    | ShutdownStarted
    | Tick
)
