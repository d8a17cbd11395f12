"""PURE. Compute buffers of a llama-server, as ranges: what ggml's allocator makes of the graph of one step.

The graph's tensors share memory where their lives do not overlap, so the buffer is the widest place of the graph. The
factors were fitted to what a llama-server of build 11549 printed on a CPU, and one of build 10434 with a card that a
CPU played (Vulkan on Mesa's llvmpipe), for models of many shapes; tests/integration/test_plan_against_llama.py holds
them to it. Builds that reserve logits for each token of a step, and not only for each slot, are held by the upper end.
"""

from dataclasses import dataclass, replace

from engine.plan.llama.cells import cache_cells, step
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.settings import LlamaSettings
from engine.plan.overhead import Span

_FLOAT, _HALF = 4, 2

_STREAMS = 5
"""Vectors as wide as the model that live beside a feed-forward layer: the residual stream, norms, inputs."""
_CARD_STREAMS = 2
"""At least so many on a card, where the inputs are the host's."""
_FEEDS = 3
"""Vectors as wide as a feed-forward layer: gate, up and their product."""
_QUERIES, _KEYS = 3, 2
"""Vectors as wide as all heads, and as all KV heads, before and after their rotation."""
_STATES = (2.5, 4.0)
"""Vectors as wide as a state's input, gate and convolution together."""
_COPIES = 3
"""Further copies of a step's inputs where several cards work in a pipeline (GGML_SCHED_MAX_COPIES is 4)."""
_MARGIN = (0.95, 1.10)
"""Of the sum: alignment, and what the formula leaves out."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a device computes.

    Attributes:
        cards: number of cards.
        on_cards: whether cards compute any layer.
        on_host: whether the host computes any part of one.
        copied: bytes of the largest layer, or its experts, that lies on the host: for a long prompt it is copied to a
            card and computed there.
        host: whether the device is the host itself.
    """

    cards: int
    on_cards: bool
    on_host: bool
    copied: int
    host: bool = False

    def of_host(self) -> "Share":
        """The host's."""
        return replace(self, host=True)


def buffer(model: LlamaModel, settings: LlamaSettings, share: Share) -> Span:
    """Return the size of a device's compute buffer, in bytes. The host's has the logits of all slots, too."""
    tokens = step(settings)
    masks = _masks(model, settings, tokens)
    inputs = masks + tokens * model.hidden * _FLOAT
    graph = _graph(model, settings, tokens, _STREAMS if share.host else _CARD_STREAMS) + Span(masks, masks)
    graph = Span(round(graph.low * _MARGIN[0]), round(graph.high * _MARGIN[1]))
    if not share.host:
        if not share.on_cards:
            return Span(0, 0)
        copies = _COPIES * inputs if share.cards > 1 else 0
        low = inputs if share.on_host else graph.low  # a part of the layers may be without the widest
        return Span(low, graph.high + copies + share.copied)
    logits = settings.slots * model.vocabulary * _FLOAT
    if share.on_cards and not share.on_host:
        states = 2 * tokens * _states(model) * _FLOAT  # some cards leave convolutions to the host
        return Span(logits, logits + 2 * inputs + states)
    low = inputs if share.on_cards else graph.low
    return Span(low + logits, graph.high + logits)


def _masks(model: LlamaModel, settings: LlamaSettings, tokens: int) -> int:
    """Bytes of the masks that say which token attends to which: of half floats where attention is fused."""
    kinds = {layer.kept.window and not settings.swa_full for layer in model.layers if layer.kept.keys}
    cells = sum(cache_cells(model, settings, window=window)[0] for window in kinds)
    return cells * tokens * (_HALF if settings.flash else _FLOAT)


def _graph(model: LlamaModel, settings: LlamaSettings, tokens: int, streams: int) -> Span:
    """Bytes of the widest place of the graph, without the masks; `streams` as the lower end has them."""
    width, queries = model.hidden, model.heads * model.head_size
    keys = max((layer.kept.keys for layer in model.layers), default=0)
    experts, outputs = model.experts_used * model.expert_width, model.experts_used * model.hidden
    feeds = _FEEDS * max(model.feed_forward, experts)
    states = _states(model)
    low = max(feeds + streams * width, outputs + streams * width if outputs else 0, (_QUERIES - 1) * queries + width)
    high = max(
        feeds
        + _STREAMS * width
        + (outputs if outputs > experts else 0),  # experts' outputs may find no room where their inputs were
        _QUERIES * queries + _KEYS * keys + width,
        model.vocabulary + width,
    )
    if states:
        low = max(low, round(_STATES[0] * states) + streams * width)
        high = max(high, round(_STATES[1] * states) + _STREAMS * width)
    if not settings.flash:
        scores = model.heads * cache_cells(model, settings, window=False)[0]
        low, high = low + scores, high + 2 * scores
    return Span(low * tokens * _FLOAT, high * tokens * _FLOAT)


def _states(model: LlamaModel) -> int:
    """Elements of what goes in and out of a state, for one token; 0 without states."""
    return 2 * (model.inner + model.state_inputs)
