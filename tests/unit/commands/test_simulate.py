import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gateway.cli import command_line


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    lines = [f"{number * 0.5},{100 + number % 7 * 50},{20 + number % 5 * 40}" for number in range(80)]
    path.write_text("\n".join(["arrival,prompt,output", *lines]))
    return path


def run(*arguments):
    return CliRunner().invoke(command_line(), ["simulate", *map(str, arguments)])


def test_a_trace_is_compared_at_each_load(trace, tmp_path):
    figures = tmp_path / "figures.json"
    result = run("--trace", trace, "--kv-tokens", 4000, "--load", 0.5, "--load", 1.5, "--json", figures)
    assert result.exit_code == 0, result.output
    assert "load 0.50" in result.output
    assert "load 1.50" in result.output
    rows = json.loads(figures.read_text())["rows"]
    assert sorted({row["load"] for row in rows}) == [pytest.approx(0.5), pytest.approx(1.5)]
    assert [row["contender"] for row in rows if row["load"] > 1][-3:] == ["kvgate forecast", "kvgate both", "oracle"]


def test_a_rate_and_what_changes_the_trace(trace, tmp_path):
    figures = tmp_path / "figures.json"
    change = ("--scale-prompts", 2, "--scale-outputs", 3, "--shared-prefix", 0.8, "--requests", 50)
    result = run("--trace", trace, "--kv-tokens", 8000, "--rate", 5, *change, "--json", figures)
    assert result.exit_code == 0, result.output
    assert "50 requests at 5.00/s" in result.output
    assert all(row["requests"] == 50 for row in json.loads(figures.read_text())["rows"])


def test_several_gateways_are_held_to_one_core(trace, tmp_path):
    figures = tmp_path / "figures.json"
    result = run(
        "--trace", trace, "--kv-tokens", 4000, "--gateways", 2, "--gateways", 4, "--flows", 3, "--json", figures
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(figures.read_text())["rows"]
    assert [row["contender"] for row in rows] == [
        "kvgate both",
        "kvgate both, 0.1 ms away",
        "kvgate both, 0.3 ms away",
        "2 with 1/2 each",
        "4 with 1/4 each",
        "oracle",
    ]
    assert "what the worst flow was served" in result.output
    assert all(0 < row["fairness"] <= 1 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", 1, "--load", 1), "give one"),
        (("--kv-tokens", 3), "no block"),
        (("--max-num-seqs", 4096), "max_num_batched_tokens"),
        (("--rate", 0), "more than 0"),
        (("--gateways", 1), "greater than or equal to 2"),
        (("--load", -1), "more than 0"),
        (("--step", "0.016 0.0001 0.00012 0"), "four numbers"),
        (("--step", "0.016,0.0001,0.00012"), "four numbers"),
        (("--step", "0.016,0.0001,-1,0"), "four numbers"),
        (("--step", "0,0,0,0"), "four numbers"),
    ],
)
def test_settings_that_make_no_sense_are_told(trace, arguments, said):
    result = run("--trace", trace, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_missing_trace_is_told(tmp_path):
    result = run("--trace", tmp_path / "none.csv")
    assert result.exit_code == 2
    assert "none.csv" in result.output


def test_other_commands_do_not_load_it():
    code = "import sys; from gateway.cli import command_line; command_line()"
    code += "; sys.exit('gateway.simulation.engine' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_step_is_given_as_the_help_shows_it(trace):
    shown = CliRunner().invoke(command_line(), ["simulate", "--help"], env={"COLUMNS": "200"}).output
    assert "0.016,0.0001,0.00012,0.00000013" in shown
    result = run("--trace", trace, "--kv-tokens", 4000, "--step", "0.016,0.0001,0.00012,0.00000013")
    assert result.exit_code == 0, result.output
