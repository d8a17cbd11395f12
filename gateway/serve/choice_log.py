"""The log of a choice: the ladder, which rung was taken, and what that costs."""

import io
import shlex
from typing import Any

import structlog
from rich.console import Console

from engine.plan.cards import GIB
from engine.plan.ladder import Ladder
from engine.plan.ladder_report import remark, show_rungs
from gateway.serve.choice import Choice

_WIDTH = 100
_log = structlog.get_logger("kvgate.supervisor")


def tell(choice: Choice, *, people: bool) -> None:
    """Log a choice: a table for people, fields otherwise. Nothing of the user's own arguments is in it."""
    if people:
        _log.info(f"{choice.model}: the ways to serve it on {_where(choice)}\n{_table(choice.ladder)}\n{_took(choice)}")
    else:
        _log.info(_took(choice), rungs=_rungs(choice.ladder), wanted=choice.ladder.wanted)


def _took(choice: Choice) -> str:
    rung = choice.rung
    adds = [f"{name}={value}" for name, value in rung.environ]
    added = " ".join((*adds, shlex.join(rung.arguments))).strip()
    said = [f"{choice.model}: taken is {rung.name}" + (f", with {added}" if added else "")]
    if rung.model != choice.asked.model:
        said.append(f"it serves {rung.model}, an alternative that was named")
    if rung.changes:
        changed = " and ".join(sorted(rung.changes))
        said.append(f"its {changed} will be smaller than the model's, which engine.quality allows")
    return "; ".join(said)


def _where(choice: Choice) -> str:
    hardware = choice.hardware
    host = f"{(choice.machine.host_bytes or 0) / GIB:.1f} GiB of the host are free"
    if hardware.cpu:
        return f"the CPU: {host}"
    card = hardware.total_bytes if hardware.free_bytes is None else hardware.free_bytes
    return (
        f"{hardware.count} x {hardware.name}: {card / GIB:.1f} of {hardware.total_bytes / GIB:.1f} GiB are free; {host}"
    )


def _table(ladder: Ladder) -> str:
    out = io.StringIO()
    show_rungs(ladder, Console(file=out, width=_WIDTH, highlight=False, markup=False))
    return out.getvalue().rstrip()


def _rungs(ladder: Ladder) -> list[dict[str, Any]]:
    return [
        {
            "name": rung.name,
            "model": rung.model,
            "context": rung.context,
            "card_bytes": rung.card,
            "host_bytes": rung.host,
            "tokens_per_second": 1 / rung.seconds if rung.seconds else None,
            "changes": sorted(rung.changes),
            "remark": remark(rung, ladder),
        }
        for rung in ladder.rungs
    ]
