"""The report of a replay, for people."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.record.replay import Difference, Replayed
from gateway.record.whatif import DISPATCHED, Compared, waits

SHOWN = 10
"""Most differences listed."""
_WHAT_IT_SHOWS = (
    "Up to the first decision that differs, this is what was recorded. From there on each request is served as fast as "
    "it was in the record, and one that was refused there as fast as the mean: engines that are given more do not get "
    "slower here, nothing is preempted, and clients who were refused do not come back. Take the direction from this, "
    "not the figures."
)


def show(replayed: Replayed, console: Console) -> None:
    """The result of replaying a record as it was."""
    _show_gaps(replayed, console)
    models = ", ".join(dict.fromkeys(replayed.models.values())) or "no model"
    differ = len(replayed.differences)
    console.print(
        f"{replayed.events} events of {models}: {replayed.decisions} decisions, {differ} differ", soft_wrap=True
    )
    if differ:
        console.print(_listed(replayed, replayed.differences[:SHOWN], "replayed"))


def show_compared(compared: Compared, changes: Sequence[str], console: Console) -> None:
    """The result of replaying a record with other settings."""
    _show_gaps(compared.replayed, console)
    console.print(f"with {', '.join(changes)}", soft_wrap=True)
    table = Table("outcome", box=None, header_style="", pad_edge=False)
    for name in ("recorded", "changed"):
        table.add_column(name, justify="right")
    for ended, before, after in compared.outcomes():
        table.add_row(ended, str(before), str(after))
    before_waits, after_waits = waits(compared.recorded.values()), waits(compared.changed.values())
    for share in (50, 99, 100):
        label = f"queue wait, p{share} (s)" if share < 100 else "queue wait, longest (s)"  # noqa: PLR2004
        table.add_row(label, _quantile(before_waits, share), _quantile(after_waits, share))
    console.print(table)
    if not compared.differences:
        console.print("No decision differs.")
        return
    otherwise = compared.otherwise()
    console.print(f"\n{len(otherwise)} requests end otherwise. The first decision of each core that differs:")
    console.print(_listed(compared.replayed, compared.differences[:SHOWN], "changed"))
    console.print(f"\n{_WHAT_IT_SHOWS}")


def _show_gaps(replayed: Replayed, console: Console) -> None:
    for run in dict.fromkeys(replayed.gaps):
        console.print(f"Lines of run {run} are missing: the disk was too slow. What comes after the gap is left out.")


def _listed(replayed: Replayed, differences: Sequence[Difference], other: str) -> Table:
    table = Table("run", "model", "at (s)", "recorded", other, box=None, header_style="", pad_edge=False)
    for difference in differences:
        key = difference.key
        table.add_row(
            str(key.run),
            replayed.models[key],
            f"{difference.since:.3f}",
            _sentence(difference.recorded),
            _sentence(difference.replayed),
        )
    return table


def _sentence(decided: Sequence[dict[str, Any]]) -> str:
    words = [f"{one['request']} {_decision(one)}" for one in decided]
    return ", ".join(words[:SHOWN]) or "nothing"


def _decision(one: dict[str, Any]) -> str:
    if "endpoint" in one:
        return f"to {one['endpoint']}" + (f" (would: {one['would']})" if one.get("would") else "")
    after = one.get("retry_after")
    return str(one["outcome"]) + (f", retry after {after:.1f} s" if after is not None else "")


def _quantile(ordered: Sequence[float], percent: int) -> str:
    if not ordered:
        return f"none {DISPATCHED}"
    return f"{ordered[max(0, -(-len(ordered) * percent // 100) - 1)]:.3f}"
