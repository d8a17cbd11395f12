"""The bytes of vLLM 0.32's answers: one class per API, for streams and for whole bodies.

Captured from a running 0.32.0. JSON is compact, except for the error events of a stream. The text of the n-th token
of an answer is " n", counted from 0, so that a reader can tell a lost, doubled or reordered event.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tests.fakes.vllm.requests import Api, ApiError, Generation

FINGERPRINT = "vllm-0.32.0-469b882e"
DONE = b"data: [DONE]\n\n"
BUSY = ApiError(
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)
DEAD = ApiError(
    500,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
)
ENDED = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}
"""`finish_reason` in Anthropic's words; vLLM has none of its own for an abort."""

_json = msgspec.json.encode


class Shape(Protocol):
    """How one API writes a generation. Every method returns whole SSE events, one per element."""

    def opening(self) -> list[bytes]:
        """What leaves with the headers, before any token."""

    def first(self, index: int) -> list[bytes]:
        """What goes before the first token of a choice."""

    def token(self, index: int, text: bytes, completion: int) -> bytes:
        """One token; `completion` counts those of the choice so far."""

    def last(self, index: int, text: bytes, reason: str, completion: int) -> list[bytes]:
        """The last token with its reason; `text` is empty for an end of sequence."""

    def closing(self, completion: int) -> list[bytes]:
        """Usage and the end, after every choice is finished."""

    def failure(self, error: ApiError) -> list[bytes] | None:
        """An error after the 200; None where vLLM tears the body instead."""

    def body(self, completion: int, reasons: Sequence[str]) -> bytes:
        """The answer that is not streamed."""


def text_of(tokens: int, reason: str) -> str:
    """Text of an answer of so many tokens."""
    return "".join(f" {number}" for number in range(tokens - (reason == "stop")))


def error_body(error: ApiError, path: str) -> bytes:
    """An error as the body of an answer."""
    if path == Api.MESSAGES and error.kind != "Bad Request":
        return _json({"type": "error", "error": {"type": error.kind, "message": error.message}})
    return _json({"error": _error_fields(error)})


def _error_fields(error: ApiError) -> dict[str, Any]:
    return {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}


def _openai_failure(error: ApiError) -> list[bytes]:
    param = b"null" if error.param is None else _json(error.param)
    fields = (_json(error.message), _json(error.kind), param, error.code)
    return [b'data: {"error": {"message": %b, "type": %b, "param": %b, "code": %d}}\n\n' % fields, DONE]


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


WHOLE_USAGE = {"prompt_tokens_details": None, "completion_tokens_details": None}
WHOLE_TAIL = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


class _OpenAi:
    """What chat and completions share: ids, usage, fingerprint."""

    object_name: str
    delta: tuple[bytes, bytes]
    """What stands around the text of a token, from the choice's index to the end of the choice."""
    ended: tuple[bytes, bytes]
    """The same on the finishing event, up to the reason and after it."""
    usage_tail: bytes = b""

    def __init__(self, request: Generation, request_id: str, created: int) -> None:
        self.request = request
        self.id = request_id
        self.created = created
        names = (_json(request_id), _json(self.object_name), created, _json(request.model))
        head = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % names
        self._head = head
        count = len(request.prompts) * request.n
        self._before = [head + b'{"index":%d,' % index + self.delta[0] for index in range(count)]

    def opening(self) -> list[bytes]:
        return []

    def first(self, index: int) -> list[bytes]:
        return []

    def token(self, index: int, text: bytes, completion: int) -> bytes:
        return self._before[index] + text + self.delta[1] + self._running_usage(completion) + b"}\n\n"

    def last(self, index: int, text: bytes, reason: str, completion: int) -> list[bytes]:
        before, after = self.ended
        choice = self._before[index] + text + before + _json(reason) + after
        tail = b"" if self.request.include_usage else b',"system_fingerprint":%b' % _json(FINGERPRINT)
        return [choice + self._running_usage(completion) + tail + b"}\n\n"]

    def closing(self, completion: int) -> list[bytes]:
        if not self.request.include_usage:
            return [DONE]
        usage = (_json(_usage(self.request.prompt_tokens, completion)), _json(FINGERPRINT))
        return [self._head + b'],"usage":%b,"system_fingerprint":%b}\n\n' % usage, DONE]

    def failure(self, error: ApiError) -> list[bytes] | None:
        return _openai_failure(error)

    def _running_usage(self, completion: int) -> bytes:
        if not self.request.continuous_usage:
            return b""
        prompt = self.request.prompt_tokens
        numbers = (prompt, prompt + completion, completion, self.usage_tail)
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % numbers

    def _whole(self, completion: int, choices: list[dict[str, Any]], tail: dict[str, Any]) -> bytes:
        return _json(
            {
                "id": self.id,
                "object": self.object_name.removesuffix(".chunk"),
                "created": self.created,
                "model": self.request.model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": {**_usage(self.request.prompt_tokens, completion), **WHOLE_USAGE},
                **tail,
            }
        )


