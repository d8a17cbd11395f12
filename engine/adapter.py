"""The check of a LoRA adapter before an engine loads it: it is whole, of this base, and within the rank.

An adapter is a folder as PEFT writes it: `adapter_config.json` and its weights. vLLM 0.32 finds a fault in it only when
it loads it, which is after the minutes that its base takes.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.plan.safetensors import PREFIX, HeaderError, header_length, read_header
from engine.plan.weights import Tensor

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.32 takes as `--max-lora-rank`."""
DEFAULT_RANK = 16
"""Its default."""
_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_FROM_HIDDEN = re.compile(r"(?:^|\.)(?:q|k|v|qkv)_proj\.lora_A\.")
"""Names of weights that take a layer's input, and so are as wide as the base model."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")


class AdapterError(Exception):
    """The adapter cannot be loaded. `cause` has the fact, `remedy` what to do."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\n{remedy}")
        self.cause = cause
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Adapter:
    """The facts of an adapter.

    Attributes:
        rank: the highest of its modules.
        base: the model that it says it was trained on.
        width: of its base, as its weights have it; None if they do not tell.
        layers: of its base at least, as its weights have it.
    """

    rank: int
    base: str | None
    width: int | None
    layers: int


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter's folder.

    Raises:
        AdapterError: it is none, or is not whole.
    """
    if not folder.is_dir():
        raise AdapterError(f"there is no folder {folder}", "Correct its path.")
    try:
        config = json.loads((folder / _CONFIG).read_text())
        ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
        base = config.get("base_model_name_or_path")
    except FileNotFoundError:
        raise AdapterError(f"{folder} has no {_CONFIG}", "Name the folder that holds the adapter.") from None
    except OSError as error:
        raise AdapterError(f"{folder / _CONFIG} cannot be read: {error.strerror}", "Let kvgate read it.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AdapterError(f"{folder / _CONFIG} is no LoRA adapter's: it has no rank `r`", "Load it anew.") from None
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise AdapterError(f"{folder / _CONFIG} has a rank that is no number above 0", "Load it anew.")
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise AdapterError(f"{folder} has no weights: no {', '.join(_WEIGHTS)}", "Complete the download.")
    tensors = _tensors(weights) if weights.suffix == ".safetensors" else ()
    widths = {tensor.shape[-1] for tensor in tensors if tensor.shape and _FROM_HIDDEN.search(tensor.name)}
    layers = [int(found[1]) + 1 for tensor in tensors if (found := _LAYER.search(tensor.name))]
    return Adapter(
        rank=max(ranks),
        base=base if isinstance(base, str) and base else None,
        width=widths.pop() if len(widths) == 1 else None,
        layers=max(layers, default=0),
    )


def expect_fitting(adapter: Adapter, base: Mapping[str, Any], model: str, most: int | None) -> None:
    """Refuse an adapter that an engine could not load on its base.

    Args:
        adapter: which one.
        base: `config.json` of the base; empty where it is not known.
        model: the base, as the engine is given it.
        most: the highest rank that the engine takes; None for any.

    Raises:
        AdapterError: it was made for another base, or its rank is too high.
    """
    text = base.get("text_config") or base
    width, layers = text.get("hidden_size"), text.get("num_hidden_layers")
    of = f"; it says that it is of {adapter.base}" if adapter.base else ""
    if adapter.width is not None and width is not None and adapter.width != width:
        raise AdapterError(
            f"it is of another base: its weights are for a width of {adapter.width}, and {model} has {width}{of}",
            "Load it on the base that its adapter_config.json names.",
        )
    if layers is not None and adapter.layers > layers:
        raise AdapterError(
            f"it is of another base: it changes layer {adapter.layers}, and {model} has {layers}{of}",
            "Load it on the base that its adapter_config.json names.",
        )
    if most is not None and adapter.rank > most:
        raise AdapterError(
            f"its rank is {adapter.rank}, and the engine takes {most}",
            f"Give --max-lora-rank {rank_for(adapter.rank)} in the engine's `args`.",
        )


def other_name(adapter: Adapter, model: str) -> str | None:
    """The base that an adapter names, where that is not surely this model; None if it is, or it names none.

    One model has many names: a folder, a hub id, that of a quantized copy.
    """
    if adapter.base is None or Path(adapter.base).name.lower() == Path(model).name.lower():
        return None
    return adapter.base


def rank_for(rank: int) -> int:
    """The lowest `--max-lora-rank` that takes an adapter of this rank.

    Raises:
        AdapterError: none does.
    """
    fitting = next((known for known in RANKS if known >= rank), None)
    if fitting is None:
        raise AdapterError(f"its rank is {rank}, and vLLM takes {RANKS[-1]} at most", "Merge it into its base.")
    return fitting


def _tensors(weights: Path) -> tuple[Tensor, ...]:
    try:
        with weights.open("rb") as file:
            return read_header(file.read(header_length(file.read(PREFIX))))
    except OSError as error:
        raise AdapterError(f"{weights} cannot be read: {error.strerror}", "Let kvgate read it.") from None
    except HeaderError as error:
        raise AdapterError(f"{weights} is damaged: {error}", "Load it anew.") from None
