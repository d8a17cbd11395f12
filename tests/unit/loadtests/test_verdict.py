import math

import pytest
from msgspec.structs import replace

from loadtests.scenario import Rule, ScenarioError, load, names
from loadtests.verdict import check, judge, passed, print_verdict


@pytest.mark.parametrize(
    ("rule", "value", "good"),
    [
        (Rule("lost", most=0), 0, True),
        (Rule("lost", most=0), 1, False),
        (Rule("share in SLO", least=0.4), 0.4, True),
        (Rule("share in SLO", least=0.4), 0.39, False),
        (Rule("TTFT p99 s", most=5), math.nan, False),
        (Rule("seconds to recover", most=10), math.inf, False),
    ],
)
def test_a_rule_holds_a_figure_to_its_limit(rule, value, good):
    (finding,) = judge([rule], {rule.figure: value})
    assert finding.passed is good
    assert passed([finding]) is good


def test_what_no_page_told_is_said_and_is_no_reason_to_fail():
    (finding,) = judge([Rule("preemptions", most=0)], {"lost": 0})
    assert finding.word == "not measured"
    assert passed([finding])


def test_a_rule_about_no_figure_is_a_mistake_that_is_told_before_anything_is_measured():
    with pytest.raises(ScenarioError, match="'losst'"):
        check(replace(load("peak"), verdict=(Rule("losst", most=0),)))


@pytest.mark.parametrize("name", names())
def test_every_scenario_can_be_judged(name):
    check(load(name))


def test_one_broken_rule_fails_them_all(capsys):
    findings = judge([Rule("lost", most=0), Rule("refused", most=5)], {"lost": 0, "refused": 6})
    assert not passed(findings)
    print_verdict("kvgate", findings)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("kvgate: FAIL", "refused", "at most 5", "6", "pass"))


def test_the_peak_test_asks_for_what_an_operator_fears():
    assert {rule.figure for rule in load("peak").verdict} == {
        "lost",
        "share refused",
        "preemptions",
        "TTFT p99 s",
        "worst gap p99 s",
    }
