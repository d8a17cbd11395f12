"""PURE. Block types of GGUF tensors: how many elements a block has, and how many bytes.

From ggml's `type_traits` (ggml/src/ggml.c, ggml-common.h; llama.cpp build 11549).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """One type. `elements` share `bytes`; rows are whole blocks."""

    name: str
    elements: int
    bytes: int


BLOCKS: dict[int, Block] = {
    0: Block("f32", 1, 4),
    1: Block("f16", 1, 2),
    2: Block("q4_0", 32, 18),
    3: Block("q4_1", 32, 20),
    6: Block("q5_0", 32, 22),
    7: Block("q5_1", 32, 24),
    8: Block("q8_0", 32, 34),
    10: Block("q2_K", 256, 84),
    11: Block("q3_K", 256, 110),
    12: Block("q4_K", 256, 144),
    13: Block("q5_K", 256, 176),
    14: Block("q6_K", 256, 210),
    16: Block("iq2_xxs", 256, 66),
    17: Block("iq2_xs", 256, 74),
    18: Block("iq3_xxs", 256, 98),
    19: Block("iq1_s", 256, 50),
    20: Block("iq4_nl", 32, 18),
    21: Block("iq3_s", 256, 110),
    22: Block("iq2_s", 256, 82),
    23: Block("iq4_xs", 256, 136),
    24: Block("i8", 1, 1),
    25: Block("i16", 1, 2),
    26: Block("i32", 1, 4),
    27: Block("i64", 1, 8),
    28: Block("f64", 1, 8),
    29: Block("iq1_m", 256, 56),
    30: Block("bf16", 1, 2),
    34: Block("tq1_0", 256, 54),
    35: Block("tq2_0", 256, 66),
    39: Block("mxfp4", 32, 17),
    40: Block("nvfp4", 64, 36),
    41: Block("q1_0", 128, 18),
    42: Block("q2_0", 64, 18),
}
"""By the number that stands in a file. Those between were given up, or are of what only lives in memory."""

CACHE_TYPES: dict[str, Block] = {
    block.name: block
    for block in BLOCKS.values()
    if block.name in {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}
}
"""What `--cache-type-k` and `--cache-type-v` take (common/arg.cpp)."""
