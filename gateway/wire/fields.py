"""PURE. The fields of each kind of engine's requests, and what kvgate does with each: one table for each kind.

Versions: vLLM 0.32, SGLang 0.5.23, TensorRT-LLM of November 2026, Ollama of August 2026, TGI 3.3.7, llama-server of
November 2026. vLLM's table is held to its own models (`tests/integration/test_request_fields.py`), the others to lists
of names from their sources (`tests/unit/wire/test_fields.py`).

A field in no table passes as it is: engines get new ones, and clients set them before kvgate knows them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.wire.engine_kinds import KINDS, LLAMA_SERVER, OLLAMA, SGLANG, TENSORRT_LLM, TGI, VLLM


class Api(StrEnum):
    """The APIs whose requests are admitted."""

    CHAT = "chat"
    BATCH = "batch"
    """Several conversations in one request, answered as a whole."""
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Use(StrEnum):
    """The treatment of a field."""

    COUNTED = "counted"
    """Read, and counted as the engine counts it."""
    ENGINE = "counted by the engine"
    ESTIMATED = "estimated"
    """Only the engine knows its tokens, and has no counting route for it."""
    REFUSED = "refused"
    """Refused with 400 (`REFUSED_FIELDS`)."""
    LIMIT = "a limit"
    """The output limit or the number of answers, which kvgate reads, too."""
    OVERRIDING = "overriding"
    """Read by the engine before the limits that the API has for it: refused where it does."""
    ADAPTER = "adapter"
    """Names an adapter besides `model`: refused to a key that may use only some models."""
    BAND = "band"
    """Gets the request's band: the lowest first."""
    DROPPED = "taken out"
    """An order that kvgate does not know: taken out of the body."""
    APART = "apart"
    """Prompts that differ in it share no prefix."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one kind of engine that are not harmless.

    Attributes:
        prompt: those that decide the prompt, by API. Where it has no such API, they are as vLLM's.
        others: those that decide what else is accounted for, or who is served, in all APIs.
    """

    prompt: Mapping[Api, Mapping[str, Use]]
    others: Mapping[str, Use]


def _all(use: Use, names: str) -> dict[str, Use]:
    return dict.fromkeys(names.split(), use)


_RESPONSES = _all(Use.COUNTED, "input instructions tools reasoning truncation")
_MESSAGES = _all(Use.COUNTED, "messages system tools tool_choice thinking output_config")
_LIMITS = _all(Use.LIMIT, "n max_tokens max_completion_tokens max_output_tokens")
_TRANSFER = _all(Use.REFUSED, "kv_transfer_params ec_transfer_params")

_VLLM_CONVERSATION = (
    _all(
        Use.COUNTED,
        "messages tool_choice add_generation_prompt continue_final_message add_special_tokens documents"
        " reasoning_effort truncate_prompt_tokens chat_template_kwargs",
    )
    | _all(Use.ENGINE, "media_io_kwargs mm_processor_kwargs")
    | _all(Use.REFUSED, "chat_template")
    | _TRANSFER
)
_LLAMA_CHAT = _all(
    Use.COUNTED, "tools tool_choice add_generation_prompt continue_final_message chat_template_kwargs"
) | _all(Use.ENGINE, "reasoning_effort reasoning_format")
_SGLANG_ROUTED = _all(
    Use.REFUSED,
    "bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank",
)
_SGLANG_RANK = _all(Use.REFUSED, "data_parallel_rank")

