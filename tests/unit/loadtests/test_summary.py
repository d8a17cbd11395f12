import math

import pytest

from loadtests.arrivals import Segment
from loadtests.scenario import Slo
from loadtests.summary import (
    Judged,
    Outcome,
    beside,
    client_figures,
    distribution,
    figures,
    flow_figures,
    outcome,
    recovery,
    series_figures,
)
from tests.unit.loadtests.records import lost, refused, whole

SLO = Slo(ttft=5.0, gap=0.5)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (whole(), Outcome.IN_SLO),
        (whole(ttft=5.0, gaps=(0.5,)), Outcome.IN_SLO),
        (whole(ttft=5.01), Outcome.LATE),
        (whole(gaps=(0.1, 0.6)), Outcome.LATE),
        (refused(), Outcome.REFUSED),
        (lost(), Outcome.LOST),
    ],
)
def test_a_request_is_served_late_refused_or_lost(record, expected):
    assert outcome(record, SLO) is expected


def test_the_figures_of_a_run_are_the_clients():
    records = [whole(0.0), whole(1.0, ttft=6.0), refused(2.0), lost(3.0)]
    found = figures(Judged.of(records, SLO, 10.0))
    assert [found[name] for name in ("offered", "in SLO", "late", "refused", "lost")] == [4, 1, 1, 1, 1]
    assert (found["share in SLO"], found["share refused"]) == (0.25, 0.25)
    assert (found["SLO requests/s"], found["SLO tokens/s"], found["output tokens/s"]) == (0.1, 0.2, 0.6)
    assert found["TTFT p50 s"] == pytest.approx((0.1 + 6.0) / 2)
    assert found["worst gap p99 s"] == pytest.approx(0.1)
    assert found["Retry-After p50 s"] == 2.0
    assert found["seconds to the end"] == pytest.approx(7.1)


def test_tokens_that_come_after_the_arrivals_do_not_count_as_throughput():
    judged = Judged.of([whole(0.0, gaps=(0.5, 0.5, 20.0))], SLO, 2.0)
    assert judged.by_second == {"a": [2.0, 1.0]}


def test_an_event_of_several_tokens_counts_them_all():
    record = whole(0.0)
    record.tokens = 10
    assert sum(Judged.of([record], SLO, 1.0).by_second["a"]) == 10


def test_why_requests_failed_is_counted():
    judged = Judged.of([refused(), refused(), lost()], SLO, 1.0)
    assert judged.reasons == {"status 429 wait_too_long": 2, "connection closed": 1}


def test_flows_are_measured_each_on_its_own():
    records = [whole(0.0, flow="a", gaps=(0.1,) * 5), whole(0.0, flow="b", ttft=1.0), refused(0.5, flow="b")]
    table = flow_figures(Judged.of(records, SLO, 10.0))
    assert table["a"]["TTFT p99 s"] == pytest.approx(0.1)
    assert (table["b"]["offered"], table["b"]["refused"], table["b"]["TTFT p50 s"]) == (2, 1, 1.0)
    assert table["a"]["share of output tokens"] == 6 / 8
    assert table["a"]["share of service"] == (10 + 2 * 6) / (10 + 2 * 6 + 10 + 2 * 2)


def test_the_client_says_what_it_costs_and_whether_it_kept_up():
    record = whole()
    record.sent = 0.03
    found = client_figures([record], [0.02, 0.04])
    assert found["client us per event"] == pytest.approx(30_000)
    assert found["client busiest process"] == pytest.approx(0.2)
    assert found["client late p99 s"] == 0.03


def test_what_no_page_told_is_missing_and_holes_are_passed_over():
    found = series_figures({"KV": [0.5, math.nan, 0.75], "preemptions": [0.0, 4.0, math.nan]}, 8)
    assert found == {"peak KV": 0.75, "preemptions": 4.0, "preemptions per request": 0.5}


TIMELINE = (Segment(0, 10, 1, False), Segment(10, 15, 5, True), Segment(15, 40, 1, False))


def spiked(*, back_at: float, usual: float = 0.1) -> Judged:
    slow = {at for at in range(40) if 10 <= at < back_at}
    records = [whole(float(at), ttft=9.0 if at in slow else usual) for at in range(40)]
    return Judged.of(records, SLO, 40.0)


@pytest.mark.parametrize(("back_at", "seconds"), [(12, 0), (15, 0), (16, 1), (22, 7), (39, math.inf)])
def test_recovery_is_counted_from_the_end_of_the_spike(back_at, seconds):
    assert recovery(spiked(back_at=back_at), TIMELINE) == seconds


def test_one_good_second_is_no_recovery():
    judged = spiked(back_at=30)
    judged.records[17].first = judged.records[17].arrived
    assert recovery(Judged.of(judged.records, SLO, 40.0), TIMELINE) == 15


def test_a_goodput_that_never_was_does_not_come_back():
    assert recovery(spiked(back_at=15, usual=9.0), TIMELINE) == math.inf


def test_a_distribution_rises_from_the_least_to_the_greatest():
    points = distribution([3.0, 1.0, 2.0])
    assert (points[0], points[-1]) == ((1.0, 0.0), (3.0, 1.0))
    assert points == sorted(points)
    assert distribution([]) == []


def test_a_flow_among_others_is_held_against_itself_alone():
    found = beside("quiet", {"quiet": {"TTFT p99 s": 3.0}}, {"quiet": {"TTFT p99 s": 2.0}})
    assert found["quiet: TTFT p99 to alone"] == 1.5
