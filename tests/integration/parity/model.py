"""A model with the demo model's tokenizer and hardly any weights: fast to start, and it counts as a real one."""

import json
import shutil
from pathlib import Path


def small_model(of: Path, folder: Path) -> Path:
    """Make it in a folder of its own; returns that. It has no weights: load it with `--load-format dummy`."""
    files = "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"
    for name in files:
        shutil.copy(of / name, folder)
    config = json.loads((folder / "config.json").read_text())
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    config |= small | {"num_key_value_heads": 1, "head_dim": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