FIELDS: dict[str, Fields] = {
    VLLM.name: Fields(
        {
            Api.CHAT: _VLLM_CONVERSATION | _all(Use.COUNTED, "tools"),
            Api.BATCH: _VLLM_CONVERSATION,
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt add_special_tokens truncate_prompt_tokens")
            | _all(Use.ESTIMATED, "suffix")
            | _all(Use.REFUSED, "prompt_embeds")
            | _TRANSFER,
            Api.RESPONSES: _RESPONSES
            | _all(Use.COUNTED, "tool_choice chat_template_kwargs")
            | _all(Use.ENGINE, "media_io_kwargs mm_processor_kwargs")
            | _all(Use.ESTIMATED, "previous_response_id prompt")
            | _all(Use.REFUSED, "previous_input_messages")
            | _TRANSFER,
            Api.MESSAGES: _MESSAGES | _all(Use.COUNTED, "chat_template_kwargs") | _TRANSFER,
        },
        _LIMITS | {"priority": Use.BAND, "cache_salt": Use.APART},
    ),
    LLAMA_SERVER.name: Fields(
        {
            Api.CHAT: _all(Use.COUNTED, "messages") | _LLAMA_CHAT,
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt") | _all(Use.ENGINE, "continue_final_message reasoning_format"),
            Api.RESPONSES: _all(Use.COUNTED, "input instructions")
            | _LLAMA_CHAT
            | _all(Use.ENGINE, "reasoning previous_response_id"),
            Api.MESSAGES: _all(Use.COUNTED, "messages system tools tool_choice") | _all(Use.ENGINE, "thinking"),
        },
        _all(Use.LIMIT, "n max_tokens max_output_tokens")
        | _all(Use.OVERRIDING, "n_predict n_cmpl max_completion_tokens")
        | _all(Use.ADAPTER, "lora"),
    ),
    SGLANG.name: Fields(
        {
            Api.CHAT: _all(
                Use.COUNTED,
                "messages tools tool_choice reasoning_effort continue_final_message chat_template_kwargs",
            )
            | _all(
                Use.ENGINE,
                "reasoning thinking task images_config video_config mm_processor_kwargs max_dynamic_patch"
                " min_dynamic_patch use_audio_in_video",
            )
            | _all(Use.REFUSED, "input_ids session_params")
            | _SGLANG_ROUTED
            | _SGLANG_RANK,
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt")
            | _all(Use.ESTIMATED, "suffix images_config mm_processor_kwargs")
            | _all(Use.REFUSED, "session_params")
            | _SGLANG_ROUTED
            | _SGLANG_RANK,
            Api.RESPONSES: _RESPONSES
            | _all(Use.COUNTED, "tool_choice chat_template_kwargs")
            | _all(Use.ESTIMATED, "previous_response_id")
            | _SGLANG_ROUTED
            | _SGLANG_RANK,
            Api.MESSAGES: _MESSAGES | _SGLANG_ROUTED,
        },
        _LIMITS | {"priority": Use.DROPPED, "lora_path": Use.ADAPTER} | _all(Use.APART, "cache_salt extra_key"),
    ),
    TGI.name: Fields(
        {
            Api.CHAT: _all(Use.COUNTED, "messages tools tool_choice") | _all(Use.ENGINE, "tool_prompt"),
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt") | _all(Use.ESTIMATED, "suffix"),
        },
        _all(Use.LIMIT, "n max_tokens max_completion_tokens"),
    ),
    TENSORRT_LLM.name: Fields(
        {
            Api.CHAT: _all(
                Use.COUNTED,
                "messages tools tool_choice add_generation_prompt add_special_tokens documents reasoning_effort"
                " chat_template_kwargs",
            )
            | _all(Use.ESTIMATED, "thinking truncate_prompt_tokens media_io_kwargs mm_processor_kwargs")
            | _all(
                Use.REFUSED, "chat_template prompt_token_ids prompt_token_ids_b64 disaggregated_params agent_hierarchy"
            ),
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt add_special_tokens")
            | _all(Use.ESTIMATED, "suffix truncate_prompt_tokens")
            | _all(Use.REFUSED, "disaggregated_params"),
            Api.RESPONSES: _RESPONSES
            | _all(Use.COUNTED, "tool_choice")
            | _all(Use.ESTIMATED, "previous_response_id prompt"),
            Api.MESSAGES: _MESSAGES | _all(Use.ESTIMATED, "context_management"),
        },
        _LIMITS
        | {"priority": Use.DROPPED, "best_of": Use.OVERRIDING, "lora_request": Use.ADAPTER, "cache_salt": Use.APART},
    ),
    OLLAMA.name: Fields(
        {
            Api.CHAT: _all(Use.COUNTED, "messages tools reasoning_effort") | _all(Use.ESTIMATED, "reasoning"),
            Api.COMPLETIONS: _all(Use.COUNTED, "prompt") | _all(Use.ESTIMATED, "suffix"),
            Api.RESPONSES: _RESPONSES,
            Api.MESSAGES: _MESSAGES,
        },
        _all(Use.LIMIT, "max_tokens max_output_tokens"),
    ),
}
"""All fields of each kind that are not harmless."""

NAMES = frozenset(name for kind in FIELDS.values() for table in (kind.others, *kind.prompt.values()) for name in table)
"""Their names."""

