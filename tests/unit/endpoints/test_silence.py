import time

import pytest

from gateway.admission.events import RequestId
from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.silence import AT_WORK, PREFILL_TIMES, SECOND_OPINION, UNANSWERING, SilenceCause, SilenceMeter

A, B, C = RequestId(1), RequestId(2), RequestId(3)
HUNG_AFTER = 30.0
COUNTING = EngineMetrics(kv_usage=0.5, waiting=0, generation_tokens=100.0, prompt_tokens=50.0)
IDLE, BUSY, UNSEEN = False, True, None


@pytest.fixture
def work():
    return SilenceMeter(HUNG_AFTER)


def cause(work, now, *, busy=IDLE):
    found = work.stalled(now, busy=busy)
    return found.cause if found is not None else None


def begins(work, what, *, busy=IDLE, until=1300):
    """The first second in which that is the cause."""
    return next((now for now in range(until) if cause(work, float(now), busy=busy) is what), None)


# What silence comes to.


def test_an_idle_engine_never_stalls(work):
    assert cause(work, 1e9) is None


def test_an_answer_that_is_only_passed_on_says_nothing_of_its_engine(work):
    work.dispatched(RequestId(1), None, 0.0)
    work.dispatched(RequestId(2), None, 0.0)
    assert cause(work, 1e9) is None
    assert (work.in_flight, work.passing) == (0, 2)
    work.finished(RequestId(1), 1.0)
    assert work.passing == 1


@pytest.mark.parametrize(
    ("requests", "seen", "found", "at"),
    [
        (1, (IDLE, False), SilenceCause.ALONE, HUNG_AFTER),
        (1, (IDLE, True), SilenceCause.ALONE, HUNG_AFTER * UNANSWERING),
        (1, (BUSY, False), SilenceCause.ALONE, HUNG_AFTER * AT_WORK),
        (1, (BUSY, True), SilenceCause.ALONE, HUNG_AFTER * AT_WORK),
        (1, (UNSEEN, False), SilenceCause.ALONE, HUNG_AFTER * AT_WORK),
        (1, (UNSEEN, True), SilenceCause.ALONE, HUNG_AFTER * AT_WORK),
        (2, (IDLE, False), SilenceCause.HUNG, HUNG_AFTER),
        (2, (IDLE, True), SilenceCause.HUNG, HUNG_AFTER * UNANSWERING),
        (2, (BUSY, False), SilenceCause.HUNG, HUNG_AFTER * AT_WORK),
        (2, (BUSY, True), SilenceCause.HUNG, HUNG_AFTER * AT_WORK),
        (2, (UNSEEN, False), SilenceCause.HUNG, HUNG_AFTER),
        (2, (UNSEEN, True), SilenceCause.HUNG, HUNG_AFTER * UNANSWERING),
    ],
)
def test_what_silence_comes_to_and_after_how_long(work, requests, seen, found, at):
    busy, blocked = seen
    for number in range(requests):
        work.dispatched(RequestId(number), 10, 0.0)
    work.probed(0.0, blocked=blocked, mute=blocked)
    assert [now for now in range(int(at)) if cause(work, now, busy=busy) is not None] == []
    silence = work.stalled(at, busy=busy)
    assert silence.cause is found
    assert set(silence.requests) == {RequestId(number) for number in range(requests)}


def test_it_says_what_was_seen(work):
    work.dispatched(A, 10, 0.0)
    assert work.stalled(30.0, busy=IDLE).reason == "the only request on it has had no token for 30 s"
    work.dispatched(B, 10, 1.0)
    assert work.stalled(31.0, busy=IDLE).reason == "no progress for 31 s with 2 requests in flight"


def test_a_second_request_is_asked_before_one_is_judged_alone(work):
    """It has to be silent for half of the time too; then both are sent elsewhere."""
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 20.0)
    assert cause(work, 30.0) is None
    assert begins(work, SilenceCause.HUNG) == 20 + HUNG_AFTER * SECOND_OPINION
    assert begins(work, SilenceCause.ALONE) is None


