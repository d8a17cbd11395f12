"""The gateway's state at one instant: the content of `/kvgate/state` and the source of the gauges in `/metrics`."""

from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gateway.ops.pace import Pace
from gateway.ops.pictures.picture import Picture


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GateState(_Shown):
    """Whether the endpoint is open to requests, and else the rules that close it to every one."""

    open: bool
    reason: str | None = Field(None, description="Why it is closed; null while it is open.")


class KvState(_Shown):
    """An endpoint's KV cache, as shares of its usable blocks, 0 to 1."""

    ledger: float | None = Field(
        None, description="By kvgate's own account, token by token; null where the cache's size is not known."
    )
    observed: float | None = Field(None, description="By the engine's gauge; null where it has none.")
    effective: float | None = Field(
        None,
        description="The ledger, corrected by what is observed: what the gate goes by; null: not known.",
    )
    forecast: float | None = Field(
        None,
        description="The peak that what is in flight is predicted to come to; a new request must fit beside it.",
    )
    blocks: int | None = Field(None, description="Usable blocks; null where the engine does not say.")
    block_size: int = Field(description="Tokens of a block.")


class EngineTotals(_Shown):
    """The engine's work for all clients since kvgate began to watch it; null if it does not count it."""

    preemptions: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    prefix_queried_tokens: int | None = Field(None, description="Of prompts, looked up in its prefix cache.")
    prefix_hit_tokens: int | None = Field(None, description="Those of them that were there.")


class EndpointState(_Shown):
    """One vLLM server."""

    id: str
    url: str
    healthy: bool = Field(description="Whether it takes traffic now.")
    state: str = Field(
        description="starting, up, trial, blocked, suspect, down, hung, refusing, asleep, scaling, stopped or draining."
    )
    reason: str = Field(description="Why it is in that state.")
    cause: str | None = Field(
        None,
        description="Of an engine that kvgate launches and that ended by itself: why, until it is ready again.",
    )
    remedy: str | None = Field(None, description="What to do about that.")
    ready_in_seconds: float | None = Field(
        None,
        description="Of an engine that starts on demand and does not run: how long a request that comes now would wait "
        "for it; below 0 while its start is late; null: not known.",
    )
    since_seconds: float = Field(ge=0, description="How long it has been.")
    gate: GateState | None = Field(None, description="Null until it was healthy once.")
    kv: KvState | None = Field(None, description="Null until it was healthy once.")
    in_flight: int = Field(0, ge=0, description="Requests on it, and those whose answers are only passed on.")
    sequences: int = Field(0, ge=0, description="Sequences on it; a request may have several.")
    peak_sequences: int = Field(0, ge=0, description="The most at once so far.")
    max_num_seqs: int | None = Field(None, description="Its sequence limit, configured or learned.")
    max_model_len: int | None = Field(None, description="Tokens; null until it was healthy once.")
    kind: str | None = Field(None, description="Of its engine: `vllm` or `llama-server`.")
    version: str | None = Field(None, description="Of its engine.")
    models: tuple[str, ...] = Field((), description="Names it serves, LoRA adapters included.")
    adapters: dict[str, str] = Field(
        default_factory=dict,
        description="LoRA adapters it is to have, or no more: loaded, loading, unloading, or why not.",
    )
    missing_metrics: tuple[str, ...] = Field((), description="Metrics kvgate looks for that it does not export.")
    scrape_age_seconds: float | None = Field(None, description="Age of the last scrape; null: there was none.")
    model: str | None = Field(None, description="The model whose requests it gets; null until it was healthy once.")
    engine: EngineTotals = Field(default_factory=EngineTotals, description="What its engine has done.")
    pace: Pace | None = Field(
        None,
        description="What its engine completes now and did at first, since it serves without a break; null while that "
        "is too short, too little or not the same work.",
    )


class QueueState(_Shown):
    """The queue of one model."""

    model: str
    depth: int = Field(ge=0, description="Requests.")
    bytes: int = Field(0, ge=0, description="Bytes of their bodies.")
    oldest_seconds: float | None = Field(None, description="How long the oldest has waited; null: nobody waits.")
    saturation: float | None = Field(
        None,
        description="What runs and waits, as a share of what kvgate fills the endpoints to: 1 is at target; null: not "
        "known.",
    )
    backlog_seconds: float | None = Field(
        None, description="How long all that waits takes to serve, at the present pace; null: not known."
    )
    waiting_without_endpoint: int = Field(0, ge=0, description="Requests that wait while no endpoint takes traffic.")


