"""The figures of a picture as a person reads them: the columns of each table, and the sentences beside them.

A column has a width, so that nothing moves while its figures change; one in each table takes what is left.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

from gateway.ops.people import harmless
from gateway.ops.pictures.picture import Endpoint, Flow, Level, Model, Picture, Quantiles, Request, Sign, Split

Row = TypeVar("Row")
Order = float | str
"""What rows are sorted by."""
GAP = 2
"""Characters between two columns."""
NONE = "-"
STYLES: dict[Level, str] = {"good": "green", "busy": "cyan", "warn": "yellow", "bad": "bold red"}
_MARKS: dict[Level, str] = {"good": "●", "busy": "●", "warn": "▲", "bad": "■"}
PARTS = (
    ("running", "held", "█", "green"),
    ("shared", "shared", "▓", "cyan"),
    ("foreign", "foreign", "▒", "magenta"),
    ("promised", "promised", "░", "yellow"),
    ("free", "free", "·", ""),
)
"""Parts of the bar of a KV cache: field of `Split`, name, character (it tells them apart without colour), colour."""
_LOW, _HIGH = "┆", "│"
_STEPS = "▁▂▃▄▅▆▇█"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table."""

    title: str
    width: int
    """Characters; the least of one that grows."""
    text: Callable[[Row, Picture, int], Text]
    """The cell of a row, in so many characters."""
    order: Callable[[Row], Order | None]
    """None comes last."""
    down: bool = True
    """Whether the greatest comes first."""
    right: bool = True
    """Figures end at the right."""
    grows: bool = False
    needs: int = 0
    """Characters of the terminal from which it is shown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One flow of one model."""

    model: str
    flow: Flow


def fitting(columns: Sequence[Column[Row]], width: int) -> list[tuple[Column[Row], int]]:
    """The columns for a terminal of this width, each with its own."""
    shown = [column for column in columns if column.needs <= width]
    left = max(0, width - sum(column.width + GAP for column in shown))
    return [(column, column.width + left * column.grows) for column in shown]


def ordered(rows: Iterable[Row], by: Column[Row] | None) -> list[Row]:
    """The rows by a column; None leaves them as they come."""
    if by is None:
        return list(rows)
    known: list[tuple[Order, Row]] = []
    others: list[Row] = []
    for row in rows:
        if (order := by.order(row)) is None:
            others.append(row)
        else:
            known.append((order, row))
    known.sort(key=lambda entry: entry[0], reverse=by.down)
    return [*(row for _, row in known), *others]


def entries(picture: Picture) -> list[Entry]:
    """The flows of all models."""
    return [Entry(model.model, flow) for model in picture.models for flow in model.flows]


def headline(picture: Picture) -> Text:
    """The state in one sentence, then what to do, then what else is wrong."""
    lines = [_sign(picture.headline, picture.at)]
    lines += [_sign(sign, picture.at) for sign in picture.signs if sign.key != picture.headline.key]
    return Text("\n").join(lines)


def _sign(sign: Sign, at: float) -> Text:
    text = Text(f"{_MARKS[sign.level]} {harmless(sign.text)}", STYLES[sign.level])
    if sign.since is not None:
        text.append(f" For {duration(at - sign.since)}.")
    if sign.do is not None:
        text.append(f" {harmless(sign.do)}", "default not bold")
    return text


def model_line(model: Model) -> Text:
    """A model's queue, its times against the target, and what became of its requests in 5 minutes."""
    facts = [f"{model.waiting:,} waiting" if model.waiting else "nothing waits"]
    if model.ttft is not None and model.ttft.p50 is not None:
        target = "" if model.ttft_target is None else f" (target {duration(model.ttft_target)})"
        facts.append(f"first token {_quantiles(model.ttft)}{target}")
    if model.gap is not None and model.gap.p50 is not None:
        facts.append(f"gap {_quantiles(model.gap)}")
    if model.outcomes:
        ended = sorted(model.outcomes.items(), key=lambda outcome: -outcome[1])
        facts.append(f"in 5 min {', '.join(f'{number:,} {outcome}' for outcome, number in ended)}")
    return Text.assemble((harmless(model.model), "bold"), f": {'; '.join(facts)}")


