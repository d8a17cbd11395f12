"""PURE. Settings of llama-server that decide its memory, and its command line.

Flags and defaults are those of llama.cpp's common/arg.cpp, build 11549.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.plan.llama.blocks import CACHE_TYPES

UBATCH = 512
"""Tokens of a step (`--ubatch-size`)."""
SLOTS = 4
"""Slots of a server that nobody told how many."""
CACHE_RAM = 8192
"""MiB of the host's memory that old prompts may take (`--cache-ram`)."""


class GivenError(ValueError):
    """An argument for llama-server that cannot be read. The message shows it."""


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How one llama-server holds a model.

    Attributes:
        gpu_layers: layers on cards, from the last on; the output counts as one more.
        context: tokens of KV cache, of all slots together.
        slots: requests at once.
        unified: whether any slot may use all of the context; else each has its share.
        cache_type_k: block type of cached keys.
        cache_type_v: of cached values.
        kv_on_host: whether the whole KV cache stays on the host.
        host_experts: the first so many layers keep their experts on the host.
        threads: for what is computed on the host; None leaves it to llama-server.
        cache_ram: MiB of old prompts on the host.
        ubatch: most tokens of a step.
        swa_full: whether windowed layers keep the whole context.
        flash: whether attention is fused; without, a step keeps its scores.
    """

    gpu_layers: int
    context: int
    slots: int = SLOTS
    unified: bool = True
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_on_host: bool = False
    host_experts: int = 0
    threads: int | None = None
    cache_ram: int = CACHE_RAM
    ubatch: int = UBATCH
    swa_full: bool = False
    flash: bool = True

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.context if self.unified else self.context // self.slots

    def arguments(self, given: Sequence[str] = ()) -> tuple[str, ...]:
        """The arguments for llama-server, then those given, which stay as they are.

        It shall do as planned, so it does not fit itself to the memory (`--fit off`).
        """
        fixed = fields_given(given)
        words = [] if "fit" in fixed else ["--fit", "off"]
        for field, here in self._words():
            if field not in fixed:
                words += here
        return (*words, *given)

    def _words(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        yield "gpu_layers", ("--gpu-layers", str(self.gpu_layers))
        if self.gpu_layers == 0:
            yield "device", ("--device", "none")  # else it would keep buffers on a card
        yield "context", ("--ctx-size", str(self.context))
        yield "slots", ("--parallel", str(self.slots))
        yield "unified", ("--kv-unified" if self.unified else "--no-kv-unified",)
        if self.cache_type_k != "f16":
            yield "cache_type_k", ("--cache-type-k", self.cache_type_k)
        if self.cache_type_v != "f16":
            yield "cache_type_v", ("--cache-type-v", self.cache_type_v)
            yield "flash", ("--flash-attn", "on")  # quantized values need it
        if self.kv_on_host:
            yield "kv_on_host", ("--no-kv-offload",)
        if self.host_experts:
            yield "host_experts", ("--n-cpu-moe", str(self.host_experts))
        if self.threads is not None:
            yield "threads", ("--threads", str(self.threads))
        if self.cache_ram != CACHE_RAM:
            yield "cache_ram", ("--cache-ram", str(self.cache_ram))


_MOST = 1 << 31
_ALL = 1 << 16
"""More layers than any model has."""


def _number(word: str, text: str, _: int) -> int | None:
    """The number; None for -1, which leaves it to llama-server."""
    try:
        value = int(text)
    except ValueError:
        raise GivenError(f"{word} {text}: it wants a whole number") from None
    if not -1 <= value < _MOST:
        raise GivenError(f"{word} {text}: it wants a number from 0 to {_MOST - 1}")
    return None if value == -1 else value


def _layers(word: str, text: str, layers: int) -> int | None:
    if text in {"all", "auto"}:
        return layers if text == "all" else None
    value = _number(word, text, layers)
    return None if value is None else min(value, layers)


def _type(word: str, text: str, _: int) -> str:
    if text not in CACHE_TYPES:
        raise GivenError(f"{word} {text} is none of {', '.join(CACHE_TYPES)}")
    return text


def _flash(_: str, text: str, __: int) -> bool:
    return text not in {"off", "0", "false", "disabled"}


def _passed(_: str, __: str, ___: int) -> None:
    return None


_Read = Callable[[str, str, int], Any]
_FLAGS: dict[str, tuple[str, _Read | int]] = {
    name: (field, read)
    for field, read, names in (
        ("gpu_layers", _layers, ("-ngl", "--gpu-layers", "--n-gpu-layers")),
        ("context", _number, ("-c", "--ctx-size")),
        ("slots", _number, ("-np", "--parallel")),
        ("unified", True, ("-kvu", "--kv-unified")),
        ("unified", False, ("-no-kvu", "--no-kv-unified")),
        ("cache_type_k", _type, ("-ctk", "--cache-type-k")),
        ("cache_type_v", _type, ("-ctv", "--cache-type-v")),
        ("kv_on_host", True, ("-nkvo", "--no-kv-offload")),
        ("kv_on_host", False, ("-kvo", "--kv-offload")),
        ("host_experts", _number, ("-ncmoe", "--n-cpu-moe")),
        ("host_experts", _ALL, ("-cmoe", "--cpu-moe")),
        ("threads", _number, ("-t", "--threads")),
        ("cache_ram", _number, ("-cram", "--cache-ram")),
        ("ubatch", _number, ("-ub", "--ubatch-size")),
        ("swa_full", True, ("--swa-full",)),
        ("flash", _flash, ("-fa", "--flash-attn")),
        ("fit", _passed, ("-fit", "--fit")),
        ("device", _passed, ("-dev", "--device")),
    )
    for name in names
}
"""What a flag decides: the field, and its value or how it is read from the next word."""


def read_given(given: Sequence[str], layers: int) -> dict[str, Any]:
    """Return the settings among arguments for llama-server, by their fields in `LlamaSettings`.

    Args:
        given: the arguments. Those that decide no memory are passed over.
        layers: of the model, with its output, for `--gpu-layers all`.

    Raises:
        GivenError: A value cannot be read.
    """
    found: dict[str, Any] = {}
    words = iter(given)
    for word in map(_normal, words):
        field, value = _FLAGS.get(word, ("", None))
        if callable(value):
            value = value(word, next(words, ""), layers)
        if value is not None:
            found[field] = value
    if found.get("context") == 0:  # the model's own
        del found["context"]
    return found


def fields_given(given: Sequence[str]) -> frozenset[str]:
    """The settings that arguments name, with those that are none of `LlamaSettings`' fields: `fit` and `device`."""
    return frozenset(_FLAGS[word][0] for word in map(_normal, given) if word in _FLAGS)


def _normal(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word
