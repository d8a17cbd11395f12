"""Everything the fake answers at once: what vLLM reports about itself, and the fake's own controls under `/fake/`."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.fakes.vllm.connection import SeenRequest
from tests.fakes.vllm.exposition import CONTENT_TYPE
from tests.fakes.vllm.faults import Fault
from tests.fakes.vllm.requests import PROMPT_FIELD, Api, ApiError, Body, decode
from tests.fakes.vllm.shapes import error_body

if TYPE_CHECKING:
    from tests.fakes.vllm.server import FakeVllm

Response = tuple[int, bytes, str]
JSON = "application/json"
_MAX_RANK = 16
_OF_DEVELOPMENT = frozenset({"/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume"})
PERMISSION = {
    "id": "modelperm-0123456789abcdef",
    "object": "model_permission",
    "created": 0,
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def no_response(identifier: str) -> ApiError:
    """The refusal of what needs a stored response that is not there."""
    return ApiError(404, f"Response with id '{identifier}' not found.", "invalid_request_error", "response_id")


def route(fake: "FakeVllm", seen: SeenRequest, path: str) -> Response:
    """Answer a request that generates nothing."""
    known = fake.sleep != "missing" or path not in _OF_DEVELOPMENT
    handler = ROUTES.get((seen.method, path)) if known else None
    if handler is not None:
        return handler(fake, seen)
    stored = path.removeprefix("/v1/responses/").removesuffix("/cancel")
    if stored in fake.responses:
        return _ok({"id": stored, "object": "response", "status": "completed", "model": fake.settings.model})
    if path.startswith("/v1/responses/"):
        return 404, error_body(no_response(stored), path), JSON
    if path in PROMPT_FIELD or (known and any(served == path for _, served in ROUTES)):
        return 405, b'{"detail":"Method Not Allowed"}', JSON
    return 404, b'{"detail":"Not Found"}', JSON


def _ok(value: Any) -> Response:
    return 200, msgspec.json.encode(value), JSON


def _empty(fake: "FakeVllm", seen: SeenRequest) -> Response:
    return 200, b"", JSON


def _models(fake: "FakeVllm", seen: SeenRequest) -> Response:
    model = {
        "id": fake.settings.model,
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": fake.settings.root,
        "parent": None,
        "max_model_len": fake.settings.max_model_len,
        "permission": [PERMISSION],
    }
    root = fake.settings.model
    loras = [{**model, "id": name, "root": path, "parent": root} for name, path in fake.loras.items()]
    return _ok({"object": "list", "data": [model, *loras]})


def _load_lora(fake: "FakeVllm", seen: SeenRequest) -> Response:
    """Load an adapter; one whose path does not exist, or has no `adapter_config.json`, is refused in vLLM's words."""
    if fake.settings.loras is None:
        return 404, b'{"detail":"Not Found"}', JSON
    body = decode(seen.body)
    name, path = body["lora_name"], body["lora_path"]
    if not (Path(path) / "adapter_config.json").is_file():
        message = f"Loading lora {name} failed: No adapter found for {path}"
        raise ApiError(404, message, "NotFoundError")
    rank = json.loads((Path(path) / "adapter_config.json").read_text())["r"]
    if rank > _MAX_RANK:
        message = f"Call to add_lora method failed: LoRA rank {rank} is greater than max_lora_rank {_MAX_RANK}."
        raise ApiError(500, message, "InternalServerError")
    fake.loras[name] = path
    return 200, f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain"


def _unload_lora(fake: "FakeVllm", seen: SeenRequest) -> Response:
    name = decode(seen.body)["lora_name"]
    if fake.loras.pop(name, None) is None:
        raise ApiError(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
    return 200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), "text/plain"


def _tokenize(fake: "FakeVllm", seen: SeenRequest) -> Response:
    body = decode(seen.body)
    _check_model(fake, body)
    ids = list(fake.tokenize(Api.CHAT if "messages" in body else Api.COMPLETIONS, body)[0])
    return _ok({"count": len(ids), "max_model_len": fake.settings.max_model_len, "tokens": ids, "token_strs": None})


def _detokenize(fake: "FakeVllm", seen: SeenRequest) -> Response:
    return _ok({"prompt": " ".join(str(token) for token in decode(seen.body)["tokens"])})


def _count_tokens(fake: "FakeVllm", seen: SeenRequest) -> Response:
    body = decode(seen.body)
    _check_model(fake, body)
    count = len(fake.tokenize(Api.MESSAGES, body)[0])
    return _ok({"input_tokens": count, "context_management": {"original_input_tokens": count}})


def _check_model(fake: "FakeVllm", body: Body) -> None:
    model = body.get("model") or fake.settings.model
    if model != fake.settings.model and model not in fake.loras:
        message = f"The model `{model}` does not exist. Valid aliases: {fake.settings.model}."
        raise ApiError(404, message, "NotFoundError", "model")


