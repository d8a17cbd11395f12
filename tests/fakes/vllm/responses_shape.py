"""The bytes of vLLM 0.32's `/v1/responses`."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tests.fakes.vllm.requests import ApiError, Generation
from tests.fakes.vllm.shapes import text_of

_json = msgspec.json.encode

USAGE_DETAILS = {
    "input_tokens_details": {
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "input_tokens_per_turn": [],
        "cached_tokens_per_turn": [],
    },
    "output_tokens_details": {
        "reasoning_tokens": 0,
        "tool_output_tokens": 0,
        "output_tokens_per_turn": [],
        "tool_output_tokens_per_turn": [],
    },
}


class ResponsesShape:
    """Events that are numbered through; two leave before the first token, and an error tears the body."""

    def __init__(self, request: Generation, request_id: str, created: int) -> None:
        self.request = request
        self.id = request_id
        self.created = created
        self.item_id = f"msg_{hashlib.sha256(request_id.encode()).hexdigest()[:16]}"
        self._numbered = 0

    def opening(self) -> list[bytes]:
        response = {"response": self._response("in_progress", [], None, None)}
        return [self._event("response.created", response), self._event("response.in_progress", response)]

    def first(self, index: int) -> list[bytes]:
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return [
            self._event("response.output_item.added", {"item": self._item([], "in_progress"), "output_index": 0}),
            self._event(
                "response.content_part.added",
                {"content_index": 0, "item_id": self.item_id, "output_index": 0, "part": part},
            ),
        ]

    def token(self, index: int, text: bytes, completion: int) -> bytes:
        number = self._numbered
        self._numbered += 1
        return (
            b"event: response.output_text.delta\n"
            b'data: {"content_index":0,"delta":"%b","item_id":"%b","logprobs":[],"output_index":0,'
            b'"sequence_number":%d,"type":"response.output_text.delta"}\n\n' % (text, self.item_id.encode(), number)
        )

    def last(self, index: int, text: bytes, reason: str, completion: int) -> list[bytes]:
        whole = text_of(completion, reason)
        place = {"content_index": 0, "item_id": self.item_id}
        part = self._part(whole)
        events = [self.token(index, text, completion)] if text else []
        events.append(
            self._event(
                "response.output_text.done",
                {**place, "logprobs": [], "output_index": 0},
                after={"text": whole},
            )
        )
        events.append(self._event("response.content_part.done", {**place, "output_index": 0, "part": part}))
        item = {"item": self._item([part], "completed"), "output_index": 0}
        events.append(self._event("response.output_item.done", item))
        events.append(self._event("response.completed", {"response": self._finished(completion, reason)}))
        return events

    def closing(self, completion: int) -> list[bytes]:
        return []

    def failure(self, error: ApiError) -> list[bytes] | None:
        return None

    def body(self, completion: int, reasons: Sequence[str]) -> bytes:
        return _json(self._finished(completion, reasons[0]))

    def _event(self, name: str, fields: dict[str, Any], after: dict[str, Any] | None = None) -> bytes:
        data = {**fields, "sequence_number": self._numbered, **(after or {}), "type": name}
        self._numbered += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), _json(data))

    def _part(self, text: str) -> dict[str, Any]:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _item(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _finished(self, completion: int, reason: str) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": USAGE_DETAILS["input_tokens_details"],
            "output_tokens": completion,
            "output_tokens_details": USAGE_DETAILS["output_tokens_details"],
            "total_tokens": prompt + completion,
        }
        output = [self._item([self._part(text_of(completion, reason))], "completed")]
        incomplete = {"reason": "max_output_tokens"} if reason == "length" else None
        return self._response("incomplete" if incomplete else "completed", output, usage, incomplete)

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None,
        incomplete: dict[str, str] | None,
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": incomplete,
            "instructions": None,
            "metadata": None,
            "model": self.request.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.request.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }
