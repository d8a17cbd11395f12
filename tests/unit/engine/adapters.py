"""LoRA adapters for tests, as PEFT writes them."""

import json
import struct
from pathlib import Path
from typing import Any


def adapter(
    folder: Path,
    *,
    rank: int = 8,
    base: str = "base",
    width: int = 128,
    layers: int = 2,
    weight: float = 0.0,
    **more: Any,
) -> Path:
    """Write an adapter of an attention's queries, each of whose weights is this."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "base_model_name_or_path": base, **more}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    described, end, size = {}, 0, rank * width * 4
    for layer in range(layers):
        for part, shape in (("A", [rank, width]), ("B", [width, rank])):
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
            described[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
    header = json.dumps(described).encode()
    weights = struct.pack("<f", weight) * (end // 4)
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights)
    return folder
