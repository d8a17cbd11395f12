from dataclasses import replace

from msgspec.structs import replace as replaced

from loadtests.facts import facts
from loadtests.scenario import Phase, Slo
from tests.unit.loadtests.test_results import SCENARIO, document, measured

TOLD = {
    "measured_at": "2026-11-22T03:17:35+02:00",
    "commit": "fd0cf54ce0da+",
    "cpu": "AMD EPYC",
    "cores": 2,
    "memory_gib": 23.5,
    "kernel": "6.18",
    "python": "3.11.7",
}


def test_the_day_is_told_in_utc_with_the_commit_and_the_machine():
    found = facts(replace(document(measured("kvgate", 2.0, 0)), provenance=TOLD))
    assert found["measured"] == "2026-11-22 01:17 UTC, commit fd0cf54ce0da with changes"
    assert found["machine"] == "AMD EPYC, 2 cores, 23.5 GiB, Linux 6.18, Python 3.11.7"


def test_what_was_not_told_is_missing():
    found = facts(replace(document(measured("kvgate", 2.0, 0)), provenance={"commit": None}))
    assert set(found) == {"load", "SLO"}


def test_rates_are_requests_per_second_in_every_phase():
    spike = replaced(SCENARIO, phases=(Phase(60, 0.7), Phase(30, 3.5)))
    found = facts(replace(document(measured("kvgate", 2.0, 0), measured("kvgate", 2.0, 1)), scenario=spike))
    assert found["load"] == (
        "4.2 requests/s for 60 s, then 21 requests/s for 30 s (load 2; 1 is 3 requests/s, 2 rounds)"
    )
    again = replace(document(measured("kvgate", 1.0, 0)), scenario=replaced(spike, seconds=300))
    assert "for 30 s, repeated until 300 s" in facts(again)["load"]
    short = replace(document(measured("kvgate", 1.0, 0)), scenario=replaced(spike, seconds=40))
    assert "2.1 requests/s for 40 s (load" in facts(short)["load"]


def test_clients_that_wait_have_no_rate():
    closed = replace(document(measured("kvgate", 1.0, 0)), scenario=replaced(SCENARIO, concurrency=64))
    assert facts(closed)["load"] == "64 clients that wait for their answers, for 10 s"


def test_the_slo_is_told_with_both_limits():
    strict = replace(document(measured("a", 1.0, 0)), scenario=replaced(SCENARIO, slo=Slo(ttft=2.5, gap=0.25)))
    assert facts(strict)["SLO"] == "first token within 2.5 s of the arrival, no gap over 0.25 s"
