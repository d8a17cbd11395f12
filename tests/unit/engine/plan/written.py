"""GGUF files written byte by byte, so that they can also be wrong."""

import struct

from engine.plan.llama.blocks import BLOCKS

NUMBERS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
KINDS = {block.name: number for number, block in BLOCKS.items()}


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(one):
    if isinstance(one, str):
        return struct.pack("<I", 8) + string(one)
    if isinstance(one, list):
        if one and isinstance(one[0], str):
            return struct.pack("<IIQ", 9, 8, len(one)) + b"".join(map(string, one))
        kind, form = NUMBERS[type(one[0])] if one else NUMBERS[int]
        return struct.pack(f"<IIQ{len(one)}{form}", 9, kind, len(one), *one)
    kind, form = NUMBERS[type(one)]
    return struct.pack(f"<I{form}", kind, one)


def size(shape, block):
    kind = BLOCKS[KINDS[block]]
    total = shape[0] // kind.elements * kind.bytes
    for extent in shape[1:]:
        total *= extent
    return total


def header(metadata, tensors, version=3):
    """The file without its data: tensors are (name, shape, block type)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, one in metadata.items():
        out += string(key) + value(one)
    offset = 0
    for name, shape, block in tensors:
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", KINDS[block], offset)
        offset += -(-size(shape, block) // 32) * 32
    return out + b"\0" * (-len(out) % 32), offset


def written(path, metadata, tensors, version=3):
    """A file of these, as long as it says and empty where its weights are."""
    start, data = header(metadata, tensors, version)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + data)
    return path


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.context_length": 8192,
    "llama.embedding_length": 256,
    "llama.feed_forward_length": 512,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(1000)],
}


def tensors(layers=4, hidden=256, feed_forward=512, *, kv=64, vocabulary=1000, block="q8_0", tied=False):
    """Those of a model as Llama."""
    found = [("token_embd.weight", (hidden, vocabulary), block), ("output_norm.weight", (hidden,), "f32")]
    if not tied:
        found.append(("output.weight", (hidden, vocabulary), block))
    for number in range(layers):
        found += [
            (f"blk.{number}.{name}.weight", shape, kind)
            for name, shape, kind in (
                ("attn_norm", (hidden,), "f32"),
                ("attn_q", (hidden, hidden), block),
                ("attn_k", (hidden, kv), block),
                ("attn_v", (hidden, kv), block),
                ("attn_output", (hidden, hidden), block),
                ("ffn_norm", (hidden,), "f32"),
                ("ffn_gate", (hidden, feed_forward), block),
                ("ffn_up", (hidden, feed_forward), block),
                ("ffn_down", (feed_forward, hidden), block),
            )
        ]
    return found
