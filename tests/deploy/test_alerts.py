"""The alerts: each fires when it should and not before, by promtool; has its section; and names metrics that exist."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus import program
from tests.deploy.stack import ROOT

FILE = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
UP, AT = 'kvgate_endpoint_healthy{endpoint="a"}', '{endpoint="a"}'
DONE = 'kvgate_requests_total{model="m",outcome="completed"}'
COMPLETION = 'kvgate_tokens_total{model="m",kind="completion"}'
FELL = "0+6000x60 361000+1000x60"
"""Each minute's value: 100 a second for an hour, then a sixth of it."""

CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "KvgateGone": ({"up": "1x120"}, {"kvgate_build_info": "1x120"}),
    "KvgateEndpointDown": (
        {UP: "1x60 0x60"},
        {UP: "1x60 0x60", 'kvgate_endpoint_state{endpoint="a",state="asleep"}': "1x120"},
    ),
    "KvgateEndpointFlapping": ({UP: "1 0 1 0 1 0 " * 20}, {UP: "1x100 0 1x20"}),
    "KvgateEnginesFail": (
        {DONE: "0+90x120", 'kvgate_requests_total{model="m",outcome="upstream_error"}': "0+10x120"},
        {DONE: "0+999x120", 'kvgate_requests_total{model="m",outcome="upstream_error"}': "0+1x120"},
    ),
    "KvgateTtftOverTarget": (
        {
            'kvgate_ttft_seconds_bucket{le="5.0"}': "0+90x120",
            'kvgate_ttft_seconds_bucket{le="7.5"}': "0+100x120",
            'kvgate_ttft_seconds_bucket{le="+Inf"}': "0+100x120",
        },
        {
            'kvgate_ttft_seconds_bucket{le="5.0"}': "0+99x120",
            'kvgate_ttft_seconds_bucket{le="7.5"}': "0+100x120",
            'kvgate_ttft_seconds_bucket{le="+Inf"}': "0+100x120",
        },
    ),
    "KvgateGoodputFalling": (
        {COMPLETION: FELL, 'kvgate_queue_depth{model="m"}': "3x120"},
        {COMPLETION: FELL, 'kvgate_queue_depth{model="m"}': "0x120"},
    ),
    "KvgateGateClosed": ({f"kvgate_gate_open{AT}": "1x60 0x60"}, {f"kvgate_gate_open{AT}": "1 0 0 0 0 0 " * 20}),
    "KvgateForecastOverLimit": (
        {'kvgate_kv_usage{endpoint="a",source="forecast"}': "1.2x120"},
        {'kvgate_kv_usage{endpoint="a",source="forecast"}': "0.9x120"},
    ),
    "KvgateRefusals": (
        {DONE: "0+90x120", 'kvgate_requests_total{model="m",outcome="wait_too_long"}': "0+10x120"},
        {DONE: "0+90x120", 'kvgate_requests_total{model="m",outcome="client_closed"}': "0+10x120"},
    ),
    "KvgateCountDrift": (
        {'kvgate_prompt_token_drift_total{model="m"}': "0x100 3x20"},
        {'kvgate_prompt_token_drift_total{model="m"}': "3x120"},
    ),
    "KvgatePreemptions": (
        {f"kvgate_engine_preemptions_total{AT}": "0+5x120"},
        {f"kvgate_engine_preemptions_total{AT}": "0x115 2x5"},
    ),
    "KvgateScrapeStale": (
        {f"kvgate_scrape_age_seconds{AT}": "40x120", UP: "1x120"},
        {f"kvgate_scrape_age_seconds{AT}": "40x120", UP: "0x120"},
    ),
    "KvgateGpuMemoryHigh": (
        {'kvgate_gpu_memory_used_bytes{gpu="0"}': "86x120", 'kvgate_gpu_memory_bytes{gpu="0"}': "100x120"},
        {'kvgate_gpu_memory_used_bytes{gpu="0"}': "84x120", 'kvgate_gpu_memory_bytes{gpu="0"}': "100x120"},
    ),
    "KvgateDefect": (
        {'kvgate_requests_total{model="m",outcome="internal_error"}': "0x100 1x20"},
        {'kvgate_requests_total{model="m",outcome="internal_error"}': "1x120"},
    ),
}
"""Of each alert: series with which it fires after two hours, and series with which it does not."""


@pytest.mark.network
def test_each_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    assert {rule["alert"] for rule in RULES} == CASES.keys()
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values.strip()} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": "2h",
                    "exp_samples": [{"labels": "{}", "value": int(fires)}],
                }
            ],
        }
        for alert, cases in CASES.items()
        for fires, series in zip((True, False), cases, strict=True)
    ]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_each_has_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (page, anchor) == ("docs/runbook.md", rule["alert"].lower())
    _, found, rest = (ROOT / page).read_text().partition(f"\n## {rule['alert']}\n")
    assert found
    assert len(rest.partition("\n## ")[0].split()) > 10


def test_the_page_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]


def test_each_metric_is_one_that_operators_know() -> None:
    explained = set(re.findall(r"^\| `(kvgate_\w+)", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE))
    texts = [FILE.read_text(), (ROOT / "docs" / "runbook.md").read_text()]
    named = {re.sub(r"_bucket$", "", name) for text in texts for name in re.findall(r"\bkvgate_\w+", text)}
    assert named - explained == set()
