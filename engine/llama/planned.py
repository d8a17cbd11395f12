"""The settings of a llama-server that is launched here: those of a plan for the memory that is free now."""

from collections.abc import Sequence
from dataclasses import replace

from engine.filling import Filled
from engine.gpu import Gpu
from engine.host_cores import cores
from engine.host_memory import free_bytes, total_bytes
from engine.plan.cards import Hardware, of_driver
from engine.plan.gguf import GgufError, read_gguf
from engine.plan.llama.memory import measure
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.planner import LlamaPlan, LlamaVerdict, Machine, Wishes, plan
from engine.plan.llama.said import UnknownModelError
from engine.plan.llama.settings import GivenError, LlamaSettings, fields_given, read_given
from engine.spec import EngineSpec

GIB = 2**30
_CONTEXT = 16_384
"""Tokens of KV cache for a model that cannot be planned."""
_SLOTS = 4


def filled(model: str, args: Sequence[str], cards: Sequence[Gpu], engines: int) -> tuple[Filled, ...]:
    """Return what to add to a llama-server's arguments. Those that the user gave stay.

    Args:
        model: The GGUF file.
        args: The user's arguments.
        cards: The GPUs it runs on; none for the processor.
        engines: How many engines share them.
    """
    machine = Machine(_hardware(cards, engines), free_bytes(), cores())
    try:
        made = plan(LlamaModel.of(read_gguf(model)), machine, Wishes(given=tuple(args)))
    except (GgufError, UnknownModelError, GivenError) as error:
        return _unplanned(args, str(error).partition("\n")[0])
    words = made.settings.arguments(args)
    added = words[: len(words) - len(args)]
    return (Filled(added, _why(made)),) if added else ()


def shortage(spec: EngineSpec, gpus: Sequence[Gpu], host_free: int) -> str | None:
    """Return why an engine does not fit beside what runs now, as a clause; None if it does.

    Args:
        spec: The engine, with all its settings in its arguments.
        gpus: The cards it runs on, measured now; none for the processor.
        host_free: Free bytes of this machine.
    """
    try:
        model = LlamaModel.of(read_gguf(spec.model))
        layers = len(model.layers) + model.idle_layers + 1
        given = read_given(spec.args, layers)
    except (GgufError, UnknownModelError, GivenError):
        return "the memory it takes is not known"
    settings = replace(LlamaSettings(gpu_layers=layers if gpus else 0, context=_CONTEXT), **given)
    memory = measure(model, settings, len(gpus))
    if gpus and memory.fullest > (free := min(card.free_bytes for card in gpus)):
        return f"a card has {_gib(free)} free, and a second engine takes {_gib(memory.fullest)} of it"
    if memory.host.total > host_free:
        return (
            f"the machine has {_gib(host_free)} of memory to give, and a second engine takes {_gib(memory.host.total)}"
        )
    return None


def _hardware(cards: Sequence[Gpu], engines: int) -> Hardware:
    if not cards:
        total = total_bytes()
        return Hardware("the CPU", 1, total, min(total, free_bytes()), cpu=True, measured=True)
    least = min(cards, key=lambda card: card.total_bytes)
    known, total = of_driver(least.name, least.total_bytes)
    free = min(card.free_bytes for card in cards) // engines
    return Hardware(known.name if known else least.name, len(cards), total, min(total, free), measured=True)


def _why(made: LlamaPlan) -> str:
    settings, memory = made.settings, made.rung.memory
    if made.verdict is LlamaVerdict.NOT:
        return f"the nearest to fitting lacks {_gib(made.rung.short)} (`kvgate plan` shows all ways)"
    shared = "share" if settings.unified else "divide"
    on_cards = f"{_gib(memory.fullest)} on each card, " if made.machine.cards else ""
    return (
        f"{settings.slots} slots {shared} {settings.context:,} tokens of KV cache; with the weights {on_cards}"
        f"{_gib(memory.host.total)} on the host"
    )


def _unplanned(args: Sequence[str], reason: str) -> tuple[Filled, ...]:
    rows = {
        "context": ("--ctx-size", str(_CONTEXT)),
        "slots": ("--parallel", str(_SLOTS)),
        "unified": ("--kv-unified",),
        "threads": ("--threads", str(cores())),
    }
    given = fields_given(args)
    words = tuple(word for field, row in rows.items() if field not in given for word in row)
    return (Filled(words, f"it cannot be planned: {reason}"),) if words else ()


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
