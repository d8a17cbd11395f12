"""Figures -> pass or fail, with the reasons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from loadtests.figures import readable
from loadtests.scenario import Rule, ScenarioError

ENGINE_FIGURES = ("preemptions", "preemptions per request", "peak KV", "peak running", "peak waiting in engine")
"""What only an engine's metrics page tells."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule, applied."""

    figure: str
    limit: str
    measured: float | None
    """None: nothing told."""
    passed: bool | None
    """None: not measured, and so no reason to fail."""

    @property
    def word(self) -> str:
        """For the reader."""
        if self.passed is None:
            return "not measured: give --metrics"
        return "pass" if self.passed else "FAIL"


def judge(rules: Iterable[Rule], figures: Mapping[str, float]) -> list[Finding]:
    """Hold figures to rules. A figure that came out as no number fails: nothing was there to measure it on.

    Raises:
        ScenarioError: a rule is about a figure that no run has.
    """
    return [_finding(rule, figures) for rule in rules]


def passed(findings: Iterable[Finding]) -> bool:
    """No rule is broken."""
    return all(finding.passed is not False for finding in findings)


def print_verdict(target: str, findings: Iterable[Finding]) -> None:
    """Print the rules, and what came of each."""
    found = list(findings)
    word = "pass" if passed(found) else "FAIL"
    table = Table(title=f"verdict on {target}: {word}", title_justify="left")
    for column in ("", "limit", "measured", ""):
        table.add_column(column)
    for finding in found:
        table.add_row(finding.figure, finding.limit, _shown(finding), finding.word)
    Console(width=120).print(table)


def _shown(finding: Finding) -> str:
    return "-" if finding.measured is None else readable(finding.measured)


def _finding(rule: Rule, figures: Mapping[str, float]) -> Finding:
    bound = rule.most if rule.most is not None else rule.least
    assert bound is not None
    limit = f"at {'most' if rule.most is not None else 'least'} {readable(bound)}"
    measured = figures.get(rule.figure)
    if measured is None:
        if rule.figure not in ENGINE_FIGURES:
            raise ScenarioError(f"`verdict` has {rule.figure!r}; the figures of this run are {', '.join(figures)}")
        return Finding(rule.figure, limit, None, None)
    return Finding(rule.figure, limit, measured, measured <= bound if rule.most is not None else measured >= bound)