class ChatShape(_OpenAi):
    object_name = "chat.completion.chunk"
    delta = (b'"delta":{"content":"', b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]')
    ended = (b'"},"logprobs":null,"finish_reason":', b',"stop_reason":null,"token_ids":null}]')
    usage_tail = b',"completion_tokens_details":null'

    def first(self, index: int) -> list[bytes]:
        """The roles of all choices leave together."""
        if index:
            return []
        behind = b"]" + self._running_usage(0) + b',"prompt_token_ids":null,"prompt_text":null}\n\n'
        role = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return [self._head + b'{"index":%d,' % number + role + behind for number in range(self.request.n)]

    def body(self, completion: int, reasons: Sequence[str]) -> bytes:
        message = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "reasoning": None}
        text = text_of(self.request.output_tokens, self.request.finish_reason)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, **message},
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, reason in enumerate(reasons)
        ]
        tail = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None, **WHOLE_TAIL}
        return self._whole(completion, choices, tail)


class CompletionShape(_OpenAi):
    object_name = "text_completion"
    delta = (
        b'"text":"',
        b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]',
    )
    ended = (
        b'","logprobs":null,"finish_reason":',
        b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]',
    )

    def body(self, completion: int, reasons: Sequence[str]) -> bytes:
        text = text_of(self.request.output_tokens, self.request.finish_reason)
        choices = [
            {
                "index": index,
                "text": text,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, reason in enumerate(reasons)
        ]
        return self._whole(completion, choices, WHOLE_TAIL)


class MessagesShape:
    """Anthropic's messages, which vLLM makes from its own chat stream."""

    def __init__(self, request: Generation, request_id: str, created: int) -> None:
        self.request = request
        self.id = request_id

    def opening(self) -> list[bytes]:
        return []

    def first(self, index: int) -> list[bytes]:
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self.request.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.request.prompt_tokens, "output_tokens": 0},
        }
        block = {"content_block": {"type": "text", "text": ""}, "index": 0}
        return [named("message_start", {"message": message}), named("content_block_start", block)]

    def token(self, index: int, text: bytes, completion: int) -> bytes:
        return (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"%b"},"index":0}\n\n' % text
        )

    def last(self, index: int, text: bytes, reason: str, completion: int) -> list[bytes]:
        ended = {
            "delta": {"stop_reason": ENDED[reason], "stop_sequence": None},
            "usage": {"input_tokens": self.request.prompt_tokens, "output_tokens": completion},
        }
        events = [named("content_block_stop", {"index": 0}), named("message_delta", ended)]
        return [self.token(index, text, completion), *events] if text else events

    def closing(self, completion: int) -> list[bytes]:
        return [named("message_stop", {})]

    def failure(self, error: ApiError) -> list[bytes] | None:
        """The status survives only inside a message about a chunk that did not validate."""
        cause = f"{{'error': {{'message': '{error.message[:2]}...am': None, 'code': {error.code}}}}}"
        message = "\n".join(
            ["2 validation errors for ChatCompletionStreamResponse"]
            + [
                f"{field}\n  Field required [type=missing, input_value={cause}, input_type=dict]"
                for field in ("model", "choices")
            ]
        )
        return [named("error", {"error": {"type": "internal_error", "message": message}})]

    def body(self, completion: int, reasons: Sequence[str]) -> bytes:
        text = text_of(self.request.output_tokens, self.request.finish_reason)
        return _json(
            {
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": text}],
                "model": self.request.model,
                "stop_reason": ENDED[reasons[0]],
                "usage": {"input_tokens": self.request.prompt_tokens, "output_tokens": completion},
            }
        )


def named(event: str, fields: dict[str, Any]) -> bytes:
    """An event in Anthropic's form: its name before the data and first in it."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), _json({"type": event, **fields}))
