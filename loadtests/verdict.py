"""The verdict on a run's figures: pass or fail, with the reasons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from loadtests.figures import readable
from loadtests.scenario import Rule, Scenario, ScenarioError
from loadtests.series import COUNTERS, GAUGES
from loadtests.summary import Judged, beside, client_figures, figures

OF_SOME_RUNS = (
    *(f"peak {name}" for name in GAUGES if name not in COUNTERS),
    *("preemptions", "preemptions per request", "seconds to recover"),
)
"""Figures that need a metrics page, or a run with a spike."""
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule, applied."""

    figure: str
    limit: str
    measured: float | None
    """None if not reported."""
    passed: bool | None
    """None if not measured, which is no reason to fail."""

    @property
    def word(self) -> str:
        """The verdict in a word, for the reader."""
        if self.passed is None:
            return NOT_MEASURED
        return "pass" if self.passed else "FAIL"


def check(scenario: Scenario) -> None:
    """Check before the measurement that a verdict is possible.

    Raises:
        ScenarioError: a rule needs a figure that no run has.
    """
    nothing = Judged.of([], scenario.slo, scenario.duration)
    known = [*figures(nothing), *client_figures([], [0.0]), *OF_SOME_RUNS]
    if scenario.alone is not None:
        known += beside(scenario.alone, {}, {})
    for rule in scenario.verdict:
        if rule.figure not in known:
            raise ScenarioError(f"`verdict` has {rule.figure!r}; the figures of this scenario are {', '.join(known)}")


def judge(rules: Iterable[Rule], measured: Mapping[str, float]) -> list[Finding]:
    """Apply rules to figures. A NaN fails, since there was nothing to measure."""
    return [_finding(rule, measured) for rule in rules]


def passed(findings: Iterable[Finding]) -> bool:
    """Whether no rule is broken."""
    return all(finding.passed is not False for finding in findings)


def print_verdict(target: str, findings: Iterable[Finding]) -> None:
    """Print the rules and their results."""
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


def _finding(rule: Rule, told: Mapping[str, float]) -> Finding:
    bound = rule.most if rule.most is not None else rule.least
    assert bound is not None
    limit = f"at {'most' if rule.most is not None else 'least'} {readable(bound)}"
    measured = told.get(rule.figure)
    if measured is None:
        return Finding(rule.figure, limit, None, None)
    return Finding(rule.figure, limit, measured, measured <= bound if rule.most is not None else measured >= bound)
