"""The facts of each engine, from its source: what its routes answer, and how it says what is wrong."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "m"
LENGTH = 256
"""Tokens of context."""
SLOTS = 8
KV_TOKENS = 1024

Fields = Mapping[str, Any]
Wrong = tuple[int, Any]
"""An error: the status and the JSON of its body."""


def words(fields: Fields) -> int:
    """The tokens of a prompt: its words, and two for each message and one for the answer's beginning."""
    if "messages" in fields:
        return 1 + sum(2 + len(str(message["content"]).split()) for message in fields["messages"])
    return len(str(fields.get("prompt", fields.get("inputs"))).split())


def listed(owner: str, **card: Any) -> Any:
    """A model list."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": owner, **card}]}


@dataclass(frozen=True)
class Facts:
    """One engine.

    Attributes:
        models: of `/v1/models`.
        get: other routes that answer JSON, or text if it is a string.
        counts: the answer of each counting route.
        health: the route of its health, and what it answers when the engine is ill; None if it is always well.
        busy: its answer when it has no room; None if it always queues.
        busy_events: the same as the first event of a stream.
        failed: its answer when it breaks down on a request, though with a status that blames the client.
        too_long: its answer to a prompt that is too long; None if it drops the beginning of that.
        data: what a line of a stream begins with.
    """

    models: Any
    get: Mapping[str, Callable[["State"], Any]]
    counts: Mapping[str, Callable[[Fields], Any]] = field(default_factory=dict)
    health: tuple[str, Wrong | None] = ("/health", (503, ""))
    busy: Wrong | None = None
    busy_events: tuple[Any, ...] = ()
    failed: Wrong | None = None
    too_long: Wrong | None = None
    data: bytes = b"data: "


@dataclass
class State:
    """What the gauges show."""

    running: int = 0
    waiting: int = 0
    used: int = 0
    """Tokens of the KV cache."""
    generated: int = 0


def _flat(status: int, message: str, kind: str) -> Wrong:
    return status, {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def _tgi(status: int, message: str, kind: str) -> Wrong:
    return status, {"error": message, "error_type": kind}


def _sglang_tokens(fields: Fields) -> Any:
    count = words(fields)
    return {"tokens": [7] * count, "count": count, "max_model_len": LENGTH}


def _tgi_tokens(fields: Fields) -> list[Any]:
    return [{"id": 7, "text": '{"id":', "start": 0, "stop": 0}] * words(fields)


def _sglang_metrics(state: State) -> str:
    labels = f'{{model_name="{MODEL}",tp_rank="0"}}'
    return (
        f"# TYPE sglang:num_running_reqs gauge\n"
        f"sglang:num_running_reqs{labels} {state.running}.0\n"
        f"sglang:num_queue_reqs{labels} {state.waiting}.0\n"
        f'sglang:num_queue_reqs{{model_name="{MODEL}",priority="1"}} {state.waiting}.0\n'
        f"sglang:token_usage{labels} {state.used / KV_TOKENS}\n"
        f"sglang:prompt_tokens_total{labels} 1.0\n"
        f"sglang:generation_tokens_total{labels} {state.generated}.0\n"
    )


def _tgi_metrics(state: State) -> str:
    return (
        f"# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size {state.running}\n"
        f"tgi_batch_current_max_tokens {state.used}\ntgi_queue_size {state.waiting}\n"
        f"tgi_request_generated_tokens_sum {state.generated}\ntgi_request_input_length_sum 1\n"
    )


def _iterations(state: State) -> Any:
    cache = {"maxNumBlocks": KV_TOKENS // 32, "usedNumBlocks": state.used // 32, "tokensPerBlock": 32}
    one = {"iter": 1, "numQueuedRequests": state.waiting, "numActiveRequests": state.running, "kvCacheStats": cache}
    return [one | {"maxNumActiveRequests": SLOTS}] if state.running else []


_SGLANG_FULL = _flat(503, "The request queue is full.", "SERVICE_UNAVAILABLE")
_OLLAMA_FULL = "server busy, please try again.  maximum pending requests exceeded"
_ABORTED = {"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": "abort", "matched_stop": None}]}

FACTS: dict[str, Facts] = {
    "sglang": Facts(
        models=listed("sglang", root="/nonexistent", parent=None, max_model_len=LENGTH),
        get={
            "/get_server_info": lambda _: {
                "version": "0.5.4",
                "max_total_num_tokens": KV_TOKENS,
                "max_running_requests": SLOTS,
                "dp_size": 1,
                "disable_radix_cache": False,
                "internal_states": [{"last_gen_throughput": 1.0}],
            },
            "/metrics": _sglang_metrics,
        },
        counts={"/tokenize": _sglang_tokens},
        busy=_SGLANG_FULL,
        busy_events=({"error": _SGLANG_FULL[1]}, _ABORTED),
        too_long=_flat(
            400,
            f"The input (300 tokens) is longer than the model's context length ({LENGTH} tokens).",
            "BadRequestError",
        ),
    ),
    "tgi": Facts(
        models=listed(MODEL),
        get={
            "/info": lambda _: {
                "model_id": MODEL,
                "max_concurrent_requests": SLOTS,
                "max_input_tokens": LENGTH - 1,
                "max_total_tokens": LENGTH,
                "router": "text-generation-router",
                "version": "3.3.7",
            },
            "/metrics": _tgi_metrics,
        },
        counts={
            "/chat_tokenize": lambda fields: {"tokenize_response": _tgi_tokens(fields), "templated_text": "..."},
            "/tokenize": _tgi_tokens,
        },
        health=("/health", _tgi(503, "unhealthy", "healthcheck")),
        busy=_tgi(429, "Model is overloaded", "overloaded"),
        failed=_tgi(424, "Request failed during generation: Server error: oops", "generation"),
        busy_events=({"error": {"message": "Model is overloaded", "http_status_code": 422}},),
        too_long=_tgi(
            422,
            f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {LENGTH}. Given: 300 `inputs` "
            "tokens and 5 `max_new_tokens`",
            "validation",
        ),
        data=b"data:",
    ),
    "tensorrt-llm": Facts(
        models=listed("tensorrt_llm"),
        get={"/version": lambda _: {"version": "1.2.0"}, "/metrics": _iterations},
        health=("/health", (503, "LLM is unavailable. Please check the server logs for more details.")),
        too_long=_flat(
            400,
            f"The sum of prompt length (300.0), query length (0) should not exceed max_num_tokens ({LENGTH})",
            "BadRequestError",
        ),
    ),
    "ollama": Facts(
        models={"object": "list", "data": [{"id": "m:latest", "object": "model", "created": 0, "owned_by": "library"}]},
        get={
            "/": lambda _: "Ollama is running",
            "/api/ps": lambda _: {"models": [{"name": "m:latest", "model": "m:latest", "context_length": LENGTH}]},
        },
        health=("/", None),
        busy=(503, {"error": {"message": _OLLAMA_FULL, "type": "api_error", "param": None, "code": None}}),
    ),
}


def as_body(answer: Any) -> tuple[bytes, str]:
    """An answer as it is sent, and its type."""
    if isinstance(answer, str):
        return answer.encode(), "text/plain; charset=utf-8"
    return json.dumps(answer, separators=(",", ":")).encode(), "application/json"
