"""A flow with a share of the KV cache waits while its own requests hold that; others are served as if it did not."""

from dataclasses import replace

import pytest

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Cancelled, PolicyChanged
from gateway.admission.limits.limit import Exceeded, Limit
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Mode
from tests.unit.admission.playbook import BLOCK, aborted, arrived, at, declared, done, nothing, progress, refused, up

HALF = {"kv_shares": {"x": 0.5}, "ttft_target": 5.0, "ttl": 10.0}
"""Of 100 blocks."""


def of_x(request, blocks, **more):
    return arrived(request, blocks=blocks, flow="x", **{"max_tokens": 1, **more})


def half(play, **settings):
    return play(**{**HALF, **settings}) >> up("a")


def test_it_waits_until_its_own_requests_end_and_nobody_else_waits(play):
    p = half(play) >> of_x(1, 30) << Dispatch(1, "a") >> progress(r1=1) >> of_x(2, 25) << nothing
    p >> arrived(3, blocks=20, flow="y", max_tokens=1) << Dispatch(3, "a") >> done(3, 1) << nothing
    p >> of_x(4, 5) << nothing  # its own order holds
    p >> at(4.0) >> done(1, 1) << Dispatch(2, "a") << Dispatch(4, "a")


def test_it_is_of_all_endpoints_together(play):
    p = half(play) >> up("b") >> of_x(1, 60) << Dispatch(1, "a") >> of_x(2, 30) << Dispatch(2, "b")
    p >> progress(r1=1, r2=1) << nothing
    p >> of_x(3, 20) << nothing
    p >> arrived(4, blocks=10, flow="y", max_tokens=1) << Dispatch(4, "b")
    p >> done(2, 1) << Dispatch(3, "b")


def test_what_it_is_expected_to_hold_at_its_end_counts(play):
    p = half(play) >> of_x(1, 10, max_tokens=40 * BLOCK) << Dispatch(1, "a")
    p >> of_x(2, 10) << nothing
    p >> done(1, 1) << Dispatch(2, "a")


def test_what_it_holds_counts_where_that_is_more_than_expected(play):
    p = half(play)
    for request in range(100, 140):  # its answers are short
        p >> of_x(request, 1, max_tokens=1000) << Dispatch(request, "a") >> progress(**{f"r{request}": 1})
        p >> done(request, 2)
    p >> of_x(1, 1, max_tokens=1000) << Dispatch(1, "a") >> progress(r1=48 * BLOCK) << nothing
    p >> of_x(2, 3, max_tokens=1000) << nothing
    p >> done(1) << Dispatch(2, "a")


def test_what_its_requests_have_in_common_counts_once(play):
    prompt = tuple((parts * 64, 7 + parts) for parts in range(1, 11))  # 40 blocks
    p = half(play)
    for request in (1, 2, 3):
        p >> of_x(request, 42, prefix=prompt) << Dispatch(request, "a") >> progress(**{f"r{request}": 1})
    p >> of_x(4, 42) << nothing
    p >> of_x(5, 42, prefix=prompt) << nothing
    p >> done(1, 1) << nothing
    p >> done(2, 1) << nothing
    p >> done(3, 1) << Dispatch(4, "a")


def test_a_prompt_over_its_share_is_refused_with_the_limit(play):
    p = half(play) >> of_x(1, 51)
    p << Reject(1, Outcome.RATE_LIMIT_EXCEEDED, None, Exceeded(Limit.KV, 50 * BLOCK, 51 * BLOCK, None))
    p >> arrived(2, blocks=51, flow="y", max_tokens=1) << Dispatch(2, "a")


def test_an_answer_that_may_take_it_over_its_share_goes_alone(play):
    p = half(play) >> of_x(1, 10, max_tokens=90 * BLOCK) << Dispatch(1, "a")
    p >> of_x(2, 10, max_tokens=90 * BLOCK) << nothing
    p >> done(1, 5) << Dispatch(2, "a")


