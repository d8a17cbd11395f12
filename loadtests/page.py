"""A measurement as one HTML page that loads nothing: its tables, and what the tables hide."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from loadtests.figures import readable, rows
from loadtests.results import Document, Measured
from loadtests.summary import Outcome
from loadtests.svg import Points, bar_chart, line_chart

OUTCOME_COLOURS = {
    Outcome.IN_SLO: "#009e73",
    Outcome.LATE: "#e69f00",
    Outcome.REFUSED: "#9aa5b1",
    Outcome.LOST: "#b3261e",
}
SMOOTHING = 5
"""Seconds over which goodput over time is averaged."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1rem; }
svg { width: 100%; background: #fff; border: 1px solid #d8dee4; border-radius: 6px; }
svg text { font: 11px system-ui, sans-serif; fill: #444c56; } svg .title { font-size: 13px; font-weight: 600; }
svg .grid { stroke: #eaeef2; } table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #eaeef2; text-align: right; }
th:first-child, td:first-child { text-align: left; } .FAIL { color: #b3261e; } .pass { color: #007a55; }
pre { white-space: pre-wrap; background: #f6f8fa; padding: .7rem; border-radius: 6px; font-size: 12px; }
.scroll { overflow-x: auto; }
"""


def render(document: Document) -> str:
    """The page."""
    parts = [
        f"<h1>{escape(document.name)}</h1><p>{escape(document.scenario.description)}</p>",
        _verdict(document),
        f'<div class="charts">{"".join(_overview(document))}</div>',
    ]
    for load in document.loads:
        columns = document.medians(load)
        runs = [run for run in document.runs if run.load == load and run.round == 0 and run.only is None]
        parts += [
            f"<h2>{escape(_load_title(document, load))}</h2>",
            f'<div class="charts">{"".join(_charts(runs))}</div>',
            _table(columns, "median of the rounds"),
            *(_table(run.flows, f"flows, {run.target}") for run in runs if len(run.flows) > 1),
            *(_reasons(run) for run in runs if run.reasons),
        ]
    parts.append(f"<h2>where this comes from</h2><pre>{escape(document.origin)}</pre>")
    head = f'<meta charset="utf-8"><title>{escape(document.name)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _load_title(document: Document, load: float) -> str:
    if document.scenario.concurrency is not None:
        return f"{document.scenario.concurrency} clients that wait for their answers"
    return f"load {load:g} of {readable(document.capacity)} requests per second"


def _overview(document: Document) -> Iterable[str]:
    bars: dict[str, dict[str, float]] = {}
    for load in document.loads:
        for target, measured in document.medians(load).items():
            name = target if len(document.loads) == 1 else f"{target}, load {load:g}"
            bars[name] = {str(outcome): measured[outcome] for outcome in Outcome}
    yield bar_chart("Outcomes of requests", bars, {str(name): colour for name, colour in OUTCOME_COLOURS.items()})
    if len(document.loads) > 1:
        for figure in ("SLO requests/s", "SLO tokens/s"):
            lines = {
                target: [(load, document.medians(load)[target][figure]) for load in document.loads]
                for target in document.targets
            }
            yield line_chart(f"Goodput: {figure}", lines, "offered load, 1 is capacity", figure, marks=True)


def _charts(runs: Sequence[Measured]) -> Iterable[str]:
    for title, name in (
        ("Time to first token", "TTFT"),
        ("Gaps between tokens", "ITL"),
        ("Worst gap of each answer", "worst gap"),
    ):
        lines: dict[str, Points] = {run.target: run.distributions[name] for run in runs}
        yield line_chart(title, lines, "seconds", "share of whole answers below", log_x=True)
    goodput = {run.target: _smoothed(run.served_by_second) for run in runs}
    yield line_chart("Goodput over time", goodput, "second of arrival", "requests/s in SLO")
    tokens = {run.target: _smoothed(run.tokens_by_second) for run in runs}
    yield line_chart("Tokens over time", tokens, "seconds", "output tokens/s")
    names = dict.fromkeys(name for run in runs for name in run.series)
    for name in names:
        lines = {run.target: list(zip(run.times, run.series[name], strict=True)) for run in runs if name in run.series}
        yield line_chart(_series_title(name), lines, "seconds", "share" if name == "KV" else name)


def _series_title(name: str) -> str:
    return "KV cache in use" if name == "KV" else f"{name[0].upper()}{name[1:]} over time"


def _smoothed(values: Sequence[float]) -> Points:
    ahead = range(max(1, len(values) - SMOOTHING + 1))
    return [(at + SMOOTHING / 2, sum(values[at : at + SMOOTHING]) / len(values[at : at + SMOOTHING])) for at in ahead]


def _verdict(document: Document) -> str:
    parts = []
    for target, findings in document.verdicts.items():
        word = "pass" if target in document.passed else "FAIL"
        lines = [
            f"<tr><td>{escape(f.figure)}</td><td>{f.limit}</td><td>{_shown(f.measured)}</td>"
            f'<td class="{escape(f.word)}">{escape(f.word)}</td></tr>'
            for f in findings
        ]
        head = "<tr><th></th><th>limit</th><th>measured</th><th></th></tr>"
        parts.append(
            f'<h2>Verdict on {escape(target)}: <span class="{word}">{word}</span></h2>'
            f"<table>{head}{''.join(lines)}</table>"
        )
    return "".join(parts)


def _table(columns: Mapping[str, Mapping[str, float]], title: str) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = [
        f"<tr><td>{escape(row)}</td>{''.join(f'<td>{_shown(c.get(row))}</td>' for c in columns.values())}</tr>"
        for row in rows(columns)
    ]
    return f'<div class="scroll"><table><tr><th>{escape(title)}</th>{head}</tr>{"".join(lines)}</table></div>'


def _reasons(run: Measured) -> str:
    lines = "".join(f"<tr><td>{escape(why)}</td><td>{count:,}</td></tr>" for why, count in run.reasons.items())
    return f"<table><tr><th>refused or lost, {escape(run.target)}</th><th></th></tr>{lines}</table>"


def _shown(value: Any) -> str:
    return "-" if value is None else readable(value)
