import pytest

from gateway.admission.events import RequestId
from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.progress import PREFILL_TIMES, Progress

A, B, C = RequestId(1), RequestId(2), RequestId(3)
HUNG_AFTER = 30.0
COUNTING = EngineMetrics(kv_usage=0.5, generation_tokens=100.0, prompt_tokens=50.0)


@pytest.fixture
def work():
    return Progress(HUNG_AFTER)


def test_an_idle_engine_never_stalls(work):
    assert work.stalled(1e9) is None


def test_work_without_progress_stalls(work):
    work.dispatched(A, 10, 0.0)
    assert work.stalled(29.9) is None
    assert work.stalled(30.0) == "no progress for 30 s with 1 requests in flight"


def test_a_token_of_any_request_is_progress(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 20.0)
    work.progressed([A], 29.0)
    assert work.stalled(58.9) is None
    assert work.stalled(59.0) is not None


def test_another_dispatch_is_no_progress(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 29.0)
    assert work.stalled(30.0) is not None


def test_time_without_work_does_not_count(work):
    work.dispatched(A, 10, 0.0)
    work.finished(A, 5.0)
    work.dispatched(B, 10, 1000.0)
    assert work.stalled(1020.0) is None


def test_clients_that_give_up_one_after_another_do_not_hide_a_hang(work):
    for number in range(4):
        work.dispatched(RequestId(number), 10, number * 10.0)
        work.finished(RequestId(number), number * 10.0 + 9.0)
    work.dispatched(A, 10, 40.0)
    assert work.stalled(41.0) is not None


@pytest.mark.parametrize(
    "later",
    [
        EngineMetrics(kv_usage=0.5, generation_tokens=101.0, prompt_tokens=50.0),
        EngineMetrics(kv_usage=0.5, generation_tokens=100.0, prompt_tokens=51.0),
        EngineMetrics(kv_usage=0.6, generation_tokens=100.0, prompt_tokens=50.0),
        EngineMetrics(kv_usage=0.5, generation_tokens=0.0, prompt_tokens=0.0),
    ],
    ids=["generated", "prefilled", "fills its cache", "restarted"],
)
def test_a_step_that_shows_in_the_metrics_is_progress(work, later):
    work.dispatched(A, 10, 0.0)
    assert not work.scraped(COUNTING, 0.0)
    assert work.scraped(later, 25.0)
    assert work.stalled(54.9) is None


@pytest.mark.parametrize(
    "later",
    [
        COUNTING,
        EngineMetrics(kv_usage=0.0, running=0, waiting=0, generation_tokens=100.0, prompt_tokens=50.0),
        EngineMetrics(),
    ],
    ids=["frozen", "lets go of what was aborted", "says nothing"],
)
def test_what_a_paused_engine_shows_is_no_progress(work, later):
    work.dispatched(A, 10, 0.0)
    work.scraped(COUNTING, 0.0)
    assert not work.scraped(later, 29.0)
    assert work.stalled(30.0) is not None


def test_a_long_prompt_may_take_several_times_what_its_prefill_should(work):
    for number in range(60):  # measured: 1000 tokens/s
        work.dispatched(RequestId(number), 1000, number * 2.0)
        work.progressed([RequestId(number)], number * 2.0 + 1.0)
        work.finished(RequestId(number), number * 2.0 + 1.0)
    assert work.prefill_rate == pytest.approx(1000, rel=0.01)
    work.dispatched(A, 50_000, 200.0)
    assert work.stalled(200.0 + PREFILL_TIMES * 49) is None
    assert work.stalled(200.0 + PREFILL_TIMES * 51) is not None


def test_a_prompt_that_was_prefilled_earns_no_more_patience(work):
    work.dispatched(A, 100_000, 0.0)
    work.progressed([A], 100.0)
    assert work.stalled(129.0) is None
    assert work.stalled(130.0) is not None


def test_before_anything_was_measured_a_slow_engine_is_assumed(work):
    work.dispatched(A, 10_000, 0.0)
    assert work.stalled(199.0) is None
    assert work.stalled(201.0) is not None


def test_a_request_that_does_not_stream_shows_progress_only_in_metrics(work):
    work.dispatched(A, 10, 0.0, streams=False)
    assert work.stalled(100.0) is None
    work.scraped(COUNTING, 100.0)
    assert work.stalled(100.0) is not None
    assert work.stalled(100.0 + HUNG_AFTER) is None, "a scrape that old proves nothing"


def test_answers_that_do_not_stream_say_nothing_of_the_prefill_rate(work):
    before = work.prefill_rate
    work.dispatched(A, 10, 0.0, streams=False)
    work.progressed([A], 60.0)
    assert work.prefill_rate == before


def test_a_new_beginning_counts_from_now(work):
    work.dispatched(A, 10, 0.0)
    work.restart(100.0)
    assert work.stalled(129.0) is None


def test_requests_that_nobody_knows_are_ignored(work):
    work.progressed([C], 1.0)
    work.finished(C, 2.0)
    assert work.in_flight == 0
    assert work.stalled(1000.0) is None
