"""PURE. The memory of a llama-server under given settings: weights, KV cache and buffers, on each card and on the host.

Weights and KV cache are llama.cpp's own sums (build 11549; src/llama-model.cpp, `load_tensors`; src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp, src/llama-memory-recurrent.cpp). Compute buffers are estimated (`compute.py`).
"""

from dataclasses import dataclass

from engine.plan.llama.blocks import CACHE_TYPES
from engine.plan.llama.cells import cache_cells
from engine.plan.llama.compute import Share, buffer
from engine.plan.llama.model import Layer, LlamaModel
from engine.plan.llama.settings import LlamaSettings
from engine.plan.overhead import Span


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes on one card, or on the host."""

    weights: int
    kv: int
    compute: Span

    @property
    def total(self) -> int:
        """All of it, at the worse end."""
        return self.weights + self.kv + self.compute.high


@dataclass(frozen=True, slots=True)
class Memory:
    """The whole server.

    Attributes:
        cards: in order.
        host: what is in the host's memory, without `old_prompts`.
        old_prompts: most bytes of prompts that are kept on the host.
        bytes_per_token: of KV cache that a further token of a long request takes, on all devices.
    """

    cards: tuple[Part, ...]
    host: Part
    old_prompts: int
    bytes_per_token: int

    @property
    def fullest(self) -> int:
        """Bytes on the fullest card; 0 without one."""
        return max((card.total for card in self.cards), default=0)


def measure(model: LlamaModel, settings: LlamaSettings, cards: int = 1) -> Memory:
    """Compute the memory of a server whose layers are spread over so many equal cards and the host."""
    weights, kv = [0] * (cards + 1), [0] * (cards + 1)
    host = cards
    weights[host] = model.input
    for number, layer in enumerate(model.layers):
        device = _device(model, settings, cards, number)
        weights[device] += layer.weights
        weights[host if number < settings.host_experts else device] += layer.experts
        kv[host if settings.kv_on_host else device] += kept(model, settings, layer)
    device = _device(model, settings, cards, len(model.layers) + model.idle_layers)
    weights[device] += model.output + (model.tied if device != host else 0)
    token = sum(row_bytes(settings, layer) for layer in model.layers if not layer.kept.window or settings.swa_full)
    share = _share(model, settings, cards)
    used = [Part(weights[card], kv[card], buffer(model, settings, share)) for card in range(cards)]
    return Memory(
        tuple(used),
        Part(weights[host], kv[host], buffer(model, settings, share.of_host())),
        settings.cache_ram * 2**20,
        token,
    )


def kept(model: LlamaModel, settings: LlamaSettings, layer: Layer) -> int:
    """Bytes that a layer keeps: its part of the KV cache, and states."""
    cells, streams = cache_cells(model, settings, window=layer.kept.window and not settings.swa_full)
    return row_bytes(settings, layer) * cells * streams + layer.kept.state * settings.slots


def row_bytes(settings: LlamaSettings, layer: Layer) -> int:
    """Bytes that a layer keeps of one token."""
    return _row(layer.kept.keys, settings.cache_type_k) + _row(layer.kept.values, settings.cache_type_v)


def on_card(model: LlamaModel, settings: LlamaSettings, number: int) -> bool:
    """Whether a layer is on a card."""
    return number >= len(model.layers) + model.idle_layers + 1 - settings.gpu_layers


def _share(model: LlamaModel, settings: LlamaSettings, cards: int) -> Share:
    """What the cards compute, and the most that they copy there of what lies on the host."""
    here = [cards > 0 and on_card(model, settings, number) for number in range(len(model.layers))]
    copied = [
        0 if card and number >= settings.host_experts else layer.experts + (0 if card else layer.weights)
        for number, (card, layer) in enumerate(zip(here, model.layers, strict=True))
    ]
    host = not all(here) or settings.kv_on_host or settings.host_experts > 0
    return Share(cards=cards, on_cards=settings.gpu_layers > 0, on_host=host, copied=max(copied, default=0))


def _device(model: LlamaModel, settings: LlamaSettings, cards: int, number: int) -> int:
    """The card of a layer; the number of cards for the host. The output comes after all layers."""
    if not cards or not on_card(model, settings, number):
        return cards
    all_layers = len(model.layers) + model.idle_layers + 1
    first = max(0, all_layers - settings.gpu_layers)
    return min(cards - 1, (number - first) * cards // (all_layers - first))


def _row(elements: int, kind: str) -> int:
    block = CACHE_TYPES[kind]
    return elements // block.elements * block.bytes