OTHER_FIELDS = frozenset(
    {
        # The model, the caller and the handling.
        "model", "user", "metadata", "request_id", "rid", "session_id", "service_tier", "store", "background", "betas",
        "prompt_cache_key", "vllm_xargs", "conversation", "conversation_params", "custom_labels",
        # Sampling, and when an answer ends.
        "best_of", "use_beam_search", "min_tokens", "max_tool_calls", "parallel_tool_calls", "temperature", "top_p",
        "top_p_min", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty",
        "repetition_detection", "length_penalty", "prompt_ignore_length", "early_stopping", "logit_bias",
        "allowed_token_ids", "bad_words", "stop", "stop_sequences", "stop_token_ids", "stop_regex", "no_stop_trim",
        "ignore_eos", "thinking_token_budget", "watermarking", "watermark", "response_format", "structured_outputs",
        "guided_decoding_backend", "text", "json_schema", "regex", "ebnf", "custom_params", "custom_logit_processor",
        # The content of the answer.
        "stream", "stream_options", "stream_interval", "echo", "logprobs", "top_logprobs", "logprob_token_ids",
        "prompt_logprobs", "include", "include_reasoning", "separate_reasoning", "stream_reasoning",
        "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "detokenize",
        "return_tokens_as_token_ids", "return_token_ids", "return_prompt_token_ids", "return_token_offsets",
        "return_prompt_text", "return_hidden_states", "return_context_logits", "return_meta_info",
        "return_cached_tokens_details", "return_spec_tokens_details", "return_input_ids_in_sglext",
        "return_output_ids_in_sglext", "return_sampling_mask", "return_flat_raw_output_top_logprobs",
        "return_flat_raw_top_logprobs_b64", "sampling_logprobs_mode", "return_routed_experts",
        "routed_experts_start_len", "routed_experts_prompt_start", "mm_payload", "return_mm_kwargs",
        "enable_response_messages", "injected_chat_template_kwargs", "_debug_render_only",
        # The end at which a prompt is cut: its length is the same.
        "truncation_side",
        # llama-server's own.
        "verbose", "timings_per_token", "cache_prompt", "return_tokens", "return_progress", "sse_ping_interval",
        "n_indent", "n_keep", "n_discard", "n_cache_reuse", "t_max_predict_ms", "response_fields", "top_n_sigma",
        "xtc_probability", "xtc_threshold", "typical_p", "dynatemp_range", "dynatemp_exponent", "repeat_last_n",
        "repeat_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay",
        "n_probs", "min_keep", "backend_sampling", "post_sampling_probs", "grammar", "grammar_lazy",
        "grammar_triggers", "preserved_tokens", "chat_format", "chat_parser", "generation_prompt", "parse_tool_calls",
        "reasoning_control", "reasoning_budget_tokens", "reasoning_budget_start_tag", "reasoning_budget_end_tags",
        "reasoning_budget_end_tag", "reasoning_budget_message", "samplers", "id_slot",
    }
)  # fmt: skip
"""All other fields, of all kinds. `response_format` and `json_schema` enter the prompts only of models that the engine
counts: see `gateway.tokens.engine_work.engine_work`."""

_REPLACES = "it would replace the prompt that was counted"
_ROUTES = "it is for a router of the engine's own, and would have it fetch from, or answer to, another machine"
_PLACES = "which part of an engine answers, and in what order, is not for a client to say"

REFUSED_FIELDS: dict[str, str] = {
    "kv_transfer_params": _REPLACES,
    "ec_transfer_params": _ROUTES,
    "prompt_token_ids": _REPLACES,
    "prompt_token_ids_b64": _REPLACES,
    "input_ids": _REPLACES,
    "session_params": "it would put a prompt before the one that was counted",
    "disaggregated_params": _ROUTES,
    "bootstrap_host": _ROUTES,
    "bootstrap_port": _ROUTES,
    "bootstrap_room": _ROUTES,
    "routed_dp_rank": _PLACES,
    "disagg_prefill_dp_rank": _PLACES,
    "data_parallel_rank": _PLACES,
    "agent_hierarchy": _PLACES,
    "chat_template": "the prompt is counted with the template the model is served with",
    "prompt_embeds": "its tokens cannot be counted before an engine reads it; send text or token ids",
    "previous_input_messages": "its tokens cannot be counted before an engine reads it; send the messages as `input`",
}
"""Fields a client may not set, whichever kind answers, and why."""

MAX_TOKENS_FIELDS: dict[Api, tuple[str, ...]] = {
    Api.CHAT: ("max_completion_tokens", "max_tokens"),
    Api.BATCH: ("max_completion_tokens", "max_tokens"),
    Api.COMPLETIONS: ("max_tokens",),
    Api.RESPONSES: ("max_output_tokens",),
    Api.MESSAGES: ("max_tokens",),
}
"""The fields of the output limit in each API; the first one set wins, as in vLLM. The last one all engines read."""


def named(use: Use, *kinds: str) -> tuple[str, ...]:
    """The fields outside of prompts that some of these kinds treat so; of all kinds if none is named."""
    tables = [FIELDS[kind].others for kind in kinds or KINDS]
    return tuple(dict.fromkeys(name for table in tables for name, its in table.items() if its is use))


def unread_limits(kind: str) -> frozenset[str]:
    """The fields of the output limit that a kind does not read."""
    return frozenset(name for names in MAX_TOKENS_FIELDS.values() for name in names) - FIELDS[kind].others.keys()
