"""What the fake reads of a request's body, and how it refuses what vLLM refuses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

Body = dict[str, Any]
Tokenize = Callable[[str, Body], list[Sequence[int]]]
"""From a path and a body to the token ids of each prompt in it."""


class Api(StrEnum):
    """The shapes of a generation, by their path."""

    CHAT = "/v1/chat/completions"
    BATCH = "/v1/chat/completions/batch"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


PROMPT_FIELD = dict.fromkeys(Api, "messages") | {Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}
MAX_TOKENS_FIELDS = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.BATCH: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
COMPLETIONS_DEFAULT = 16


class ApiError(Exception):
    """A refusal in vLLM's words; `code` is the HTTP status."""

    def __init__(self, code: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(frozen=True, slots=True)
class Generation:
    """What is asked for."""

    api: Api
    model: str
    prompts: tuple[int, ...]
    """Tokens of each prompt."""
    n: int
    max_tokens: int
    output_tokens: int
    """How many come: fewer than `max_tokens` where the answer ends by itself, and then the last has no text."""
    stream: bool
    include_usage: bool
    continuous_usage: bool

    @property
    def finish_reason(self) -> str:
        return "stop" if self.output_tokens < self.max_tokens else "length"

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompts)


def words(value: Any) -> int:
    """Whitespace-separated words of every text in it: the fake's idea of a token."""
    if isinstance(value, str):
        return len(value.split())
    if isinstance(value, list):
        return sum(words(item) for item in value)
    if isinstance(value, dict):
        return sum(words(value.get(key)) for key in ("content", "text"))
    return 0


def given_ids(body: Body) -> list[Sequence[int]] | None:
    """The prompts of a body that holds token ids in place of text."""
    handed_over = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if handed_over is not None:
        return [handed_over]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return [prompt]
        if isinstance(prompt[0], list):
            return list(prompt)
    return None


def tokenize_words(path: str, body: Body) -> list[Sequence[int]]:
    """One token per word, the system's with the rest; the ids mean nothing."""
    ids = given_ids(body)
    if ids is not None:
        return ids
    if path == Api.BATCH:
        return [tokenize_words(Api.CHAT, {"messages": conversation})[0] for conversation in body["messages"]]
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return [range(words(item)) for item in prompt]
    texts = [body.get(key) for key in ("system", "instructions", "messages", "input", "prompt")]
    return [range(max(1, sum(words(text) for text in texts)))]


def decode(raw: bytes) -> Body:
    """The body as JSON.

    Raises:
        ApiError: it is not, or not an object.
    """
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        detail = (
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': '{error}'}}}}"
        )
        raise ApiError(400, detail, "Bad Request", "body.0") from None
    if not isinstance(body, dict):
        raise ApiError(400, "1 validation error:\n  {'type': 'dict_type', 'loc': 'body'}", "Bad Request", "body")
    return body


def read(
    api: Api, body: Body, *, models: tuple[str, ...], max_model_len: int, natural: int, tokenize: Tokenize
) -> Generation:
    """Check a body as vLLM 0.32 does and say what it asks for.

    `natural` is how many tokens an answer has that no limit cuts short.

    Raises:
        ApiError: vLLM would refuse it.
    """
    field = PROMPT_FIELD[api]
    if field not in body:
        if api is Api.COMPLETIONS:
            message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
            raise ApiError(400, message, param="prompt")
        raise _invalid("missing", field, "Field required", f"<dict of {len(body)} items>")
    if api in (Api.CHAT, Api.BATCH, Api.MESSAGES) and not isinstance(body[field], list):
        raise _invalid("list_type", field, "Input should be a valid list", body[field])
    model = body.get("model") or models[0]
    if model not in models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(models)}."
        raise ApiError(404, message, "NotFoundError", "model")
    prompts = tuple(len(ids) for ids in tokenize(api, body))
    max_tokens = _max_tokens(api, body, max(prompts), max_model_len)
    natural = max_tokens if body.get("ignore_eos") else max(natural, body.get("min_tokens") or 0)
    options = body.get("stream_options") or {}
    return Generation(
        api=api,
        model=model,
        prompts=prompts,
        n=int(body.get("n") or 1),
        max_tokens=max_tokens,
        output_tokens=min(max_tokens, natural),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _max_tokens(api: Api, body: Body, prompt: int, max_model_len: int) -> int:
    if prompt > max_model_len:
        exact = "" if isinstance(body.get("prompt"), list) else "at least "
        number = prompt if not exact else max_model_len + 1
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{exact}{number} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={number})"
        )
        raise ApiError(400, message, param="input_tokens")
    default = COMPLETIONS_DEFAULT if api is Api.COMPLETIONS else max_model_len
    asked = next((int(body[name]) for name in MAX_TOKENS_FIELDS[api] if body.get(name) is not None), None)
    if asked is not None and asked > max_model_len:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={asked})"
        )
        raise ApiError(400, message, param="max_tokens")
    allowed = min(default if asked is None else asked, max_model_len - prompt)
    if allowed < 1:
        message = f"max_tokens must be at least 1, got {allowed}. (parameter=max_tokens, value={allowed})"
        raise ApiError(400, message, param="max_tokens")
    return allowed


def _invalid(kind: str, field: str, message: str, value: Any) -> ApiError:
    detail = f"{{'type': '{kind}', 'loc': 'body.{field}', 'msg': '{message}', 'input': {value!r}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"body.{field}")
