"""PURE. The header of a safetensors file: its tensors without their data.

The format: 8 bytes of length, little-endian, then that many bytes of JSON (github.com/huggingface/safetensors).
"""

import json
from typing import Any

from engine.plan.weights import Tensor

PREFIX = 8
"""Bytes before the header."""

LONGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""


class HeaderError(Exception):
    """The file is no safetensors file, or is truncated. The message says how."""


def header_length(start: bytes) -> int:
    """Return the length of the header of a file with these first bytes.

    Raises:
        HeaderError: It cannot be a safetensors file.
    """
    if len(start) < PREFIX:
        raise HeaderError(f"it has only {len(start)} bytes")
    length = int.from_bytes(start[:PREFIX], "little")
    if not len(b"{}") <= length <= LONGEST_HEADER:
        raise HeaderError(f"its header would be {length} bytes long")
    return length


def read_header(header: bytes) -> tuple[Tensor, ...]:
    """Return the tensors that a header describes.

    Raises:
        HeaderError: It is not JSON, or describes no tensors.
    """
    try:
        described = json.loads(header)
        return tuple(_tensor(name, about) for name, about in described.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeaderError(f"its header cannot be read ({type(error).__name__})") from error


def _tensor(name: str, about: dict[str, Any]) -> Tensor:
    start, end = about["data_offsets"]
    if end < start:
        raise ValueError(name)
    return Tensor(name, str(about["dtype"]), tuple(int(size) for size in about["shape"]), int(end) - int(start))
