"""A model with the demo model's tokenizer and hardly any weights: fast to start, and it counts as a real one."""

import json
import shutil
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"


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


def two_templates_model(of: Path, folder: Path) -> Path:
    """The same, made to add a BOS token and given a second template, for requests with tools."""
    small_model(of, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    bos = tokenizer["model"]["vocab"]["<|im_start|>"]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [bos], "tokens": ["<|im_start|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    named = folder / "additional_chat_templates"
    named.mkdir()
    shutil.copy(TEMPLATES / "hermes_tools.jinja", named / "tool_use.jinja")
    return folder
