"""PURE. The planner of llama-server: how to hold a GGUF model in the memory of cards and host, and what each way costs.

`plan` measures a table of ways, `WAYS`, from all layers on the cards to all on the host. It takes the fastest of those
that fit and are allowed. What was given for llama-server stays as it is: a way that needs another value is left out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.plan.cards import CARDS, GIB, Hardware, bandwidth_of
from engine.plan.llama.blocks import CACHE_TYPES
from engine.plan.llama.memory import Memory, measure
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.settings import CACHE_RAM, SLOTS, LlamaSettings, read_given
from engine.plan.llama.speed import Reading, reading
from engine.plan.quality import Quality

CARD_KEPT = GIB
"""Bytes of a card that no plan fills: CUDA's context, kernels and pools. llama-server's own `--fit` leaves as much
(`--fit-target`)."""
HOST_KEPT = GIB
"""Bytes of the host likewise: the process itself, and what else runs there."""
SHORTEST = 4096
"""Tokens of the shortest request that a plan has room for where nobody says: a chat's."""
_STEP = 256
_MIB = 1 << 20


class LlamaVerdict(StrEnum):
    """The verdict of a plan."""

    FITS = "fits"
    SPLIT = "fits, with a part on the host"
    HOST = "fits on the host alone"
    NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to plan for.

    Attributes:
        hardware: its cards, or the host alone.
        host_bytes: of the host's memory that may be used; None if unknown.
        cores: of the host that may compute; None if unknown.
    """

    hardware: Hardware
    host_bytes: int | None = None
    cores: int | None = None

    @property
    def cards(self) -> int:
        """The number of cards."""
        return 0 if self.hardware.cpu else self.hardware.count

    @property
    def card_room(self) -> int:
        """Bytes of each card that a plan may fill."""
        free = self.hardware.total_bytes if self.hardware.free_bytes is None else self.hardware.free_bytes
        return 0 if self.hardware.cpu else max(0, free - CARD_KEPT)

    @property
    def host_room(self) -> int | None:
        """Bytes of the host likewise; None if unknown."""
        return None if self.host_bytes is None else max(0, self.host_bytes - HOST_KEPT)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the server shall do.

    Attributes:
        context: tokens of the longest request; None for what fits, and no less than `SHORTEST`.
        slots: requests at once; None for llama-server's own number.
        roomy: whether the cache may hold more than one such request, where that fits.
        small_cache: whether the KV cache may be of 8 bits, which changes answers a little.
        given: arguments for llama-server.
    """

    context: int | None = None
    slots: int | None = None
    roomy: bool = False
    small_cache: bool = False
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to hold the model.

    Attributes:
        name: for a person.
        settings: of llama-server.
        memory: that they take.
        reading: what one token reads, with the longest request that is wished for.
        seconds: for one token at least; None if the card's bandwidth is not known.
        short: bytes missing on a card or on the host; 0 where it fits.
        allowed: whether it was allowed.
    """

    name: str
    settings: LlamaSettings
    memory: Memory
    reading: Reading
    seconds: float | None
    short: int
    allowed: bool

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.short <= 0


@dataclass(frozen=True, slots=True)
class LlamaPlan:
    """The planner's answer.

    Attributes:
        model: of the file.
        machine: that it is for.
        verdict: in a word.
        rungs: the ways, in the table's order.
        taken: the index of the one to take; the nearest to fitting if none fits.
        tokens: of the request that the speed is for.
        nearest: the smallest single card on which all layers would fit; "" where that is no help.
        given: arguments for llama-server that were given.
    """

    model: LlamaModel
    machine: Machine
    verdict: LlamaVerdict
    rungs: tuple[Rung, ...]
    taken: int
    tokens: int
    nearest: str
    given: tuple[str, ...]

    @property
    def rung(self) -> Rung:
        """The way to take."""
        return self.rungs[self.taken]

    @property
    def settings(self) -> LlamaSettings:
        """Its settings."""
        return self.rung.settings

    def arguments(self) -> tuple[str, ...]:
        """The arguments for llama-server, without those for its address."""
        return ("--model", self.model.path, *self.settings.arguments(self.given))


def plan(model: LlamaModel, machine: Machine, wishes: Wishes = Wishes()) -> LlamaPlan:
    """Make the plan.

    Raises:
        engine.plan.llama.settings.GivenError: An argument cannot be read.
    """
    asked = _Question.of(model, machine, wishes)
    rungs = tuple(rung for way in WAYS for rung in way.rungs(asked))
    able = [rung for rung in rungs if rung.fits and rung.allowed]
    best = min(able, key=_slowness) if able else min(rungs, key=lambda rung: (not rung.allowed, rung.short))
    verdict = _verdict(best, machine) if able else LlamaVerdict.NOT
    wants_card = machine.cards > 0 and verdict is not LlamaVerdict.FITS
    return LlamaPlan(
        model,
        machine,
        verdict,
        rungs,
        rungs.index(best),
        asked.tokens,
        _nearest(model, wishes) if wants_card else "",
        wishes.given,
    )


@dataclass(frozen=True, slots=True)
class _Question:
    """The question, with what follows from it for every way.

    Attributes:
        base: settings before any way changes them.
        fixed: fields that were given.
        tokens: of the longest request.
        least: tokens of KV cache at least.
        most: at most: with more, no request could use them.
    """

    model: LlamaModel
    machine: Machine
    wishes: Wishes
    base: LlamaSettings
    fixed: dict[str, Any]
    tokens: int
    least: int
    most: int

    @classmethod
    def of(cls, model: LlamaModel, machine: Machine, wishes: Wishes) -> "_Question":
        layers = len(model.layers) + model.idle_layers + 1
        fixed = read_given(wishes.given, layers)
        slots = fixed.get("slots") or wishes.slots or SLOTS
        unified = bool(fixed.get("unified", True))
        share = 1 if unified else slots
        given = fixed.get("context")
        tokens = wishes.context or (given // share if given else min(model.trained, SHORTEST))
        tokens = max(1, min(tokens, model.trained) if model.trained else tokens)
        least = given or _padded(tokens) * share
        exact = wishes.context and not wishes.roomy
        most = given or (least if exact else max(least, _padded(model.trained) * slots))
        base = LlamaSettings(gpu_layers=0, context=least, slots=slots, unified=unified)
        return cls(model, machine, wishes, dataclasses.replace(base, **fixed), fixed, tokens, least, most)

    @property
    def layers(self) -> int:
        """What `--gpu-layers` counts: all layers, and the output."""
        return len(self.model.layers) + self.model.idle_layers + 1

    def may(self, **fields: Any) -> bool:
        """Whether settings may have these values: nothing else was given."""
        return all(self.fixed.get(field, value) == value for field, value in fields.items())

    def rung(self, name: str, *, allowed: bool = True, **fields: Any) -> Rung:
        """The way with these settings."""
        settings = dataclasses.replace(self.base, **fields)
        settings = self._with_host(settings)
        memory = measure(self.model, settings, self.machine.cards)
        read = reading(self.model, settings, self.tokens)
        return Rung(
            name,
            settings,
            memory,
            read,
            read.seconds(bandwidth_of(self.machine.hardware.name)),
            self._short(memory),
            allowed,
        )

    def widest(self, name: str, *, allowed: bool = True, **fields: Any) -> Rung:
        """The way with as much KV cache as fits; with the least that is wished for if that does not fit."""
        low, high = self.least // _STEP, self.most // _STEP
        if self.fixed.get("context"):
            return self.rung(name, allowed=allowed, **fields)
        while low < high:
            middle = (low + high + 1) // 2
            if self.rung(name, **fields, context=middle * _STEP).fits:
                low = middle
            else:
                high = middle - 1
        return self.rung(name, allowed=allowed, **fields, context=low * _STEP)

    def on_host(self, name: str, **fields: Any) -> Rung:
        """The way with KV cache on the host: for as many of the longest requests as there are slots, if that fits."""
        if self.fixed.get("context"):
            return self.rung(name, **fields)
        rungs = (
            self.rung(name, **fields, context=min(self.least * count, self.most))
            for count in range(self.base.slots if self.base.unified else 1, 0, -1)
        )
        tried = list(rungs)
        return next((rung for rung in tried if rung.fits), tried[-1])

    def _short(self, memory: Memory) -> int:
        short = memory.fullest - self.machine.card_room if self.machine.cards else 0
        room = self.machine.host_room
        return max(short, 0 if room is None else memory.host.total - room)

    def _with_host(self, settings: LlamaSettings) -> LlamaSettings:
        """With threads for what the host computes, and room for old prompts in what is left of its memory."""
        computes = settings.gpu_layers < self.layers or settings.kv_on_host or settings.host_experts
        if computes and "threads" not in self.fixed:
            settings = dataclasses.replace(settings, threads=self.machine.cores)
        room = self.machine.host_room
        if room is None or "cache_ram" in self.fixed:
            return settings
        left = (room - measure(self.model, settings, self.machine.cards).host.total) // _MIB
        return dataclasses.replace(settings, cache_ram=max(0, min(CACHE_RAM, left)))


def _all_on_cards(asked: _Question) -> Sequence[Rung]:
    if not asked.machine.cards or not asked.may(gpu_layers=asked.layers):
        return ()
    return (asked.widest("all on the card", gpu_layers=asked.layers),)


def _small_cache(asked: _Question) -> Sequence[Rung]:
    fields: dict[str, Any] = {"gpu_layers": asked.layers, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    block = CACHE_TYPES["q8_0"].elements
    rows = [size for layer in asked.model.layers for size in (layer.kept.keys, layer.kept.values) if size]
    able = rows and not any(size % block for size in rows)
    given = {"cache_type_k", "cache_type_v", "kv_on_host"} & asked.fixed.keys()
    if not asked.machine.cards or not able or given or not asked.may(**fields, flash=True):
        return ()
    return (asked.widest("KV cache of 8 bits", allowed=asked.wishes.small_cache, **fields),)


def _experts_on_host(asked: _Question) -> Sequence[Rung]:
    if (
        not asked.machine.cards
        or not asked.model.has_experts
        or "host_experts" in asked.fixed
        or not asked.may(gpu_layers=asked.layers)
    ):
        return ()

    def rung(count: int) -> Rung:
        return asked.rung(f"experts of {count} layers on the host", gpu_layers=asked.layers, host_experts=count)

    return (_first(rung, len(asked.model.layers)),)


def _cache_on_host(asked: _Question) -> Sequence[Rung]:
    fields: dict[str, Any] = {"gpu_layers": asked.layers, "kv_on_host": True}
    layers = asked.model.layers
    if not asked.machine.cards or not any(layer.kept.keys for layer in layers) or not asked.may(**fields):
        return ()
    if "kv_on_host" in asked.fixed or any(layer.kept.state for layer in layers):
        return ()  # a state on the host takes the computing of its layer there, with weights that are on the card
    return (asked.on_host("KV cache on the host", **fields),)


def _part_on_cards(asked: _Question) -> Sequence[Rung]:
    if not asked.machine.cards:
        return ()
    given = asked.fixed.get("gpu_layers")
    if given in {0, asked.layers}:
        return ()
    if given is not None:
        return (asked.widest(f"{given} of {asked.layers} layers on the card"),)

    def rung(on_host: int) -> Rung:
        count = asked.layers - on_host
        return asked.rung(f"{count} of {asked.layers} layers on the card", gpu_layers=count)

    return (_first(rung, asked.layers - 1),)


def _all_on_host(asked: _Question) -> Sequence[Rung]:
    if not asked.may(gpu_layers=0) and asked.machine.cards:
        return ()
    return (asked.on_host("all on the host", gpu_layers=0),)


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table of ways.

    Attributes:
        name: for a person.
        flags: of llama-server that make it.
        when: it is tried; "" for always.
        rungs: it with its settings for what was asked; none where it does not apply.
        changes: what it makes smaller.
    """

    name: str
    flags: str
    when: str
    rungs: Callable[[_Question], Sequence[Rung]]
    changes: frozenset[Quality] = frozenset()


