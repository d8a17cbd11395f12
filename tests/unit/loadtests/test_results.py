import math
from dataclasses import replace
from pathlib import Path

import msgspec

from loadtests.results import Document, Measured, Target, distributions, rows_of
from loadtests.scenario import Phase, Request, Rule, Scenario, Slo
from loadtests.summary import Judged
from tests.unit.loadtests.records import refused, whole

SCENARIO = Scenario("x", (Phase(10.0),), (Request(prompt=1, output=1),), verdict=(Rule("lost", most=0),))


def measured(target: str, load: float, number: int, only: str | None = None, **figures: float) -> Measured:
    judged = Judged.of([whole(0.0), refused(1.0)], Slo(), 10.0)
    found = {
        "in SLO": 1.0,
        "late": 0.0,
        "refused": 1.0,
        "lost": 0.0,
        "SLO requests/s": 0.1,
        "SLO tokens/s": 0.2,
        **figures,
    }
    return Measured(
        target, load, number, only, found, {}, judged.reasons, distributions(judged), [1], [1], [2.0], [0.0], {}
    )


def document(*runs: Measured) -> Document:
    names = dict.fromkeys(run.target for run in runs)
    targets = [Target(name, f"http://127.0.0.1:1/{name}", "random") for name in names]
    return Document("long-outputs", {"commit": "abc"}, SCENARIO, 3.0, targets, list(runs))


def test_medians_are_over_the_rounds_of_a_load_and_a_target():
    runs = [measured("a", 1.0, number, tokens=value) for number, value in enumerate((1.0, 5.0, 2.0))]
    runs += [measured("a", 2.0, 0, tokens=9.0), measured("b", 1.0, 0, tokens=7.0)]
    runs += [measured("a", 1.0, 0, "quiet", tokens=100.0)]
    found = document(*runs)
    assert found.loads == [1.0, 2.0]
    assert {target: figures["tokens"] for target, figures in found.medians(1.0).items()} == {"a": 2.0, "b": 7.0}


def test_the_verdict_is_on_the_greatest_load():
    found = document(measured("a", 1.0, 0), measured("a", 2.0, 0, lost=1.0), measured("b", 2.0, 0))
    assert found.passed == ["b"]
    assert not replace(found, scenario=msgspec.structs.replace(SCENARIO, verdict=())).verdicts


def test_everything_is_written(tmp_path: Path):
    file = tmp_path / "results.json"
    document(measured("a", 1.0, 0, recover=math.inf)).write(file)
    written = msgspec.json.decode(file.read_bytes())
    assert {"provenance", "scenario", "capacity", "targets", "medians", "verdicts", "runs"} <= set(written)
    assert written["targets"] == [{"name": "a", "url": "http://127.0.0.1:1/a", "model": "random", "metrics": []}]
    assert written["medians"]["1"]["a"]["in SLO"] == 1.0
    assert written["medians"]["1"]["a"]["recover"] is None
    assert written["runs"][0]["reasons"] == {"status 429 wait_too_long": 1}
    assert written["runs"][0]["distributions"]["TTFT"][0] == [0.1, 0.0]


def test_a_result_tells_where_a_target_is_and_not_how_to_get_in():
    shown = Target("a", "http://me:secret@host:1/x", "m", ("https://me:secret@host/metrics",)).public()
    assert shown == Target("a", "http://host:1/x", "m", ("https://host/metrics",))


def test_a_row_for_each_request_says_how_it_ended():
    first, second = rows_of(Judged.of([whole(0.0), refused(1.0, retry_after=7.0)], Slo(), 10.0))
    assert (first["outcome"], first["tokens"], first["loss"]) == ("in SLO", 2, None)
    assert (second["outcome"], second["code"], second["retry_after"]) == ("refused", "wait_too_long", 7.0)
    assert "gaps" not in first
