"""The check of a model before its engine starts: it exists and may be read.

An engine needs ten seconds and more to find that out, and reports it as a traceback.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.arguments import Arguments
from engine.plan.checkpoint import read_checkpoint
from engine.plan.hub import CheckpointError

_OTHER_SOURCES = ("--load-format", "--config-format", "--hf-config-path", "--config")
"""Arguments that make an engine read its model in another way, or from another place."""


def check_model(model: str, arguments: Arguments, environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Refuse a model that an engine could not load; return its `config.json`, empty where it was not read.

    Only plain folders and hub ids are checked. Anything else is left to the engine.

    Args:
        model: Folder or hub id.
        arguments: The engine's.
        environ: The engine's environment, for the hub's variables.

    Raises:
        CheckpointError: It is gated, missing, misspelt, offline or broken. The message gives the way out.
    """
    elsewhere = (
        "://" in model or ":" in Path(model).name or environ.get("VLLM_USE_MODELSCOPE", "").lower() in {"1", "true"}
    )
    if elsewhere or Path(model).is_file() or arguments.has(*_OTHER_SOURCES):
        return {}
    try:
        found = read_checkpoint(model, environ, revision=arguments.text("--revision"))
    except CheckpointError as error:
        if not _in_mistrals_format(model, error):
            raise
        return {}
    if not found.weight_bytes and not any(Path(model).glob("consolidated*")):  # Mistral's own format has this name
        raise CheckpointError(
            f"there are no weights in {found.where}",
            "Complete the download (*.safetensors), or have them made up with --load-format dummy.",
        )
    return found.config


def is_downloaded(model: str, environ: Mapping[str, str], revision: str | None = None) -> bool:
    """Whether this machine's hub cache holds the whole model."""
    try:
        found = read_checkpoint(model, {**environ, "HF_HUB_OFFLINE": "1"}, revision=revision)
    except CheckpointError:
        return False
    return found.weight_bytes > 0


def _in_mistrals_format(model: str, error: CheckpointError) -> bool:
    """Whether it only lacks what a plan needs: vLLM reads `params.json` in the place of `config.json`."""
    return (Path(model) / "params.json").is_file() or "Mistral's own format" in error.remedy