def test_a_second_request_that_gets_a_token_clears_the_engine(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 29.0)
    work.progressed([B], 30.0)
    assert cause(work, 59.0) is None


def test_one_that_was_ended_for_its_silence_speaks_against_the_engine_of_the_next(work):
    work.dispatched(A, 10, 0.0)
    assert cause(work, 30.0) is SilenceCause.ALONE
    work.finished(A, 30.0)
    work.restart(40.0)  # on trial
    work.dispatched(B, 10, 50.0)
    assert cause(work, 79.0) is None
    assert cause(work, 80.0) is SilenceCause.HUNG


def test_another_process_has_nothing_to_do_with_the_silence_of_the_one_before(work):
    work.dispatched(A, 10, 0.0)
    work.finished(A, 30.0)
    work.forget(40.0)
    work.dispatched(B, 10, 50.0)
    assert cause(work, 80.0) is SilenceCause.ALONE


@pytest.mark.parametrize("times", [9.0, 2.0])
def test_clients_that_give_up_one_after_another_do_not_hide_a_hang(work, times):
    now = 0.0
    for number in range(40):
        work.dispatched(RequestId(number), 10, now)
        if cause(work, now) is SilenceCause.HUNG:
            break
        now += times
        work.finished(RequestId(number), now)
    assert now <= HUNG_AFTER + 2 * times


def test_nobody_is_ended_for_the_silence_of_another(work):
    work.dispatched(A, 10, 0.0)
    work.finished(A, 20.0)
    work.dispatched(B, 10, 20.0)
    assert cause(work, 30.0) is None
    assert begins(work, SilenceCause.ALONE) is None
    assert begins(work, SilenceCause.HUNG) == 35, "by then both were silent"


def test_clients_that_did_not_read_leave_no_silence_behind(work):
    for number in range(2, 50):
        work.dispatched(RequestId(number), 10, 0.0)
        work.finished(RequestId(number), 2.0, delivering=True)
    work.dispatched(A, 10, 2.0)
    assert begins(work, SilenceCause.HUNG) is None


def test_requests_that_are_refused_at_once_are_no_silence(work):
    for number in range(10_000):
        work.dispatched(RequestId(number), 10, number * 0.01)
        work.finished(RequestId(number), number * 0.01 + 0.005)
    work.dispatched(A, 10, 100.0)
    assert cause(work, 129.0) is None
    assert cause(work, 130.0) is SilenceCause.ALONE


@pytest.mark.parametrize(("lasts", "delivering"), [(0.5, False), (5.0, True)])
@pytest.mark.parametrize("beside", [False, True])
def test_time_in_which_an_engine_only_refuses_makes_no_hang_of_the_next_burst(work, lasts, delivering, beside):
    now = 0.0
    for number in range(1000):
        work.dispatched(RequestId(number), 100, now)
        if beside and number:  # so that there is always one
            work.finished(RequestId(number - 1), now + lasts / 2, delivering=delivering)
        now += lasts / 2
        if not beside:
            work.finished(RequestId(number), now + lasts / 2, delivering=delivering)
            now += lasts / 2
    burst = [RequestId(number) for number in range(1000, 1100)]
    for request in burst:
        work.dispatched(request, 100, now)
    assert cause(work, now + 0.9) is None


def test_a_burst_beside_one_slow_request_has_its_time_however_many_it_has(work):
    work.dispatched(A, 10, 0.0)
    for number in range(10, 110):
        work.dispatched(RequestId(number), 10, 40.0)
    assert begins(work, SilenceCause.HUNG) == 40 + SECOND_OPINION * HUNG_AFTER


