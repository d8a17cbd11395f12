"""The output of a plan for llama-server: 80 columns for a person, JSON for a program."""

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.plan.cards import GIB
from engine.plan.llama.planner import CARD_KEPT, HOST_KEPT, LlamaPlan, LlamaVerdict, Rung
from engine.plan.llama.speed import HOST_BANDWIDTH
from engine.plan.overhead import Span

_COLOURS = {LlamaVerdict.FITS: "green", LlamaVerdict.NOT: "red"}
_BINARY = "llama-server"


def command(plan: LlamaPlan) -> tuple[str, ...]:
    """The command line of the plan."""
    return (_BINARY, *plan.arguments())


def as_json(plan: LlamaPlan) -> bytes:
    """The whole plan with its command. Sizes are bytes, lengths tokens; an unknown speed is null."""
    told: dict[str, Any] = msgspec.to_builtins(plan)
    for rung, said in zip(plan.rungs, told["rungs"], strict=True):
        said |= {"fits": rung.fits, "tokens_per_second": _speed(rung)}
    told["model"]["weights"] = plan.model.weights
    told["settings"] = msgspec.to_builtins(plan.settings)
    told["command"] = command(plan)
    return msgspec.json.format(msgspec.json.encode(told))


def show(plan: LlamaPlan, out: Console) -> None:
    """Print a plan."""
    out.print(Group(*_parts(plan)), soft_wrap=False)
    if plan.verdict is not LlamaVerdict.NOT:
        out.print("\nThe command:")
        out.print(shlex.join(command(plan)), style="bold", soft_wrap=True)  # unbroken, so that it can be copied


def _parts(plan: LlamaPlan) -> Iterator[RenderableType]:
    model, hardware = plan.model, plan.machine.hardware
    where = f"{hardware.count} x {hardware.name} ({hardware.total_bytes / GIB:.2f} GiB)"
    if hardware.cpu:
        where = f"the CPU ({hardware.total_bytes / GIB:.1f} GiB)"
    colour = _COLOURS.get(plan.verdict, "yellow")
    yield Text.assemble((f"{model.path} ", "bold"), f"on {where}: ", (plan.verdict.value, colour))
    yield Text(
        f"{model.architecture}, {len(model.layers)} layers, mostly {model.blocks}, {model.weights / GIB:.2f} GiB, made "
        f"for {model.trained:,} tokens\n"
    )
    yield _memory(plan)
    yield Text("")
    yield _ladder(plan)
    yield from _words(plan)


def _memory(plan: LlamaPlan) -> Table:
    memory, settings, machine = plan.rung.memory, plan.settings, plan.machine
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("GiB")
    card = max(memory.cards, key=lambda part: part.total) if memory.cards else None
    if card:
        grid.add_column("card" if machine.cards == 1 else "fullest card")
    grid.add_column("host")
    grid.add_column("")

    def row(name: str, on_card: str, on_host: str, about: str = "") -> None:
        grid.add_row(name, *([on_card] if card else []), on_host, about)

    weights, kv, compute = (
        [getattr(part, name) for part in (card, memory.host) if part] for name in ("weights", "kv", "compute")
    )
    row("weights", _gib(weights[0]), _gib(weights[-1]))
    row(
        "KV cache", _gib(kv[0]), _gib(kv[-1]),
        f"{settings.context:,} tokens, {memory.bytes_per_token / 1024:.1f} KiB each"
        + (f", for {settings.slots} slots together" if settings.unified else f", split among {settings.slots} slots"),
    )  # fmt: skip
    row("compute buffers", _span(compute[0]), _span(compute[-1]), f"for steps of {settings.ubatch} tokens")
    row("kept free", _gib(CARD_KEPT), _gib(HOST_KEPT))
    if memory.old_prompts:
        row("old prompts", "", f"up to {_gib(memory.old_prompts)}")
    room = machine.host_bytes
    free = machine.hardware.total_bytes if machine.hardware.free_bytes is None else machine.hardware.free_bytes
    row(
        "there are",
        _gib(free),
        "unknown" if room is None else _gib(room),
        "free now" if machine.hardware.measured else "",
    )
    return grid


def _ladder(plan: LlamaPlan) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("way to hold it")
    names = ("tokens", *(("card",) if plan.machine.cards else ()), "host", "tokens/s", "slower")
    for name in names:
        grid.add_column(name, justify="right")
    grid.add_column("")
    whole = plan.rungs[0].seconds
    for number, rung in enumerate(plan.rungs):
        taken = number == plan.taken and plan.verdict is not LlamaVerdict.NOT
        speed = _speed(rung)
        cells = [
            rung.name,
            f"{rung.settings.context:,}",
            *([_gib(rung.memory.fullest)] if plan.machine.cards else []),
            _gib(rung.memory.host.total),
            "?" if speed is None else f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}",  # noqa: PLR2004
            f"{rung.seconds / whole:.1f} x" if rung.seconds and whole else "",
        ]
        grid.add_row(*cells, _remark(rung, taken=taken), style="bold" if taken else None)
    return grid


def _remark(rung: Rung, *, taken: bool) -> str:
    if taken:
        return "taken"
    if not rung.fits:
        return f"{_gib(rung.short)} short"
    return "" if rung.allowed else "not allowed"


def _words(plan: LlamaPlan) -> Iterator[RenderableType]:
    yield Text(
        f"\nTokens/s are a bound for one request with {plan.tokens:,} tokens, not measured: what a token reads, by the "
        f"bandwidth of where it lies (the host's: {HOST_BANDWIDTH / 1e9:.0f} GB/s, two channels of DDR4-3200).",
        style="dim",
    )
    if plan.verdict is LlamaVerdict.NOT:
        where = "the card" if plan.rung.memory.fullest - plan.machine.card_room == plan.rung.short else "the host"
        yield Text(f"\nThe nearest to fitting, {plan.rung.name}, lacks {_gib(plan.rung.short)} GiB of {where}.")
    if plan.nearest:
        yield Text(f"\nAll of it would fit on 1 x {plan.nearest}.")
    if any(rung.fits and not rung.allowed and _gains(rung, plan) for rung in plan.rungs):
        yield Text("\nA KV cache of 8 bits changes answers a little: ask for it with")
        yield Padding(Text("-- --cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on"), (0, 0, 0, 2))
    for note in plan.model.notes:
        yield Text(f"\nNote: {note}")


def _gains(rung: Rung, plan: LlamaPlan) -> bool:
    return plan.verdict is not LlamaVerdict.FITS or rung.settings.context > plan.settings.context


def _speed(rung: Rung) -> float | None:
    return 1 / rung.seconds if rung.seconds else None


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _span(span: Span) -> str:
    low, high = _gib(span.low), _gib(span.high)
    return low if low == high else f"{low} to {high}"