def _metrics(fake: "FakeVllm", seen: SeenRequest) -> Response:
    return 200, fake.metrics(), CONTENT_TYPE


def _pause(fake: "FakeVllm", seen: SeenRequest) -> Response:
    fake.freeze()
    return 200, b"", JSON


def _thaw(fake: "FakeVllm", seen: SeenRequest) -> Response:
    fake.thaw()
    return 200, b"", JSON


def _sleep(fake: "FakeVllm", seen: SeenRequest) -> Response:
    if fake.sleep != "works":
        raise ApiError(500, "CUDA error: out of memory", "InternalServerError")
    if "/wake_up" in seen.path:
        fake.thaw()
        return _ok({"status": "awake", "tags": None})
    fake.freeze(asleep=True)
    return _ok({"status": "sleeping", "level": 1})


def _sleepless(fake: "FakeVllm", seen: SeenRequest) -> Response:
    fake.sleep = "fails"
    return 200, b"", JSON


def _add_faults(fake: "FakeVllm", seen: SeenRequest) -> Response:
    for fault in msgspec.json.decode(seen.body, type=list[Fault]):
        fake.faults.add(fault)
    return 200, b"", JSON


def _clear_faults(fake: "FakeVllm", seen: SeenRequest) -> Response:
    fake.faults.clear()
    return 200, b"", JSON


def _refuse(fake: "FakeVllm", seen: SeenRequest) -> Response:
    """Refuse connections for `seconds`; this answer still leaves."""
    seconds = float(decode(seen.body)["seconds"])
    loop = asyncio.get_running_loop()

    async def pause() -> None:
        await fake.refuse()
        await asyncio.sleep(seconds)
        await fake.listen()

    fake.background.append(loop.create_task(pause()))
    return 200, b"", JSON


def _block(fake: "FakeVllm", seen: SeenRequest) -> Response:
    """Block the event loop for `seconds`, as soon as this answer has left."""
    asyncio.get_running_loop().call_later(0.02, fake.block, float(decode(seen.body)["seconds"]))
    return 200, b"", JSON


def _spin(fake: "FakeVllm", seen: SeenRequest) -> Response:
    """Have a child compute for `seconds`, as the core of a busy engine does."""
    until = f"time.monotonic() + {float(decode(seen.body)['seconds'])}"
    code = f"import time\nuntil = {until}\nwhile time.monotonic() < until: pass"
    fake.background.append(asyncio.get_running_loop().create_task(_run(code)))
    return 200, b"", JSON


async def _run(code: str) -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", code)
    try:
        await child.wait()
    except asyncio.CancelledError:
        child.kill()
        raise


def _seen(fake: "FakeVllm", seen: SeenRequest) -> Response:
    return _ok(
        [
            {
                "method": request.method,
                "path": request.path,
                "headers": request.headers,
                "body": request.body.decode("utf-8", "replace"),
                "connection": request.connection,
                "answered": request.answered,
                "client_gone": request.client_gone_at is not None,
            }
            for request in fake.seen
        ]
    )


ROUTES: dict[tuple[str, str], Callable[["FakeVllm", SeenRequest], Response]] = {
    ("GET", "/health"): _empty,
    ("GET", "/ping"): _empty,
    ("GET", "/version"): lambda fake, seen: _ok({"version": "0.32.0"}),
    ("GET", "/load"): lambda fake, seen: _ok({"server_load": 0}),
    ("GET", "/metrics"): _metrics,
    ("GET", "/v1/models"): _models,
    ("POST", "/tokenize"): _tokenize,
    ("POST", "/detokenize"): _detokenize,
    ("GET", "/tokenizer_info"): lambda fake, seen: _ok({"tokenizer_class": "Words", "chat_template": ""}),
    ("POST", "/v1/messages/count_tokens"): _count_tokens,
    ("POST", "/v1/load_lora_adapter"): _load_lora,
    ("POST", "/v1/unload_lora_adapter"): _unload_lora,
    ("GET", "/is_sleeping"): lambda fake, seen: _ok({"is_sleeping": not fake.awake}),
    ("POST", "/sleep"): _sleep,
    ("POST", "/wake_up"): _sleep,
    ("POST", "/pause"): _pause,
    ("POST", "/resume"): _thaw,
    ("POST", "/fake/faults"): _add_faults,
    ("DELETE", "/fake/faults"): _clear_faults,
    ("POST", "/fake/sleepless"): _sleepless,
    ("POST", "/fake/refuse"): _refuse,
    ("POST", "/fake/block"): _block,
    ("POST", "/fake/spin"): _spin,
    ("GET", "/fake/requests"): _seen,
}
