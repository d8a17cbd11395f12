"""The HTML page of a measurement, which loads nothing: its tables, and charts of what tables hide."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from loadtests.facts import facts
from loadtests.figures import readable, rows
from loadtests.palette import BACKGROUNDS, colours
from loadtests.results import Document, Measured
from loadtests.summary import Outcome
from loadtests.svg import Limit, Points, bar_chart, line_chart, swatch

STRENGTHS = {Outcome.IN_SLO: 1.0, Outcome.LATE: 0.5, Outcome.REFUSED: 0.15, Outcome.LOST: 0.0}
"""Strength of the target's colour for each outcome. Only targets have colours of their own."""
SMOOTHING = 5
"""Seconds over which goodput over time is averaged."""

DAY, NIGHT = BACKGROUNDS
STYLE = f"""
:root {{ color-scheme: light dark; --back: {DAY}; --text: #1b1f24; --faint: #57606a; --line: #d8dee4; }}
@media (prefers-color-scheme: dark) {{
:root {{ --back: {NIGHT}; --text: #e6edf3; --faint: #9ba6b2; --line: #30363d; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem;
  background: var(--back); color: var(--text); }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); gap: 1rem; }}
figure {{ margin: 0; max-width: 580px; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }}
figcaption {{ font-size: 13px; }} figcaption > b {{ display: block; }}
.subject {{ white-space: nowrap; margin-right: .5rem; }}
figure > svg {{ display: block; width: 100%; }}
.swatch {{ width: .8em; height: .8em; margin-right: .3em; vertical-align: -.05em; }}
th .subject, h2 .subject {{ margin-right: 0; }}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--faint); }} svg .grid {{ stroke: var(--line); }}
svg .limit {{ stroke: var(--text); stroke-dasharray: 4 3; }}
table {{ border-collapse: collapse; margin: .5rem 0 1rem; }}
th, td {{ padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); text-align: right; }}
th:first-child, td:first-child, .facts td, .facts th {{ text-align: left; vertical-align: top; }}
.facts td {{ overflow-wrap: anywhere; }} .FAIL {{ font-weight: 700; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .7rem;
  border-radius: 6px; font-size: 12px; }}
.scroll {{ overflow-x: auto; }}
"""


def render(document: Document) -> str:
    """The page."""
    palette = colours(target.name for target in document.targets)
    parts = [
        f"<h1>{escape(document.name)}</h1><p>{escape(document.scenario.description)}</p>",
        _facts(document, palette),
        _verdict(document, palette),
        f'<div class="charts">{"".join(_overview(document, palette))}</div>',
    ]
    for load in document.loads:
        columns = document.medians(load)
        runs = [run for run in document.runs if run.load == load and run.round == 0 and run.only is None]
        parts += [
            f"<h2>{escape(_load_title(document, load))}</h2>",
            f'<div class="charts">{"".join(_charts(document, runs, palette))}</div>',
            _table(columns, "median of the rounds", palette),
            *(_table(run.flows, f"flows, {_subject(run, palette)}", {}) for run in runs if len(run.flows) > 1),
            *(_reasons(run, palette) for run in runs if run.reasons),
        ]
    parts.append(f"<h2>where this comes from</h2><pre>{escape(document.origin)}</pre>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(document.name)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _facts(document: Document, palette: Mapping[str, str]) -> str:
    told = [(escape(name), escape(text)) for name, text in facts(document).items()]
    loaded = [
        (swatch(target.name, palette[target.name]), f"{escape(target.url)}, model {escape(target.model)}")
        for target in document.targets
    ]
    lines = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in (*loaded, *told))
    return f'<table class="facts">{lines}</table>'


def _load_title(document: Document, load: float) -> str:
    if document.scenario.concurrency is not None:
        return f"{document.scenario.concurrency} clients that wait for their answers"
    return f"load {load:g} of {readable(document.capacity)} requests per second"