def _quantiles(seen: Quantiles) -> str:
    told = (("p50", seen.p50), ("p90", seen.p90), ("p99", seen.p99))
    return " ".join(f"{name} {duration(value)}" for name, value in told if value is not None)


def bar(endpoint: Endpoint, picture: Picture, width: int) -> Text:
    """The KV cache of an endpoint in characters, with marks where the gate opens and closes."""
    text = Text(no_wrap=True)
    if endpoint.split is None:
        return text.append("size not known")
    for (_, _, character, style), cells in zip(PARTS, cells_of(endpoint.split, width), strict=True):
        text.append(character * cells, style)
    for share, mark in ((picture.kv_low, _LOW), (picture.kv_high, _HIGH)):
        at = min(width - 1, int(share * width))
        text = Text.assemble(text[:at], (mark, "bold"), text[at + 1 :])
    return text


def cells_of(split: Split, width: int) -> list[int]:
    """Characters of each part, which fill the bar; a forecast beyond the cache fills it to its end."""
    ends, sum_of = [], 0.0
    for name, *_ in PARTS[:-1]:
        sum_of += getattr(split, name)
        ends.append(min(width, round(sum_of * width)))
    ends.append(width)
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def legend() -> Text:
    """The meaning of the characters of a bar."""
    text = Text()
    for _, name, character, style in PARTS:
        text.append(f"{character} ", style).append(f"{name}  ")
    return text


