"""Run by the engine's interpreter: bodies of `/v1/responses`, a line each, as vLLM itself converts them."""

import json
import sys
from typing import Any

from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # type: ignore[import-not-found, unused-ignore]
from vllm.entrypoints.openai.responses.utils import (  # type: ignore[import-not-found, unused-ignore]
    construct_input_messages,
    construct_tool_dicts,
    should_continue_final_message,
)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return [plain(item) for item in value]  # pydantic hands on some lists as iterators


for line in sys.stdin:
    try:
        request = ResponsesRequest.model_validate(json.loads(line))
        messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
        converted = {
            "messages": plain(messages),
            "tools": construct_tool_dicts(request.tools, request.tool_choice),
            "continued": should_continue_final_message(request.input),
        }
    except Exception as error:  # noqa: BLE001  # whatever it raises, it refuses
        converted = {"refused": type(error).__name__}
    print(json.dumps(converted), flush=True)
