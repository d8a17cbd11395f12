"""What the log of an engine that serves says of its speed, and what is no sign of anything."""

import pytest

from engine.diagnosis.log_cause import read_log


def told(line: str) -> list[str]:
    return [found.cause for found in read_log([f"INFO 11-20 18:15:59 [cuda.py:507] {line}"])]


@pytest.mark.parametrize(
    "line",
    [
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN'].",
        "Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN', 'FLASHINFER'].",
        "Using Flash Attention backend on V1 engine.",
        "Using FlashInfer backend on V1 engine.",
        "Using max model len 4096",
    ],
)
def test_a_fast_backend_is_no_finding(line: str) -> None:
    assert told(line) == []


def test_a_slow_backend_is_named() -> None:
    (found,) = told("Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN', 'FLEX_ATTENTION'].")
    assert found.startswith("The attention backend TRITON_ATTN was taken silently")


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("VLLMValidationError: This model's maximum context length is 1024 tokens. However, your prompt", 1024),
        ("ValueError: This model's maximum context length (4096) is", 4096),
        ("ValueError: The decoder prompt (length 5000) is longer than the maximum model length of 2048. Make", 2048),
    ],
)
def test_requests_over_the_context_are_told_with_it_in_every_form(line: str, limit: int) -> None:
    (found,) = told(line)
    assert f"over the context of {limit} tokens" in found
