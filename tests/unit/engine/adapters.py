"""LoRA adapters for tests, as PEFT writes them; their weights are zeros."""

import json
from pathlib import Path
from typing import Any


def adapter(folder: Path, *, rank: int = 8, base: str = "base", width: int = 128, layers: int = 2, **more: Any) -> Path:
    """Write an adapter of an attention's queries."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "base_model_name_or_path": base, **more}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    described, end = {}, 0
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_A.weight"
        size = rank * width * 4
        described[name] = {"dtype": "F32", "shape": [rank, width], "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(described).encode()
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))
    return folder