def test_after_a_wait_for_its_own_requests_it_is_told_that_limit(play):
    p = half(play) >> of_x(1, 45) << Dispatch(1, "a") >> of_x(2, 10) << nothing >> at(5.0)
    (command,) = p.controller.handle(of_x(3, 1), 5.0)[:1]
    assert (command.request, command.outcome) == (2, Outcome.WAIT_TOO_LONG)
    assert command.exceeded == Exceeded(Limit.KV, 50 * BLOCK, 10 * BLOCK, None)
    p >> at(6.0) >> arrived(4, blocks=60, flow="y", max_tokens=1) << nothing
    p >> at(11.0) >> progress(r1=1) << refused(3, Outcome.WAIT_TOO_LONG) << refused(4, Outcome.WAIT_TOO_LONG)


def test_one_that_waits_for_others_is_not_told_that_limit(play):
    p = half(play) >> up("a", seqs=1) >> of_x(1, 45) << Dispatch(1, "a") >> of_x(2, 10) << nothing
    p >> Cancelled(2) >> done(1, 1) >> arrived(3, blocks=5, flow="y") << Dispatch(3, "a")
    p >> arrived(4, blocks=5, flow="y") << nothing >> at(1.0) >> of_x(5, 10) << nothing >> at(6.0)
    refusals = [c for c in p.controller.handle(progress(r3=1), 6.0) if isinstance(c, Reject)]
    assert [(c.request, c.outcome, c.exceeded) for c in refusals] == [
        (4, Outcome.WAIT_TOO_LONG, None),
        (5, Outcome.WAIT_TOO_LONG, None),
    ]


@pytest.mark.parametrize("end", [done(1, 1), aborted(1)])
def test_whatever_ends_a_request_takes_it_out(play, end):
    half(play) >> of_x(1, 45) << Dispatch(1, "a") >> of_x(2, 20) << nothing >> end << Dispatch(2, "a")


def test_the_next_owner_knows_what_it_holds(play):
    half(play) >> declared(of_x(1, 45), "a", 1) << nothing >> of_x(2, 20) << nothing >> done(1, 1) << Dispatch(2, "a")


def test_a_share_that_is_set_while_it_serves_counts_what_is_in_flight(play):
    p = half(play, kv_shares={}) >> of_x(1, 45) << Dispatch(1, "a") >> progress(r1=1)
    p >> of_x(2, 20) << Dispatch(2, "a") >> progress(r2=1) << nothing
    policy = p.controller._pool.policy
    p >> PolicyChanged(replace(policy, kv_shares={"x": 0.5})) >> of_x(3, 5) << nothing
    p >> done(2, 1) << Dispatch(3, "a") >> of_x(4, 5) << nothing
    p >> PolicyChanged(replace(policy, kv_shares={})) << Dispatch(4, "a")
    p >> done(1, 1) >> done(3, 1) >> done(4, 1) << nothing


def test_where_the_size_of_the_cache_is_unknown_there_is_no_share(play):
    p = half(play) >> up("b", blocks=None) >> of_x(1, 60)
    assert isinstance(p.pending.pop(), Dispatch)
    p >> of_x(2, 60)
    assert isinstance(p.pending.pop(), Dispatch)


def test_waiting_for_its_own_requests_is_no_pressure_on_the_pool(play):
    p = half(play) >> of_x(1, 45, max_tokens=10) << Dispatch(1, "a") >> of_x(2, 45, max_tokens=10) << nothing
    p >> at(3.0) >> done(1, 10) << Dispatch(2, "a")
    assert p.controller._pool.waits.drain_rate.measured(p.now) == (0.0, 0.0)


def test_in_observe_mode_it_goes(play):
    p = half(play, mode=Mode.OBSERVE) >> of_x(1, 45) << Dispatch(1, "a") >> of_x(2, 20)
    p << Dispatch(2, "a", "queued") >> of_x(3, 60) << Dispatch(3, "a", "queued")


def test_explain_names_it_and_changes_nothing(play):
    p = half(play) >> of_x(1, 45) << Dispatch(1, "a")
    told = p.controller.explain(of_x(2, 20), p.now)
    assert (told.verdict, told.rule) == ("queue", "kv_share")
    assert (told.candidates[0].lacks, told.candidates[0].unit) == (pytest.approx(15, abs=1), "blocks")
    assert p.controller._pool.throttled_flows == set()
    told = p.controller.explain(of_x(2, 60), p.now)
    assert (told.verdict, told.rule) == ("rate_limit_exceeded", "kv_share")
    assert told.exceeded == Exceeded(Limit.KV, 50 * BLOCK, 60 * BLOCK, None)
