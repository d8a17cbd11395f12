"""The route table: every path a client may call, and what kvgate does with it. All others are answered with 404."""

from dataclasses import dataclass
from enum import Enum, auto

from gateway.wire.request import Api


class Action(Enum):
    """What kvgate does with a request."""

    ADMIT = auto()
    """Count it, admit it, stream its answer."""
    RELAY = auto()
    """Pass it to a healthy endpoint of its model under a concurrency cap: it uses little KV cache."""
    LOOK_UP = auto()
    """The same, but its engine has no work with it: the API server answers by itself."""
    FOLLOW = auto()
    """Pass it to the endpoint that made the response it names."""
    ANSWER = auto()
    """Answer it here: the list of models."""


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the table. `path` may end in `*`, which stands for the rest."""

    method: str
    path: str
    action: Action
    api: Api | None = None


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", Action.ADMIT, Api.CHAT),
    Route("POST", "/v1/chat/completions/batch", Action.ADMIT, Api.BATCH),
    Route("POST", "/v1/completions", Action.ADMIT, Api.COMPLETIONS),
    Route("POST", "/v1/responses", Action.ADMIT, Api.RESPONSES),
    Route("POST", "/v1/messages", Action.ADMIT, Api.MESSAGES),
    Route("POST", "/tokenize", Action.LOOK_UP),
    Route("POST", "/detokenize", Action.LOOK_UP),
    Route("GET", "/tokenizer_info", Action.LOOK_UP),
    Route("POST", "/v1/embeddings", Action.RELAY),
    Route("POST", "/v2/embed", Action.RELAY),
    Route("POST", "/pooling", Action.RELAY),
    Route("POST", "/classify", Action.RELAY),
    Route("POST", "/score", Action.RELAY),
    Route("POST", "/v1/score", Action.RELAY),
    Route("POST", "/rerank", Action.RELAY),
    Route("POST", "/v1/rerank", Action.RELAY),
    Route("POST", "/v2/rerank", Action.RELAY),
    Route("POST", "/v1/messages/count_tokens", Action.LOOK_UP, Api.MESSAGES),
    Route("POST", "/v1/audio/*", Action.RELAY),
    Route("GET", "/v1/responses/*", Action.FOLLOW, Api.RESPONSES),
    Route("POST", "/v1/responses/*", Action.FOLLOW, Api.RESPONSES),
    Route("GET", "/v1/models", Action.ANSWER),
    Route("GET", "/v1/models/*", Action.ANSWER),
)

NOT_SERVED: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("/ping", "/load", "/server_info"),
        "They tell about one engine. kvgate's own `/health`, `/metrics` and `/kvgate/state` tell about all.",
    ),
    (
        ("/invocations", "/generative_scoring", "/v1/systemone", "/cohere/*"),
        "They generate from bodies that kvgate does not count. Use one of the four APIs.",
    ),
    (
        ("/inference/*", "*/render", "*/derender"),
        "Their prompts are token ids that another machine made, and their answers must go back through it.",
    ),
    (("/v1/realtime",), "A WebSocket: it generates for as long as somebody speaks."),
    (
        ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/*"),
        "They change which adapters one engine has. `/kvgate/adapters/load` and `/unload` do so for all of a model.",
    ),
    (
        (
            "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/abort_requests",
            "/release_kv_cache_memory", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
            "/collective_rpc", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/start_profile", "/stop_profile",
            "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update",
            "/start_draft_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version",
            "/weight_info", "/weight_checker", "/get_world_size", "/kv_event_sources",
        ),
        "They stop, change or look into one engine: for its operator, not for clients. Ask the engine itself.",
    ),
)  # fmt: skip
"""vLLM's other routes, and why each is not served here. A `*` stands for anything."""

_EXACT = {(route.method, route.path): route for route in ROUTES if not route.path.endswith("*")}
_DOTS = frozenset({".", ".."})
_PREFIXED = tuple((route.method, route.path[:-1], route) for route in ROUTES if route.path.endswith("*"))


def find(method: str, path: str) -> Route | None:
    """The route of a request; None if there is none."""
    route = _EXACT.get((method, path))
    if route is not None:
        return route
    if not _DOTS.isdisjoint(path.split("/")):
        return None  # the endpoint might resolve them, and reach a path outside the table
    for prefixed_method, prefix, prefixed in _PREFIXED:
        if method == prefixed_method and path.startswith(prefix) and len(path) > len(prefix):
            return prefixed
    return None


def methods(path: str) -> tuple[str, ...]:
    """The methods that a path takes; empty for an unknown path. HEAD goes with GET."""
    served = (("GET", ("GET", "HEAD")), ("POST", ("POST",)))
    return tuple(name for method, names in served if find(method, path) is not None for name in names)