WAYS: tuple[Way, ...] = (
    Way("all on the card", "--gpu-layers M", "", _all_on_cards),
    Way(
        "KV cache of 8 bits", "--cache-type-k q8_0 --cache-type-v q8_0", "rows that divide into blocks of 8 bits",
        _small_cache, frozenset({Quality.KV_CACHE}),
    ),
    Way(
        "experts of N layers on the host", "--n-cpu-moe N", "a mixture of experts; N is the least that fits",
        _experts_on_host,
    ),
    Way("KV cache on the host", "--no-kv-offload", "a model without states", _cache_on_host),
    Way("N of M layers on the card", "--gpu-layers N", "N is the most that fits", _part_on_cards),
    Way("all on the host", "--gpu-layers 0 --device none", "", _all_on_host),
)  # fmt: skip
"""In the order in which they are shown."""


def _first(rung: Callable[[int], Rung], most: int) -> Rung:
    """The rung with the least on the host that fits, as more there leaves more of the card; the last if none does."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if rung(middle).fits:
            high = middle
        else:
            low = middle + 1
    return rung(low)


def _slowness(rung: Rung) -> tuple[float, int]:
    return (rung.seconds if rung.seconds is not None else 0.0, rung.reading.host)


def _verdict(best: Rung, machine: Machine) -> LlamaVerdict:
    settings = best.settings
    if not machine.cards or not (settings.kv_on_host or settings.host_experts or best.memory.host.kv):
        return LlamaVerdict.FITS
    return LlamaVerdict.HOST if settings.gpu_layers == 0 else LlamaVerdict.SPLIT


def _nearest(model: LlamaModel, wishes: Wishes) -> str:
    for card in sorted(CARDS, key=lambda card: card.total_bytes):
        asked = _Question.of(model, Machine(Hardware(card.name, 1, card.total_bytes)), wishes)
        if any(rung.fits for rung in _all_on_cards(asked)):
            return card.name
    return ""


def _padded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP
