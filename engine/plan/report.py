"""The output of a plan: 80 columns for a person, JSON for a program."""

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.plan.budget import Budget, Request, Settings
from engine.plan.cards import GIB, Hardware
from engine.plan.overhead import Span
from engine.plan.planner import Plan, Verdict
from engine.plan.published import STARTS, compare

WIDTH = 80
_BAR = 60
_SEGMENTS = (("weights", "█", "blue"), ("rest", "▓", "yellow"), ("either", "▒", "magenta"), ("KV cache", "░", "green"))
_COLOURS = {Verdict.FITS: "green", Verdict.CHANGES: "yellow", Verdict.NOT: "red"}


def command(plan: Plan, request: Request) -> tuple[str, ...]:
    """The `vllm serve` command line of the plan: the given arguments, then those of the changes."""
    model = plan.model
    kinds = [change.checkpoint for change in plan.changes if change.checkpoint]
    if kinds:
        model = f"{plan.model}-{kinds[0].upper()}"
    return ("vllm", "serve", model, *request.arguments.words, *plan.words)


def configuration(plan: Plan, request: Request) -> str:
    """The same as an entry of kvgate's own config file."""
    words = command(plan, request)
    lines = ["models:", "  - engine:", f"      model: {words[2]}"]
    if words[3:]:
        lines.append(f"      args: [{', '.join(_quoted(word) for word in words[3:])}]")
    if plan.environ:
        lines.append(f"      env: {{{', '.join(f'{name}: {_quoted(value)}' for name, value in plan.environ.items())}}}")
    return "\n".join(lines)


def as_json(plan: Plan, request: Request) -> bytes:
    """The whole plan with its command. Sizes are bytes, lengths tokens; an unbounded number of requests is null."""
    told: dict[str, Any] = msgspec.to_builtins(plan)
    told["hardware"] = msgspec.to_builtins(request.hardware)
    told["traffic"] = msgspec.to_builtins(request.traffic)
    told["command"] = command(plan, request)
    told["environ"] = plan.environ
    told["budget"]["rest"] = msgspec.to_builtins(plan.budget.overhead.total)
    told["exact_weights"] = request.weights.exact
    return msgspec.json.format(msgspec.json.encode(told))


def show(plan: Plan, request: Request, out: Console) -> None:
    """Print a plan."""
    out.print(Group(*_parts(plan, request)), soft_wrap=False)
    if plan.verdict is Verdict.NOT:
        return
    for change in plan.changes:
        if change.checkpoint:
            kind = change.checkpoint.upper()
            out.print(f"\n{plan.model}-{kind} stands for a checkpoint of that kind: find what it is called.")
    environ = " ".join(f"{name}={value}" for name, value in plan.environ.items())
    out.print("\nThe command, then the same for kvgate:")
    # Unbroken, so that it can be copied.
    out.print(f"{environ} {shlex.join(command(plan, request))}".strip(), style="bold", soft_wrap=True)
    out.print(configuration(plan, request), soft_wrap=True)


def show_published(out: Console) -> None:
    """Print published starts of vLLM on real GPUs beside their plans."""
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("", "start", "card", "KV GiB", "planned", "KV tokens", "off by"):
        grid.add_column(name, no_wrap=True, justify="left" if name in {"start", "card"} else "right")
    compared = [compare(start) for start in STARTS]
    apart = [found for found in compared if not found.inside]
    for number, found in enumerate(compared, 1):
        start = found.start
        mark = f" [{apart.index(found) + 1}]" if found in apart else ""
        low, high = found.available.low / GIB, found.available.high / GIB
        tokens, error = "", ""
        if start.tokens is not None:
            tokens, error = f"{start.tokens:,}", f"{found.tokens.low / start.tokens - 1:+.2%}"
        planned = f"{low:.1f} to {high:.1f}{mark}"
        card = start.card if start.tensor_parallel == 1 else f"{start.card} x{start.tensor_parallel}"
        grid.add_row(str(number), start.model, card, f"{start.available:.2f}", planned, tokens, error)
    out.print(grid)
    out.print(
        f"{len(STARTS) - len(apart)} of {len(STARTS)} within the range. Tokens are planned from the logged bytes."
    )
    for number, found in enumerate(apart, 1):
        out.print(f"[{number}] {found.start.differs[0].upper()}{found.start.differs[1:]}.")
    out.print("Published at:")
    for version, url in dict.fromkeys((start.version, start.url) for start in STARTS):
        numbers = [
            str(number) for number, start in enumerate(STARTS, 1) if (start.version, start.url) == (version, url)
        ]
        out.print(f"{', '.join(numbers)}: vLLM {version}, {url}", soft_wrap=True)


