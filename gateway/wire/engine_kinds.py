"""PURE. The kinds of engines: what differs in how each is asked, in what it says, and in what it does when it is full.

Rows but vLLM's and llama-server's are from their sources: SGLang 0.5, TGI 3.3, TensorRT-LLM 1.2, Ollama of August 2026.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

import msgspec


class KvOut(StrEnum):
    """What an engine does when its KV cache runs out."""

    PREEMPT = "preempt"
    """A running request loses its blocks and is computed again later."""
    KILL_ALL = "kill_all"
    """All that runs fails, and so does all that has been streamed."""
    NEVER = "never"
    """It does not: a request begins only when there is room for its prompt and its whole answer."""


class OverLength(StrEnum):
    """What becomes of a prompt that is longer than the model's context."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"
    """Its beginning is dropped, and nobody is told."""


class Meaning(Enum):
    """What an engine's error says."""

    BUSY = auto()
    """It has no room now; it is well."""
    LOADING = auto()
    """It is not ready yet."""
    DEAD = auto()
    """It will answer nothing any more."""
    TOO_LONG = auto()
    """The request exceeds the model's length."""
    FAILED = auto()
    """It broke down on a request, though its status blames the client."""
    INVALID = auto()
    """It cannot take such a request, though its status blames itself."""
    LACKING = auto()
    """It was started without what the request needs; another may have been started with it."""