class NotCountedHere(_Shown):
    """Requests whose prompts kvgate does not count by itself."""

    api: str
    feature: str = Field(description="What they bring; `prompt` stands for all of this API.")
    by: str = Field(description="Who counts them: the engine, or nobody exactly (`estimate`).")
    reason: str


class CountingState(_Shown):
    """How the prompts of one model are counted."""

    model: str
    mode: str = Field(description="Who counts an ordinary conversation: kvgate itself, or the engine.")
    reason: str | None = Field(None, description="Why the engine counts, all or some.")
    not_here: tuple[NotCountedHere, ...] = Field((), description="The exceptions; all else kvgate counts itself.")
    not_compared: tuple[str, ...] = Field(
        (), description="The endpoints whose counts are yet to be compared: until then kvgate takes its own for theirs."
    )
    ids_to: tuple[str, ...] = Field(
        (), description="The endpoints that get the token ids of long prompts, and do not tokenize these again."
    )


class TierState(_Shown):
    """This process among those that serve together."""

    role: Literal["alone", "owner", "front"] = Field(
        "alone", description="Whether it decides for itself, for others, or leaves that to the owner."
    )
    id: str | None = Field(None, description="Its own name among them; null where it is alone.")
    owner: str | None = Field(None, description="The name of the process that decides.")
    epoch: int | None = Field(None, description="Counts the owners; null where one machine has all of them.")
    members: tuple[str, ...] = Field((), description="The fronts that are connected to the owner.")
    standing: str | None = Field(None, description="In a tier: standing by, owning, lapsed, cut off or alone.")
    share: float | None = Field(
        None, ge=0, le=1, description="In a tier: share of each engine that it may fill; 0 where another decides."
    )
    lease_seconds: float | None = Field(None, description="How long it may decide without an answer of Redis.")
    redis: bool | None = Field(None, description="In a tier: whether Redis answered the last question.")
    gateways: int | None = Field(None, ge=0, description="In a tier: those that Redis has just heard of.")


class GatewayState(_Shown):
    """The whole state of a gateway."""

    version: str = Field(description="Of kvgate.")
    mode: Literal["enforce", "observe"]
    draining: bool = Field(description="Shutting down: no new work is taken.")
    ready: bool = Field(
        description="An endpoint has been healthy since start, or starts on demand, and the gateway is not draining."
    )
    endpoints: tuple[EndpointState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    counting: tuple[CountingState, ...] = ()
    tier: TierState = Field(default_factory=TierState, description="Which process answers, and which decides.")


class Decided(_Shown):
    """The part of the state that the owner of the decisions knows."""

    endpoints: tuple[EndpointState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    tier: TierState = Field(default_factory=TierState)


class UnknownEndpointError(LookupError):
    """No endpoint has this id."""


class UnknownModelError(LookupError):
    """No endpoint serves a model of this name."""


class Deciding(Protocol):
    """The owner of the decisions, as admin routes see it."""

    async def decided(self) -> Decided:
        """The endpoints and queues now."""
        ...

    async def picture(self, after: float) -> Picture:
        """The picture for `/kvgate/events`, with the points of its history after this time.

        Raises:
            TimeoutError: the process that decides does not answer.
        """
        ...

    async def drain(self, endpoint_id: str) -> None:
        """Send no new requests to an endpoint; those on it finish.

        Raises:
            UnknownEndpointError: there is none of this id.
        """
        ...

    async def undrain(self, endpoint_id: str) -> None:
        """Take a drained endpoint back as soon as a probe finds it healthy.

        Raises:
            UnknownEndpointError: there is none of this id.
        """
        ...

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """Have every endpoint of a model load a LoRA adapter, or unload it where there is no path.

        Raises:
            UnknownModelError: no endpoint serves it.
        """
        ...


class StateSource(Protocol):
    """The state that admin routes read and change; the composition root implements it.

    Attributes:
        draining: whether the gateway is shutting down.
    """

    draining: bool

    @property
    def ready(self) -> bool:
        """Whether it serves, as far as is known without asking who decides."""
        ...

    async def state(self) -> GatewayState:
        """The gateway now."""
        ...

    async def drain(self, endpoint_id: str) -> None:
        """See `Deciding.drain`."""
        ...

    async def undrain(self, endpoint_id: str) -> None:
        """See `Deciding.undrain`."""
        ...

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """See `Deciding.give`."""
        ...