def _parts(plan: Plan, request: Request) -> Iterator[RenderableType]:
    settings, budget = plan.settings, plan.budget
    where = _hardware(request.hardware, settings)
    yield Text.assemble((f"{plan.model} ", "bold"), f"on {where}: ", (plan.verdict.value, _COLOURS[plan.verdict]))
    yield Text("")
    yield from _bar(budget, request.hardware)
    yield Text("")
    yield _figures(plan, request)
    if plan.changes:
        yield _changes(plan)
    if plan.verdict is Verdict.NOT:
        yield Text(f"Missing on each card, at the worse end: {budget.short / GIB:.1f} GiB.")
        for near in plan.nearest or ("nothing among the cards known here, with these weights",):
            yield Text(f"The nearest that fits: {near}.")
    if plan.sizes and plan.verdict is not Verdict.FITS:
        sizes = ", ".join(f"{size.scheme} {size.bytes / GIB:.1f}" for size in plan.sizes)
        yield Text(f"\nWeights a card in GiB, by scheme: {sizes}.")
        for size in plan.sizes:
            yield Padding(Text(f"{size.scheme}: {size.kind}"), (0, 0, 0, 2))
    for note in plan.notes:
        yield Text(f"\nNote: {note}")
    if plan.hints:
        yield Text("\nOnly if it happens:")
        for hint in plan.hints:
            yield Padding(Text(f"{hint.setting}: {hint.condition}"), (0, 0, 0, 2))


def _hardware(hardware: Hardware, settings: Settings) -> str:
    if hardware.cpu:
        return f"a CPU ({hardware.total_bytes / GIB:.1f} GiB)"
    cards = f"{settings.world} of {hardware.count}" if settings.world < hardware.count else f"{hardware.count}"
    return f"{cards} x {hardware.name} ({hardware.total_bytes / GIB:.2f} GiB)"


def _bar(budget: Budget, hardware: Hardware) -> Iterator[RenderableType]:
    rest = budget.overhead.total
    sure = max(0, budget.kv.low)
    either = max(0, budget.kv.high) - sure
    values = (budget.weights, rest.low, either, sure)
    whole = max(budget.total, sum(values))
    picture = Text("|")
    used = 0
    for (_, char, colour), value in zip(_SEGMENTS, values, strict=True):
        columns = round((used + value) / whole * _BAR) - round(used / whole * _BAR)
        picture.append(char * columns, colour)
        used += value
    picture.append(" " * max(0, _BAR - len(picture) + 1)).append("|")
    yield picture
    left = budget.total - used
    legend = [f"{char} {name} {value / GIB:.1f}" for (name, char, _), value in zip(_SEGMENTS, values, strict=True)]
    legend.append(f"free {left / GIB:.1f}" if left >= 0 else f"over by {-left / GIB:.1f}")
    what = "machine" if hardware.cpu else "card"
    yield Text(f"GiB: {'  '.join(legend)} of the {what}")
    if either:
        yield Text("either: the KV cache's, unless activations, graphs and buffers take it", style="dim")


def _figures(plan: Plan, request: Request) -> Table:
    budget, settings, rest = plan.budget, plan.settings, plan.budget.overhead
    grid = _grid("", "", header=False)
    grid.add_row("weights", f"{budget.weights / GIB:.2f} GiB a rank{'' if request.weights.exact else ' (estimated)'}")
    grid.add_row("activations", f"{_gib(rest.activation)} ({settings.max_num_batched_tokens:,} tokens a step, "
                 f"{settings.max_num_seqs} sequences)")  # fmt: skip
    if not request.hardware.cpu:
        grid.add_row("CUDA graphs", _gib(rest.graphs))
    grid.add_row("outside of torch", _gib(rest.outside))
    left = _gib(Span(max(0, budget.kv.low), max(0, budget.kv.high)))
    grid.add_row("KV cache", f"{left}, {budget.bytes_per_token / 1024:.1f} KiB a token")
    grid.add_row("KV tokens", _numbers(budget.tokens.low, budget.tokens.high))
    grid.add_row(f"requests of {settings.max_model_len:,} tokens", _requests(budget.at_full))
    if budget.at_p99 is not None and request.traffic and request.traffic.total_tokens:
        length = request.traffic.total_tokens.p99.high
        grid.add_row(f"requests of {length:,} tokens (p99)", _requests(budget.at_p99))
    return grid


def _changes(plan: Plan) -> Group:
    grid = _grid("change", "reason")
    grid.columns[0].no_wrap = False
    for change in plan.changes:
        words = " ".join(change.words) or " ".join(f"{name}={value}" for name, value in change.environ)
        grid.add_row(words or f"{change.checkpoint.upper()} checkpoint", change.reason)
    return Group(Text("\nWhat to change, in this order", style="bold"), grid)


def _grid(*names: str, header: bool = True) -> Table:
    grid = Table(box=SIMPLE_HEAD if header else None, padding=(0, 2, 0, 0), show_header=header, pad_edge=False)
    for name in names:
        grid.add_column(name)
    return grid


def _gib(span: Span) -> str:
    return _range(f"{span.low / GIB:.2f}", f"{span.high / GIB:.2f}") + " GiB"


def _numbers(low: int, high: int) -> str:
    return _range(f"{low:,}", f"{high:,}")


def _requests(span: tuple[float, float]) -> str:
    return _range(f"{span[0]:.1f}", f"{span[1]:.1f}") + " at once"


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _quoted(word: str) -> str:
    return f'"{word}"'