def _overview(document: Document, palette: Mapping[str, str]) -> Iterable[str]:
    bars: dict[str, dict[str, float]] = {}
    shades: dict[str, str] = {}
    for load in document.loads:
        for target, measured in document.medians(load).items():
            name = target if len(document.loads) == 1 else f"{target}, load {load:g}"
            bars[name] = {str(outcome): measured[outcome] for outcome in Outcome}
            shades[name] = palette[target]
    yield bar_chart("Outcomes of requests", bars, shades, {str(outcome): much for outcome, much in STRENGTHS.items()})
    if len(document.loads) > 1:
        for figure in ("SLO requests/s", "SLO tokens/s"):
            lines = {
                target.name: [(load, document.medians(load)[target.name][figure]) for load in document.loads]
                for target in document.targets
            }
            yield line_chart(f"Goodput: {figure}", lines, palette, "offered load, 1 is capacity", figure, marks=True)


def _charts(document: Document, runs: Sequence[Measured], palette: Mapping[str, str]) -> Iterable[str]:
    slo = document.scenario.slo
    for title, name, most in (
        ("Time to first token", "TTFT", slo.ttft),
        ("Gaps between tokens", "ITL", slo.gap),
        ("Worst gap of each answer", "worst gap", slo.gap),
    ):
        lines: dict[str, Points] = {run.target: run.distributions[name] for run in runs}
        limit, share = Limit(most, f"SLO {most:g} s"), "share of whole answers below"
        yield line_chart(title, lines, palette, "seconds", share, log_x=True, limit=limit)
    goodput = {run.target: _smoothed(run.served_by_second) for run in runs}
    yield line_chart("Goodput over time", goodput, palette, "second of arrival", "requests/s in SLO")
    tokens = {run.target: _smoothed(run.tokens_by_second) for run in runs}
    yield line_chart("Tokens over time", tokens, palette, "seconds", "output tokens/s")
    names = dict.fromkeys(name for run in runs for name in run.series)
    for name in names:
        lines = {run.target: list(zip(run.times, run.series[name], strict=True)) for run in runs if name in run.series}
        yield line_chart(_series_title(name), lines, palette, "seconds", "share" if name == "KV" else name)


def _series_title(name: str) -> str:
    return "KV cache in use" if name == "KV" else f"{name[0].upper()}{name[1:]} over time"


def _smoothed(values: Sequence[float]) -> Points:
    ahead = range(max(1, len(values) - SMOOTHING + 1)) if values else range(0)
    return [(at + SMOOTHING / 2, sum(values[at : at + SMOOTHING]) / len(values[at : at + SMOOTHING])) for at in ahead]


def _verdict(document: Document, palette: Mapping[str, str]) -> str:
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
            f'<h2>Verdict on {swatch(target, palette[target])}: <span class="{word}">{word}</span></h2>'
            f"<table>{head}{''.join(lines)}</table>"
        )
    return "".join(parts)


def _table(columns: Mapping[str, Mapping[str, float]], title: str, palette: Mapping[str, str]) -> str:
    head = "".join(f"<th>{swatch(name, palette[name]) if name in palette else escape(name)}</th>" for name in columns)
    lines = [
        f"<tr><td>{escape(row)}</td>{''.join(f'<td>{_shown(c.get(row))}</td>' for c in columns.values())}</tr>"
        for row in rows(columns)
    ]
    return f'<div class="scroll"><table><tr><th>{title}</th>{head}</tr>{"".join(lines)}</table></div>'


def _reasons(run: Measured, palette: Mapping[str, str]) -> str:
    lines = "".join(f"<tr><td>{escape(why)}</td><td>{count:,}</td></tr>" for why, count in run.reasons.items())
    return f"<table><tr><th>refused or lost, {_subject(run, palette)}</th><th></th></tr>{lines}</table>"


def _subject(run: Measured, palette: Mapping[str, str]) -> str:
    return swatch(run.target, palette[run.target])


def _shown(value: Any) -> str:
    return "-" if value is None else readable(value)
