"""PURE. The most tokens a second that memory lets one request have: a bound, and no measurement.

Each token reads every weight in use once, and what is kept of the tokens before it:

    seconds for a token = bytes on cards / bandwidth of a card + bytes on the host / bandwidth of the host

Layers on several cards take turns, so these count as one. Computing, launching and crossing PCIe come on top. Several
requests at once share the reading of weights, so together they get more. A prompt is bound by computing: what lies on
the host costs it more than this says.
"""

from dataclasses import dataclass

from engine.plan.llama.cells import cache_cells
from engine.plan.llama.memory import on_card, row_bytes
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.settings import LlamaSettings

HOST_BANDWIDTH = 51_200_000_000
"""Bytes a second of a host nobody measured: two channels of DDR4-3200, 8 bytes wide. Servers have four to twelve."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes that one token of one request reads."""

    card: int
    host: int

    def seconds(self, card_bandwidth: int | None) -> float | None:
        """Seconds at least; None if it reads of a card whose bandwidth is not known."""
        if self.card and card_bandwidth is None:
            return None
        return (self.card / card_bandwidth if card_bandwidth else 0.0) + self.host / HOST_BANDWIDTH


def reading(model: LlamaModel, settings: LlamaSettings, tokens: int) -> Reading:
    """Return what a token reads after so many others of its request."""
    card = host = 0
    for number, layer in enumerate(model.layers):
        here = on_card(model, settings, number)
        experts = layer.experts * model.experts_used // max(1, model.experts)
        weights = layer.weights
        cells, _ = cache_cells(model, settings, window=layer.kept.window and not settings.swa_full)
        seen = min(tokens, model.window) if layer.kept.window else min(tokens, cells)
        kept = row_bytes(settings, layer) * seen + 2 * layer.kept.state
        if number < settings.host_experts:
            host += experts
        else:
            weights += experts
        if settings.kv_on_host or not here:
            host += kept
        else:
            card += kept
        if here:
            card += weights
        else:
            host += weights
    output = model.output + model.tied
    if on_card(model, settings, len(model.layers) + model.idle_layers):
        return Reading(card + output, host)
    return Reading(card, host + output)
