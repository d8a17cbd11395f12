"""The output of a ladder: 80 columns for a person, JSON for a program."""

import shlex

import msgspec
from rich.console import Console
from rich.table import Table

from engine.plan.cards import GIB
from engine.plan.ladder import Engine, Ladder, Rung

_TENTH = 0.1


def command(rung: Rung) -> tuple[str, ...]:
    """The command line of a rung: what was given for the engine, then what the plan sets."""
    if rung.engine is Engine.LLAMA:
        return ("llama-server", "--model", rung.model, *rung.arguments, *rung.given)
    return ("vllm", "serve", rung.model, *rung.given, *rung.arguments)


def as_builtins(ladder: Ladder) -> dict[str, object]:
    """All rungs, each with its command. Sizes are bytes, lengths tokens; an unknown speed is null."""
    told: dict[str, object] = {"taken": ladder.taken, "wanted": ladder.wanted}
    rungs = []
    for rung in ladder.rungs:
        said = msgspec.to_builtins(rung)
        said |= {"fits": rung.fits, "tokens_per_second": 1 / rung.seconds if rung.seconds else None}
        said |= {"changes": sorted(rung.changes), "command": command(rung)}
        rungs.append(said)
    return told | {"rungs": rungs}


def as_json(ladder: Ladder) -> bytes:
    """The same as JSON."""
    return msgspec.json.format(msgspec.json.encode(as_builtins(ladder)))


def show(ladder: Ladder, out: Console) -> None:
    """Print a ladder, and the command of the rung to take."""
    show_rungs(ladder, out)
    if ladder.taken is None:
        out.print("\nNone of them fits, keeps the wanted context, is allowed, and has what it needs.")
        return
    taken = ladder.rungs[ladder.taken]
    environ = " ".join(f"{name}={value}" for name, value in taken.environ)
    out.print("\nThe command:")
    out.print(f"{environ} {shlex.join(command(taken))}".strip(), style="bold", soft_wrap=True)


def show_rungs(ladder: Ladder, out: Console) -> None:
    """Print the rungs alone."""
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("rung")
    for name in ("tokens", "card", "host", "tok/s"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for number, rung in enumerate(ladder.rungs):
        taken = number == ladder.taken
        sizes = (f"{size / GIB:.1f}" for size in (rung.card, rung.host))
        grid.add_row(
            rung.name,
            f"{rung.context:,}",
            *sizes,
            _speed(rung),
            remark(rung, ladder),
            style="bold" if taken else None,
        )
    out.print(grid)
    out.print(
        f"\nSizes are GiB, at the worse end, with one request of the wanted {ladder.wanted:,} tokens, of llama-server "
        "with all its KV cache; tok/s are a bound by memory's bandwidth for one request, not measured."
    )


def remark(rung: Rung, ladder: Ladder) -> str:
    """Why a rung is taken, or not; "" for one that is able and comes later."""
    if ladder.taken is not None and rung is ladder.rungs[ladder.taken]:
        return "taken"
    if not rung.fits:
        return f"{rung.short / GIB:.1f} short"
    if not rung.allowed:
        return f"allow {' '.join(sorted(rung.changes))}"
    if rung.lacks:
        return f"no {rung.lacks}"
    return "" if rung.context >= ladder.wanted else "too short"


def _speed(rung: Rung) -> str:
    if not rung.seconds:
        return "?"
    return f"{1 / rung.seconds:,.{0 if rung.seconds < _TENTH else 1}f}"