def test_one_that_was_silent_elsewhere_takes_no_second_endpoint_out(work):
    work.dispatched(A, 10, 0.0, evacuated=True)
    work.dispatched(B, 10, 0.0, evacuated=True)
    silence = work.stalled(30.0, busy=IDLE)
    assert (silence.cause, silence.requests) == (SilenceCause.EVACUATED, (A, B))


def test_one_that_was_silent_elsewhere_is_no_second_opinion(work):
    work.dispatched(A, 10, 0.0, evacuated=True)
    work.dispatched(B, 10, 0.0)
    assert cause(work, 30.0) is SilenceCause.ALONE
    work.finished(A, 30.0)
    work.finished(B, 30.0)
    work.restart(30.0)
    work.dispatched(C, 10, 30.0, evacuated=True)
    assert cause(work, 60.0) is SilenceCause.EVACUATED


# Tokens, and only they, prove life.


def test_a_token_of_any_request_is_progress(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 20.0)
    work.progressed([A], 29.0)
    assert cause(work, 58.9) is None
    assert cause(work, 59.0) is SilenceCause.HUNG


def test_another_dispatch_is_no_progress(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 10.0)
    work.dispatched(C, 10, 29.0)
    assert cause(work, 30.0) is SilenceCause.HUNG


def test_time_without_work_does_not_count(work):
    work.dispatched(A, 10, 0.0)
    work.finished(A, 5.0)
    work.dispatched(B, 10, 1000.0)
    assert cause(work, 1020.0) is None


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
    assert cause(work, 54.9) is None


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
    assert cause(work, 30.0) is SilenceCause.ALONE


def test_a_loop_that_was_blocked_has_its_time_until_something_moves(work):
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 0.0)
    work.probed(0.0, blocked=True, mute=True)
    work.probed(5.0, blocked=False, mute=False)
    assert cause(work, 44.0) is None, "it answers again, and its tokens are on their way"
    work.progressed([A], 45.0)
    assert cause(work, 75.0) is SilenceCause.HUNG, "and then as ever"


# How long a prefill may take.


def test_a_long_prompt_may_take_several_times_what_its_prefill_should(work):
    for number in range(60):  # measured: 1000 tokens/s
        work.dispatched(RequestId(number), 1000, number * 2.0)
        work.progressed([RequestId(number)], number * 2.0 + 1.0)
        work.finished(RequestId(number), number * 2.0 + 1.0)
    assert work.prefill_rate == pytest.approx(1000, rel=0.01)
    work.dispatched(A, 50_000, 200.0)
    assert cause(work, 200.0 + PREFILL_TIMES * 49) is None
    assert cause(work, 200.0 + PREFILL_TIMES * 51) is SilenceCause.ALONE


def test_a_prompt_that_was_prefilled_earns_no_more_patience(work):
    work.dispatched(A, 100_000, 0.0)
    work.progressed([A], 100.0)
    assert cause(work, 129.0) is None
    assert cause(work, 130.0) is SilenceCause.ALONE


def test_before_anything_was_measured_a_slow_engine_is_assumed(work):
    work.dispatched(A, 10_000, 0.0)
    assert cause(work, 199.0) is None
    assert cause(work, 201.0) is SilenceCause.ALONE


def test_an_engine_that_loads_its_model_for_a_request_has_the_time_for_that_until_its_first_token(work):
    work.loads = 300.0
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 0.0)
    assert begins(work, SilenceCause.HUNG) == 300
    work.progressed([A, B], 200.0)
    assert cause(work, 200.0 + HUNG_AFTER - 1) is None
    assert cause(work, 200.0 + HUNG_AFTER) is SilenceCause.HUNG


# Requests that do not stream.


