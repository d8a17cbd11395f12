"""What can be known of a model before an engine is started for it: that it is there and may be read.

An engine takes ten seconds and more to come to the point where it finds that out, and says it in a traceback.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.command import flags_of, value_of
from engine.plan.checkpoint import read_checkpoint
from engine.plan.hub import CheckpointError

_OTHER_SOURCES = frozenset({"--load-format", "--config-format", "--hf-config-path", "--config"})
"""Arguments with which an engine reads its model in another way, or from another place."""


def check_model(model: str, args: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuse a model that an engine could not load either.

    Only what is a plain folder or name on the hub is looked at; of anything else the engine knows more.

    Args:
        model: Folder or hub id.
        args: The engine's arguments.
        environ: The engine's environment, for the hub's variables.

    Raises:
        CheckpointError: It is gated, missing, misspelt, offline or broken; with the way out.
    """
    elsewhere = (
        "://" in model or ":" in Path(model).name or environ.get("VLLM_USE_MODELSCOPE", "").lower() in {"1", "true"}
    )
    if elsewhere or Path(model).is_file() or flags_of(args) & _OTHER_SOURCES:
        return
    try:
        found = read_checkpoint(model, environ, revision=value_of(args, "--revision"))
    except CheckpointError as error:
        if not _in_mistrals_format(model, error):
            raise
        return
    if not found.weight_bytes and not any(Path(model).glob("consolidated*")):  # so Mistral's own format is named
        raise CheckpointError(
            f"there are no weights in {found.where}",
            "Complete the download (*.safetensors), or have them made up with --load-format dummy.",
        )


def is_downloaded(model: str, environ: Mapping[str, str], revision: str | None = None) -> bool:
    """Whether a model of the hub is whole in this machine's hub cache."""
    try:
        found = read_checkpoint(model, {**environ, "HF_HUB_OFFLINE": "1"}, revision=revision)
    except CheckpointError:
        return False
    return found.weight_bytes > 0


def _in_mistrals_format(model: str, error: CheckpointError) -> bool:
    """Whether it only lacks what a plan needs: vLLM reads `params.json` in the place of `config.json`."""
    return (Path(model) / "params.json").is_file() or "Mistral's own format" in error.remedy
