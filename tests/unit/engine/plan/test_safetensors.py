import json
import struct

import pytest

from engine.plan.safetensors import PREFIX, HeaderError, header_length, read_header
from engine.plan.weights import Tensor


def test_a_header_tells_names_types_shapes_and_bytes() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [64, 68]},
    }
    raw = json.dumps(header).encode()
    assert header_length(struct.pack("<Q", len(raw)) + raw) == len(raw)
    assert read_header(raw) == (Tensor("a.weight", "BF16", (4, 8), 64), Tensor("b", "F32", (), 4))


@pytest.mark.parametrize(
    "start", [b"", b"1234567", struct.pack("<Q", 0), struct.pack("<Q", 10**12), b"<!DOCTYPE html>"]
)
def test_what_cannot_be_a_safetensors_file_is_refused_by_its_first_bytes(start: bytes) -> None:
    with pytest.raises(HeaderError):
        header_length(start)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a": {"dtype": "F32"}}',
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}',
        b"\xff\xfe",
    ],
)
def test_a_broken_header_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError):
        read_header(header)


def test_the_prefix_is_the_formats() -> None:
    assert PREFIX == 8