@dataclass(frozen=True, slots=True)
class Said:
    """An error of an engine.

    Attributes:
        means: what it says.
        text: a part of its message.
        statuses: those it comes with, as HTTP status or inside a stream.
        whole: the text is all of the message. Errors of requests repeat what clients wrote.
    """

    means: Meaning
    text: str
    statuses: tuple[int, ...]
    whole: bool = False

    def matches(self, status: int, message: str) -> bool:
        """Whether an error is this one."""
        return status in self.statuses and (message == self.text if self.whole else self.text in message)


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What a gate needs to know of one engine.

    Attributes:
        name: in the settings, in the state, in logs and in docs.
        owner: `owned_by` of its model cards, by which it is recognised; None if that tells nothing.
        sign: a route and a text in its answer, by which one without an owner is recognised.
        health: the route that answers 200 while it is well.
        loads: seconds that a request may wait for its first token because it has its model loaded.
        gauges: the route that is read at each probe; None if it has none.
        about: the routes that may tell the rest of its identity; the first that answers counts.
        kv_out: what it does when its KV cache runs out.
        over_length: what it does with a prompt that is too long.
        errors: what its errors mean.
        ill: what a 503 of its health route means, if `errors` does not say.
        counts: whether its own routes count every request that it serves, so that kvgate needs no tokenizer for it.
        caseless: whether it takes the name of a field for the same in any case of its letters.
        clamps: whether it cuts `max_tokens` to its length; None if it has to be asked.
        tells_one: whether the `usage` of several sequences is that of one of them.
        aborts_while_well: whether it ends streams with `finish_reason` "abort" while it is well: for want of room, or
            as they ask for what it cannot do. Others do so as they shut down.
        ends_completions: whether it ends one without a limit after 16 tokens, as OpenAI does. Others go on.
    """

    name: str
    owner: str | None
    gauges: str | None
    about: tuple[str, ...]
    kv_out: KvOut
    sign: tuple[str, str] | None = None
    health: str = "/health"
    loads: float = 0.0
    over_length: OverLength = OverLength.REFUSE
    errors: tuple[Said, ...] = ()
    ill: str = "the engine is dead"
    counts: bool = False
    caseless: bool = False
    clamps: bool | None = None
    tells_one: bool = False
    aborts_while_well: bool = False
    ends_completions: bool = False

    def meaning(self, status: int, message: str) -> Meaning | None:
        """What an error of it means; None if it is an ordinary one."""
        return next((said.means for said in self.errors if said.matches(status, message)), None)


VLLM = EngineKind(
    "vllm",
    "vllm",
    "/metrics",
    ("/version",),
    KvOut.PREEMPT,
    errors=(
        Said(Meaning.BUSY, "currently busy", (503,)),
        Said(Meaning.BUSY, "backlog limit", (503,)),
        Said(Meaning.BUSY, "currently scaling", (503,)),
        Said(
            Meaning.DEAD,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            (500, 503),
            whole=True,
        ),
        Said(Meaning.LACKING, "--tool-call-parser to be set", (400,)),
        Said(Meaning.LACKING, "default chat template is no longer allowed", (400,)),
    ),
    ends_completions=True,
)
"""All versions from 0.8.5 on, and any front end: what one has is found by asking. Its "issue" is `EngineDeadError`
(v1/engine/exceptions.py, 0.32), which vLLM calls unrecoverable; its server ends a moment later. What an engine lacks is
said by renderers/{online_renderer,hf}.py: at once, so that one without it has the fewest requests."""

LLAMA_SERVER = EngineKind(
    "llama-server",
    "llamacpp",
    "/slots",
    ("/props",),
    KvOut.KILL_ALL,
    errors=(
        Said(Meaning.LOADING, "Loading model", (503,)),
        Said(Meaning.TOO_LONG, "exceeds the available context size", (400,)),
        Said(Meaning.INVALID, " input is not supported - hint: ", (500,)),
        Said(Meaning.INVALID, "Failed to parse tools: ", (500,)),
        Said(Meaning.INVALID, "Failed to parse messages: ", (500,)),
    ),
    counts=True,
    clamps=True,
    tells_one=True,
)
"""llama.cpp's server, as builds of November 2026 answer. Without `-np` its slots share one cache, and when it overflows
every request that runs gets "Context size has been exceeded." (measured). So are its fields, on all routes but
`/v1/messages`."""

SGLANG = EngineKind(
    "sglang",
    "sglang",
    "/metrics",
    ("/server_info", "/get_server_info"),
    KvOut.PREEMPT,
    errors=(
        Said(Meaning.BUSY, "The request queue is full.", (503,)),
        Said(Meaning.BUSY, "The request is aborted by a higher priority request.", (503,)),
        Said(Meaning.TOO_LONG, "longer than the model's context length", (400,)),
        Said(Meaning.TOO_LONG, "exceeds the model's maximum context length", (400,)),
    ),
    ill="it starts, ends or generates nothing",
    clamps=False,
    aborts_while_well=True,
    ends_completions=True,
)
"""Its health route generates a token if nothing else runs, and takes a second. Of priorities it takes the highest
first, and preempts others for them, unless it is told otherwise (`--schedule-low-priority-values-first`)."""

TGI = EngineKind(
    "tgi",
    None,
    "/metrics",
    ("/info",),
    KvOut.NEVER,
    sign=("/info", '"text-generation-router'),
    errors=(
        Said(Meaning.BUSY, "Model is overloaded", (429, 422), whole=True),
        Said(Meaning.FAILED, "Request failed during generation", (424, 422)),
        Said(Meaning.TOO_LONG, "`inputs` tokens + `max_new_tokens` must be", (422,)),
        Said(Meaning.TOO_LONG, "`inputs` must have less than", (422,)),
    ),
    counts=True,
    clamps=False,
)
"""Inside a stream each of its errors has the code 422."""

TENSORRT_LLM = EngineKind(
    "tensorrt-llm",
    "tensorrt_llm",
    "/metrics",
    ("/version",),
    KvOut.NEVER,
    errors=(Said(Meaning.TOO_LONG, "The sum of prompt length", (400,)),),
    clamps=True,
)
"""`trtllm-serve`. It tells no length, and has no queue that could be full. It refuses fields that it does not know, as
`priority`; a newer one takes it from 0 to 1, the highest first."""

OLLAMA = EngineKind(
    "ollama",
    None,
    None,
    ("/api/ps",),
    KvOut.NEVER,
    sign=("/", "Ollama is running"),
    health="/",
    loads=300.0,
    over_length=OverLength.TRUNCATE,
    errors=(Said(Meaning.BUSY, "server busy, please try again.", (503,)),),
    caseless=True,
    clamps=True,
)
"""Each of its slots has a cache of its own. It loads a model with the first request for it, gives that up when the
client leaves, and by itself once a load stands still for `OLLAMA_LOAD_TIMEOUT`, five minutes. It unloads one for which
no request came for so long, or for another, and tells the lengths of those that are loaded. It reads a body by Go's
`encoding/json`: of `model` and `Model`, the one that comes last."""

KINDS = {kind.name: kind for kind in (VLLM, LLAMA_SERVER, SGLANG, TGI, TENSORRT_LLM, OLLAMA)}
_BY_OWNER = {kind.owner: kind for kind in KINDS.values() if kind.owner is not None}


def meaning(status: int, message: str) -> Meaning | None:
    """What an error means, whichever engine it comes from; None if it is an ordinary one."""
    return next((found for kind in KINDS.values() if (found := kind.meaning(status, message)) is not None), None)


class _Card(msgspec.Struct):
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Card] = []


_models = msgspec.json.Decoder(_Models)


def owned_kind(models: bytes) -> EngineKind | None:
    """The kind of an engine, by its answer to `/v1/models`; None where that does not tell."""
    try:
        cards = _models.decode(models).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((_BY_OWNER[card.owned_by] for card in cards if card.owned_by in _BY_OWNER), None)
