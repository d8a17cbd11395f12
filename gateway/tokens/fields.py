"""The fields of vLLM's requests that can carry prompt content, and what kvgate does with each.

`tests/integration/test_request_fields.py` reads vLLM's own models and fails on a field that is in neither table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.wire.request import Api


class Use(StrEnum):
    """The treatment of a field."""

    COUNTED = "counted"
    """Read, and counted as the engine counts it."""
    ENGINE = "counted by the engine"
    ESTIMATED = "estimated"
    """Only the engine knows its tokens, and has no counting route for it."""
    REFUSED = "refused"
    """Refused with 400 (`gateway.wire.request.REFUSED_FIELDS`)."""


_CONVERSATION = {
    "messages": Use.COUNTED,
    "tool_choice": Use.COUNTED,
    "add_generation_prompt": Use.COUNTED,
    "continue_final_message": Use.COUNTED,
    "add_special_tokens": Use.COUNTED,
    "documents": Use.COUNTED,
    "reasoning_effort": Use.COUNTED,
    "truncate_prompt_tokens": Use.COUNTED,
    "chat_template_kwargs": Use.COUNTED,
    "media_io_kwargs": Use.ENGINE,
    "mm_processor_kwargs": Use.ENGINE,
    "chat_template": Use.REFUSED,
    "kv_transfer_params": Use.REFUSED,
}

PROMPT_FIELDS: dict[Api, dict[str, Use]] = {
    Api.CHAT: _CONVERSATION | {"tools": Use.COUNTED},
    Api.BATCH: _CONVERSATION,
    Api.COMPLETIONS: {
        "prompt": Use.COUNTED,
        "add_special_tokens": Use.COUNTED,
        "truncate_prompt_tokens": Use.COUNTED,
        "suffix": Use.ESTIMATED,
        "prompt_embeds": Use.REFUSED,
        "kv_transfer_params": Use.REFUSED,
    },
    Api.RESPONSES: {
        "input": Use.COUNTED,
        "instructions": Use.COUNTED,
        "tools": Use.COUNTED,
        "tool_choice": Use.COUNTED,
        "reasoning": Use.COUNTED,
        "truncation": Use.COUNTED,
        "chat_template_kwargs": Use.COUNTED,
        "media_io_kwargs": Use.ENGINE,
        "mm_processor_kwargs": Use.ENGINE,
        "previous_response_id": Use.ESTIMATED,
        "prompt": Use.ESTIMATED,
        "previous_input_messages": Use.REFUSED,
        "kv_transfer_params": Use.REFUSED,
    },
    Api.MESSAGES: {
        "messages": Use.COUNTED,
        "system": Use.COUNTED,
        "tools": Use.COUNTED,
        "tool_choice": Use.COUNTED,
        "thinking": Use.COUNTED,
        "output_config": Use.COUNTED,
        "chat_template_kwargs": Use.COUNTED,
        "kv_transfer_params": Use.REFUSED,
    },
}
"""The fields of each API that decide its prompt."""

OTHER_FIELDS = frozenset(
    {
        # The model, the caller and the handling.
        "model", "user", "metadata", "priority", "request_id", "session_id", "service_tier", "store", "background",
        "cache_salt", "prompt_cache_key", "vllm_xargs", "ec_transfer_params",
        # Sampling, and the number of tokens.
        "n", "best_of", "use_beam_search", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens",
        "max_tool_calls", "parallel_tool_calls", "temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty",
        "presence_penalty", "repetition_penalty", "repetition_detection", "length_penalty", "early_stopping",
        "logit_bias", "allowed_token_ids", "bad_words", "stop", "stop_sequences", "stop_token_ids", "ignore_eos",
        "thinking_token_budget", "watermarking", "response_format", "structured_outputs", "guided_decoding_backend",
        "text",
        # The content of the answer.
        "stream", "stream_options", "stream_interval", "echo", "logprobs", "top_logprobs", "logprob_token_ids",
        "prompt_logprobs", "include", "include_reasoning", "include_stop_str_in_output", "skip_special_tokens",
        "spaces_between_special_tokens", "return_tokens_as_token_ids", "return_token_ids", "return_token_offsets",
        "return_prompt_text", "routed_experts_prompt_start", "mm_payload", "return_mm_kwargs",
        "enable_response_messages",
        # The end at which a prompt is cut: its length is the same.
        "truncation_side",
    }
)  # fmt: skip
"""All other fields. `response_format` enters the prompts only of models that the engine counts (Kimi K3): see
`gateway.tokens.local_count.engine_work`."""


_UNCOUNTED = {
    api: [(name, use) for name, use in uses.items() if use is not Use.COUNTED] for api, uses in PROMPT_FIELDS.items()
}


def set_aside(api: Api, fields: Mapping[str, Any]) -> None:
    """Raise for a request with a field that cannot be counted here.

    Raises:
        NotCountableError: no counting route takes the field either.
        NeedsEngineError: the engine can count it.
    """
    given = {use: name for name, use in _UNCOUNTED[api] if fields.get(name) is not None}
    if name := given.get(Use.ESTIMATED):
        raise NotCountableError(f"the request sets {name}")
    if name := given.get(Use.ENGINE):
        raise NeedsEngineError(f"the request sets {name}")
