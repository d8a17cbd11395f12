"""A real tokenizer for the fake, so that its counts are those of a real server with the same model."""

from collections.abc import Sequence
from pathlib import Path

from tests.fakes.vllm.requests import Body, Tokenize, given_ids

_LONGEST_TOKEN = 64
"""Characters."""


def model_tokenizer(folder: Path) -> Tokenize:
    """Tokenize text as `/v1/completions` does and messages with the chat template."""
    from transformers import AutoTokenizer  # it takes seconds

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(path: str, body: Body) -> list[Sequence[int]]:
        ids = given_ids(body)
        if ids is not None:
            return ids
        messages = body.get("messages") or body.get("input")
        if messages is None:
            prompts = body["prompt"]
            special = body.get("add_special_tokens", True)
            texts = [prompts] if isinstance(prompts, str) else prompts
            keep = body.get("truncate_prompt_tokens") or 0
            if keep > 0:  # from the left, as vLLM does; the fake has no time to encode what it then drops
                texts = [text[-_LONGEST_TOKEN * keep :] for text in texts]
            return [tokenizer(text, add_special_tokens=special)["input_ids"][-keep:] for text in texts]
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        text = tokenizer.apply_chat_template(
            messages,
            tools=body.get("tools"),
            add_generation_prompt=body.get("add_generation_prompt", True),
            tokenize=False,
        )
        return [tokenizer(text, add_special_tokens=False)["input_ids"]]

    return tokenize
