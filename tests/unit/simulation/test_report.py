import builtins
import json
from random import Random

import pytest
from rich.console import Console

from gateway.simulation import report
from gateway.simulation.compare import compare
from gateway.simulation.contenders import direct
from gateway.simulation.machine import Machine
from gateway.simulation.result import Slo
from gateway.simulation.workload import Request, at_rate, in_flows


@pytest.fixture(scope="module")
def rows():
    random = Random(5)  # noqa: S311 - the same load every time
    offered = tuple(Request(number, random.randint(50, 400), random.randint(10, 300)) for number in range(100))
    machine = Machine(kv_tokens=4000)
    return [row for rate in (2.0, 9.0) for row in compare(at_rate(offered, rate), machine, (direct(),), Slo(), rate)]


def test_a_table_has_a_row_for_each_and_nothing_is_cut(rows):
    console = Console(width=report.WIDTH, record=True, quiet=False)
    with console.capture() as capture:
        console.print(report.table(rows, "title"))
    text = capture.get()
    assert "title" in text
    assert text.count("oracle") >= 2
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_only_of_several_flows_a_table_says_how_fair_it_was(rows):
    several = compare(
        in_flows(tuple(job.request for job in rows[0].result.jobs), 3), Machine(kv_tokens=4000), (direct(),), Slo(), 2.0
    )
    console = Console(width=report.WIDTH)
    for compared, said in ((rows, False), (several, True)):
        with console.capture() as capture:
            console.print(report.table(compared, "title"))
        assert ("fair" in capture.get()) is said


def test_json_has_the_figures_and_what_they_are_of(rows, tmp_path):
    path = tmp_path / "figures.json"
    report.write_json(rows, {"trace": "t"}, path)
    read = json.loads(path.read_text())
    assert read["settings"] == {"trace": "t"}
    assert [row["contender"] for row in read["rows"]] == ["vllm", "oracle", "vllm", "oracle"]


@pytest.mark.parametrize("name", ["picture.png", "picture.svg"])
@pytest.mark.parametrize("loads", [1, 2])
def test_a_picture_is_drawn(rows, tmp_path, name, loads):
    report.plot(rows[: 2 * loads], tmp_path / name)
    assert (tmp_path / name).stat().st_size > 5000


def test_a_picture_of_another_kind_is_refused(rows, tmp_path):
    with pytest.raises(report.PlotError, match="xyz"):
        report.plot(rows, tmp_path / "picture.xyz")


def test_without_matplotlib_it_says_what_to_install(rows, tmp_path, monkeypatch):
    original = builtins.__import__

    def refuse(name, *arguments, **named):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(report.PlotError, match=r"pip install 'kvgate\[plots\]'"):
        report.plot(rows, tmp_path / "picture.png")