def test_a_request_that_does_not_stream_shows_progress_only_in_metrics(work):
    work.dispatched(A, 10, 0.0, streams=False)
    assert cause(work, 100.0) is None
    work.scraped(COUNTING, 100.0)
    assert cause(work, 100.0) is SilenceCause.ALONE
    assert cause(work, 100.0 + HUNG_AFTER) is None, "a scrape that old proves nothing"


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("busy", "patience"), [(IDLE, 1.0), (BUSY, AT_WORK)])
def test_where_its_progress_cannot_be_seen_streams_beside_and_after_it_have_their_time(work, leaves, busy, patience):
    work.dispatched(A, 10, 0.0, streams=False)
    for request in (B, C):
        work.dispatched(request, 10, 500.0)
    if leaves:
        work.finished(A, 501.0)
    assert begins(work, SilenceCause.HUNG, busy=busy) == 500 + HUNG_AFTER * patience


def test_a_stream_that_leaves_beside_it_was_silent_for_its_own_time_only(work):
    work.dispatched(A, 10, 0.0, streams=False)
    for number in range(3):
        work.dispatched(RequestId(10 + number), 10, 500.0)
    work.finished(RequestId(10), 502.0)
    assert begins(work, SilenceCause.HUNG) == 500 + HUNG_AFTER


@pytest.mark.parametrize("whole", [0, 1000, 2000])
def test_all_may_leave_a_silent_engine_at_once(work, whole):
    """Where each looked through the others, an engine that died with 2000 stopped the loop for 0.3 s."""
    for number in range(2000):
        work.dispatched(RequestId(number), 10, 0.0, streams=number >= whole)
    began = time.thread_time()
    for number in range(1999, -1, -1):
        work.finished(RequestId(number), 20.0)
    assert time.thread_time() - began < 0.05


def test_where_not_even_probes_are_answered_its_silence_counts_from_then_on(work):
    """One late answer must not make a silence of all the time in which nobody could have seen a token."""
    work.dispatched(A, 10, 0.0, streams=False)
    work.dispatched(B, 10, 0.0, streams=False)
    work.probed(500.0, blocked=True, mute=True)
    assert begins(work, SilenceCause.HUNG) == 500 + HUNG_AFTER * UNANSWERING
    work.probed(560.0, blocked=False, mute=False)
    assert cause(work, 560.0) is None


def test_whose_gauges_alone_are_not_answered_may_work_on_long_answers(work):
    for request in (A, B):
        work.dispatched(request, 10, 0.0, streams=False)
    work.probed(5.0, blocked=True, mute=False)
    assert cause(work, 599.0) is None
    work.dispatched(C, 10, 500.0)
    assert begins(work, SilenceCause.ALONE) == 500 + HUNG_AFTER * UNANSWERING, (
        "and one that streams is looked at as ever"
    )


def test_what_leaves_a_blocked_engine_was_silent_from_then_on_too(work):
    for request in (A, B, C):
        work.dispatched(request, 10, 0.0, streams=False)
    work.probed(500.0, blocked=True, mute=True)
    work.finished(C, 502.0)
    assert begins(work, SilenceCause.HUNG) == 500 + HUNG_AFTER * UNANSWERING


def test_the_silence_of_an_engine_that_counts_goes_on_while_it_is_blocked(work):
    work.scraped(COUNTING, 0.0)
    work.dispatched(A, 10, 0.0, streams=False)
    work.dispatched(B, 10, 0.0, streams=False)
    work.probed(10.0, blocked=True, mute=True)
    assert begins(work, SilenceCause.HUNG) == HUNG_AFTER * UNANSWERING


def test_its_answer_is_progress(work):
    work.dispatched(A, 10, 0.0, streams=False)
    work.scraped(COUNTING, 20.0)
    work.progressed([A], 20.0)
    work.scraped(COUNTING, 49.0)
    assert cause(work, 49.0) is None


def test_a_client_that_reads_again_says_nothing_of_the_prefill_rate(work):
    """It was not on the account while it did not; what it comes back for has long had its first token."""
    before = work.prefill_rate
    for now in range(100):
        work.dispatched(A, 0, float(now), started=True)
        work.progressed([A], now + 0.5)
        work.finished(A, now + 0.5)
    assert work.prefill_rate == before


def test_a_slow_answer_without_a_stream_says_nothing_of_the_prefill_rate(work):
    before = work.prefill_rate
    work.dispatched(A, 10, 0.0, streams=False)
    work.progressed([A], 60.0)
    assert work.prefill_rate == before


def test_a_fast_answer_without_a_stream_tells_that_prefill_is_no_slower(work):
    """Else an engine that streams nothing, and hangs over long prompts, has ten minutes."""
    for number in range(60):  # 8,000 tokens and an answer in 4 s
        work.dispatched(RequestId(number), 8000, number * 10.0, streams=False)
        work.progressed([RequestId(number)], number * 10.0 + 4.0)
        work.finished(RequestId(number), number * 10.0 + 4.0)
    assert work.prefill_rate == pytest.approx(2000, rel=0.01)
    for request in (A, B):
        work.dispatched(request, 30_000, 1000.0, streams=False)
    work.scraped(COUNTING, 1061.0)
    assert cause(work, 1000.0 + PREFILL_TIMES * 16) is SilenceCause.HUNG


# One request that is silent while the others are not.


def overdue_at(work, every=1.0, until=1300, **metrics):
    """When the first of them is overdue, with a token of C and a scrape every second."""
    for now in range(1, until):
        work.progressed([C], now)
        work.scraped(EngineMetrics(**{"waiting": 0, "generation_tokens": float(now), **metrics}), now)
        assert cause(work, now) is None
        if found := work.overdue(now):
            return now, found
    return None


def test_a_stream_that_does_not_begin_while_others_go_on_is_overdue(work):
    work.dispatched(C, 10, 0.0)
    work.dispatched(A, 10, 0.0)
    work.dispatched(B, 10, 5.0, streams=False)
    work.progressed([C], 0.5)
    assert overdue_at(work) == (HUNG_AFTER * AT_WORK, [A])


def test_a_long_prefill_beside_others_has_its_time(work):
    work.dispatched(C, 10, 0.0)
    work.progressed([C], 0.05)
    rate = work.prefill_rate
    work.dispatched(A, 20_000, 0.0)
    at, found = overdue_at(work)
    assert found == [A]
    assert at == pytest.approx(PREFILL_TIMES * 20_000 / rate, abs=1)


@pytest.mark.parametrize(
    "told",
    [{"waiting": 1}, {"waiting": 0, "deferred": 1}, {"waiting": None}],
    ids=["it waits in the engine", "it waits for a place of its adapter", "not known"],
)
def test_a_stream_that_may_wait_in_the_engine_is_not_overdue(work, told):
    work.dispatched(C, 10, 0.0)
    work.dispatched(A, 10, 0.0)
    assert overdue_at(work, **told) is None
    if told["waiting"] is not None:
        work.scraped(COUNTING, 1300.0)
        work.scraped(COUNTING, 1419.0)
        assert work.overdue(1418.0) == [], "its time begins when nothing waits any more"
        assert work.overdue(1419.0) == [A]


def test_a_stream_that_has_begun_is_never_overdue_here(work):
    work.dispatched(C, 10, 0.0)
    work.dispatched(A, 10, 0.0)
    work.progressed([A, C], 1.0)
    assert overdue_at(work) is None


def test_what_was_scraped_long_ago_makes_nobody_overdue(work):
    work.dispatched(A, 10, 0.0)
    work.scraped(COUNTING, 1.0)
    assert work.overdue(500.0) == []


def test_a_new_beginning_counts_from_now(work):
    work.dispatched(A, 10, 0.0)
    work.restart(100.0)
    assert cause(work, 129.0) is None


def test_requests_that_nobody_knows_are_ignored(work):
    work.progressed([C], 1.0)
    work.finished(C, 2.0)
    assert work.in_flight == 0
    assert cause(work, 1000.0) is None
