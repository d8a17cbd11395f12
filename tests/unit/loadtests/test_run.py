"""The whole of it, small, against the fake vLLM."""

from pathlib import Path

import msgspec
import pytest

from loadtests.run import main, parse
from loadtests.scenario import ScenarioError
from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind

SCENARIO = """
description: Small.
seconds: 1
phases: [{seconds: 1}]
requests: [{prompt: [5, 10], output: [3, 6]}]
flows: [{name: quiet}, {name: noisy, share: 3}]
alone: quiet
verdict: [{figure: lost, most: 0}]
"""
TARGET = ("--target", "kvgate=http://127.0.0.1:1")


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO)
    return str(file)


@pytest.mark.slow
async def test_two_targets_are_measured_in_turn_and_everything_is_written(scenario, tmp_path, capsys):
    out, html = tmp_path / "out.json", tmp_path / "page.html"
    async with FakeVllm() as direct, FakeVllm() as gated:
        told = ["--target", f"direct={direct.url}", "--target", f"kvgate={gated.url}", "--capacity", "20"]
        kept = ["--out", str(out), "--html", str(html), "--requests", "--workers", "2"]
        assert await main([scenario, *told, *kept])
    written = msgspec.json.decode(out.read_bytes())
    assert [(run["target"], run["only"]) for run in written["runs"]] == [
        ("direct", "quiet"),
        ("direct", None),
        ("kvgate", "quiet"),
        ("kvgate", None),
    ]
    assert [target["url"] for target in written["targets"]] == [direct.url, gated.url]
    both, alone = written["runs"][1], written["runs"][0]
    assert both["figures"]["offered"] == both["figures"]["in SLO"] == len(both["requests"]) > 5
    assert {row["flow"] for row in both["requests"]} == {"quiet", "noisy"}
    assert len(alone["requests"]) == both["flows"]["quiet"]["offered"]
    assert {"KV", "running", "waiting in engine", "preemptions"} <= set(both["series"])
    assert both["figures"]["quiet: TTFT p99 to alone"] > 0
    assert {row["flow"] for row in written["runs"][3]["requests"]} == {"quiet", "noisy"}
    assert [row["prompt"] for row in written["runs"][3]["requests"]] == [row["prompt"] for row in both["requests"]]
    assert "Time to first token" in html.read_text()
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("direct", "kvgate", "TTFT p99", "flows, kvgate", "verdict on kvgate: pass"))


@pytest.mark.slow
@pytest.mark.parametrize("last", ["good", "bad"])
async def test_the_last_target_decides_the_verdict(scenario, last):
    faults = [Fault(FaultKind.RESET_MID_STREAM, after=1)] * 3
    async with FakeVllm() as good, FakeVllm(faults=faults) as bad:
        named = {"good": good.url, "bad": bad.url}
        order = sorted(named, key=lambda name: name == last)
        targets = [word for name in order for word in ("--target", f"{name}={named[name]}")]
        assert await main([scenario, *targets, "--capacity", "10"]) is (last == "good")


@pytest.mark.slow
async def test_the_peak_test_gives_a_verdict(capsys):
    async with FakeVllm(FakeSettings(step_seconds=0.001)) as fake:
        peak = ["--peak-prompt", "300", "--peak-output", "20", "--peak-concurrency", "3", "--seconds", "1"]
        assert await main(["peak", "--target", f"kvgate={fake.url}", *peak])
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("3 clients", "verdict on kvgate: pass", "preemptions", "share refused"))


@pytest.mark.slow
async def test_capacity_is_measured_where_it_is_not_given(scenario, capsys):
    async with FakeVllm(FakeSettings(max_num_seqs=4, step_seconds=0.01)) as fake:
        await main([scenario, "--target", f"a={fake.url}", "--calibrate", "1", "--seconds", "1"])
    shown = capsys.readouterr().out
    found = float(shown.split("capacity of a: ")[1].split()[0])
    assert 20 < found < 4 * 100 / 4.5 * 1.3


def test_the_command_line_changes_the_scenario():
    given, scenario, options = parse(
        ["long-outputs", *TARGET, "--load", "0.5,2", "--minutes", "1", "--prompt-scale", "2"]
    )
    assert given.target == [("kvgate", "http://127.0.0.1:1")]
    assert (scenario.duration, scenario.requests[0].prompt, options.loads) == (60, (200, 400), (0.5, 2.0))


def test_a_peak_has_one_load():
    _, scenario, options = parse(["peak", *TARGET, "--peak-concurrency", "64", "--peak-prompt", "8000"])
    assert (scenario.concurrency, scenario.requests[0].prompt, options.loads) == (64, 8000, (1.0,))


def test_keys_come_from_a_file(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("quiet: abc\n'*': def\n")
    _, _, options = parse(["noisy-neighbour", *TARGET, "--keys", str(file)])
    assert options.keys == {"quiet": "abc", "*": "def"}


@pytest.mark.parametrize("target", ["http://127.0.0.1:1", "kvgate=127.0.0.1"])
def test_a_target_has_a_name_and_a_url(target, capsys):
    with pytest.raises(SystemExit):
        parse(["peak", "--target", target])
    assert "NAME=URL" in capsys.readouterr().err


def test_a_scenario_that_is_none_is_told():
    with pytest.raises(ScenarioError, match="peek"):
        parse(["peek", *TARGET])