def usage_lately(picture: Picture, endpoint: str, width: int) -> Text:
    """The KV cache of an endpoint over the last 15 minutes, one character for each of so many spans."""
    usages = [
        gauge.usage for point in picture.points if (gauge := point.endpoints.get(endpoint)) and gauge.usage is not None
    ]
    chosen = [usages[len(usages) * step // width] for step in range(width)] if len(usages) >= width else usages
    text = "".join(_STEPS[max(0, min(len(_STEPS) - 1, int(usage * len(_STEPS))))] for usage in chosen)
    return Text(text.rjust(width), "cyan")


def duration(seconds: float) -> str:
    """Seconds for people, in at most 6 characters."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    raise AssertionError


def percent(share: float | None) -> str:
    """A share for people."""
    return NONE if share is None else f"{share * 100:.0f} %"


def _seconds(value: float | None) -> Text:
    return Text(NONE if value is None else duration(value))


def _number(value: float | None) -> Text:
    return Text(NONE if value is None else f"{value:,.0f}")


def _name(value: str | None) -> Text:
    return Text(NONE if value is None else harmless(value))


def _state(endpoint: Endpoint, _picture: Picture, _width: int) -> Text:
    if not endpoint.healthy:
        return Text(endpoint.state, "yellow" if endpoint.state == "draining" else "bold red")
    return Text(endpoint.state, "green") if endpoint.gate_open else Text("gate shut", "cyan")


def _sequences(endpoint: Endpoint, _picture: Picture, _width: int) -> Text:
    limit = endpoint.sequence_limit
    return Text(f"{endpoint.sequences:,}" if limit is None else f"{endpoint.sequences:,}/{limit:,}")


def _usage(endpoint: Endpoint, picture: Picture, _width: int) -> Text:
    usage = endpoint.usage
    high = usage is not None and usage >= picture.kv_high
    return Text(percent(usage), "bold yellow" if high else "")


def _phase(request: Request, _picture: Picture, _width: int) -> Text:
    if request.phase != "ended":
        return Text(request.phase, "cyan" if request.phase == "waiting" else "green")
    outcome = request.outcome or "ended"
    return Text(outcome, "" if outcome == "completed" else "yellow")


def _generated(request: Request, _picture: Picture, _width: int) -> Text:
    told = NONE if request.generated is None else f"{request.generated:,}"
    return Text(told if request.expected is None else f"{told}/{request.expected:,}")


def _waited(request: Request, picture: Picture, _width: int) -> Text:
    return _seconds(request_wait(request, picture.at))


def _ends(request: Request, picture: Picture, _width: int) -> Text:
    if request.ends is None:
        return Text(NONE)
    left = request.ends - picture.at
    if request.phase == "ended":
        return Text(f"-{duration(-left)}")
    return Text(f"+{duration(left)}" if left > 0 else "late")


def request_wait(request: Request, at: float) -> float | None:
    """Seconds that a request has waited, also while it does."""
    return at - request.came if request.phase == "waiting" else request.waited


ENDPOINTS: tuple[Column[Endpoint], ...] = (
    Column("endpoint", 15, lambda row, _p, _w: _name(row.id), lambda row: row.id, down=False, right=False),
    Column("state", 9, _state, lambda row: row.state, down=False, right=False),
    Column("KV cache", 14, bar, lambda row: row.usage, right=False, grows=True),
    Column("used", 5, _usage, lambda row: row.usage),
    Column("peak", 5, lambda row, _p, _w: Text(percent(row.forecast)), lambda row: row.forecast),
    Column("running", 8, _sequences, lambda row: row.sequences),
    Column("tok/s", 6, lambda row, _p, _w: _number(row.generated_rate), lambda row: row.generated_rate),
    Column("prefill", 7, lambda row, _p, _w: _number(row.prefill_rate), lambda row: row.prefill_rate, needs=100),
    Column("preempted", 9, lambda row, _p, _w: _number(row.preemptions), lambda row: row.preemptions, needs=100),
    Column("15 min", 20, lambda row, p, w: usage_lately(p, row.id, w), lambda row: row.usage, right=False, needs=130),
)
FLOWS: tuple[Column[Entry], ...] = (
    Column("band", 4, lambda row, _p, _w: _number(row.flow.band), lambda row: row.flow.band, down=False),
    Column(
        "flow",
        12,
        lambda row, _p, _w: _name(row.flow.flow),
        lambda row: row.flow.flow,
        down=False,
        right=False,
        grows=True,
    ),
    Column("model", 12, lambda row, _p, _w: _name(row.model), lambda row: row.model, down=False, right=False),
    Column("waiting", 7, lambda row, _p, _w: _number(row.flow.waiting), lambda row: row.flow.waiting),
    Column(
        "oldest",
        6,
        lambda row, p, _w: _seconds(None if row.flow.oldest is None else p.at - row.flow.oldest),
        lambda row: row.flow.oldest,
        down=False,
    ),
    Column("to wait", 7, lambda row, _p, _w: _seconds(row.flow.predicted_wait), lambda row: row.flow.predicted_wait),
    Column("served", 6, lambda row, _p, _w: Text(percent(row.flow.service)), lambda row: row.flow.service),
    Column("due", 5, lambda row, _p, _w: Text(percent(row.flow.due)), lambda row: row.flow.due),
)
REQUESTS: tuple[Column[Request], ...] = (
    Column("request", 12, _phase, lambda row: row.phase, right=False),
    Column("flow", 10, lambda row, _p, _w: _name(row.flow), lambda row: row.flow, down=False, right=False, grows=True),
    Column(
        "model", 14, lambda row, _p, _w: _name(row.model), lambda row: row.model, down=False, right=False, needs=130
    ),
    Column("in", 7, lambda row, _p, _w: _number(row.prompt), lambda row: row.prompt),
    Column("out", 11, _generated, lambda row: row.generated),
    Column("blocks", 6, lambda row, _p, _w: _number(row.held), lambda row: row.held),
    Column("waited", 6, _waited, lambda row: request_wait(row, 0.0)),
    Column("first", 6, lambda row, _p, _w: _seconds(row.first), lambda row: row.first, needs=100),
    Column("end", 7, _ends, lambda row: row.ends, down=False),
    Column(
        "endpoint",
        15,
        lambda row, _p, _w: _name(row.endpoint),
        lambda row: row.endpoint,
        down=False,
        right=False,
        needs=100,
    ),
)
