"""What an engine is done with holds nothing there, however slowly its client takes the answer."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Back, Behind, Declared, EndpointGone, PolicyChanged, Returned, Tick
from gateway.admission.placing.request import service
from gateway.admission.policy import Policy
from tests.unit.admission.playbook import aborted, arrived, at, done, nothing, progress, scrape, up


def full(play, **settings):
    """One request, whose client falls behind at 1, has all there is; another waits."""
    p = play(**settings) >> up("a", seqs=2, blocks=100) >> arrived(1, blocks=50, n=2, flow="x") << Dispatch(1, "a")
    return p >> progress(r1=1) >> arrived(2, blocks=60, flow="y") << nothing >> at(1) >> Behind(1)


def empty(time):
    return scrape("a", time, running=0, waiting=0)


def let_go(play, **settings):
    """As `full`; at 3.5 its engine is known to be done with it, and the other goes."""
    p = full(play, **settings) >> at(2) >> empty(2) << nothing
    return p >> at(3.5) >> empty(3.5) << Dispatch(2, "a")


def test_two_scrapes_without_any_request_free_what_it_held(play):
    p = let_go(play)
    shown = p.endpoint("a")
    assert (shown.sequences, shown.held_blocks) == (1, 60), "those of the other"
    assert shown.in_flight == p.controller.in_flight("a") == 2, "its engine has yet to send the rest"


@pytest.mark.parametrize(
    "scrapes",
    [
        [(0.5, 0, 0), (3.5, 0, 0)],
        [(2.0, 0, 0), (2.9, 0, 0)],
        [(4.0, 0, 0), (4.0, 0, 0)],
        [(4.0, 1, 0), (5.0, 0, 0)],
        [(4.0, 0, 1), (5.0, 0, 0)],
        [(4.0, 0, 0), (5.0, 1, 0), (6.0, 0, 0)],
        [(4.0, None, 0), (5.0, None, 0)],
        [(4.0, 0, None), (5.0, 0, None)],
    ],
)
def test_anything_less_frees_nothing(play, scrapes):
    p = full(play)
    for time, running, waiting in scrapes:
        p >> at(max(time, p.now)) >> scrape("a", time, running=running, waiting=waiting) << nothing
    assert p.endpoint("a").sequences == 2


def test_one_whose_client_keeps_up_holds_what_it_holds(play):
    p = play() >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> progress(r1=1) >> arrived(2) << nothing
    p >> at(4) >> empty(4) >> at(5) >> empty(5) << nothing


def test_another_endpoint_says_nothing_of_it(play):
    p = full(play) >> up("b", blocks=30) >> at(4) >> scrape("b", 4.0, running=0, waiting=0)
    p >> at(5) >> scrape("b", 5.0, running=0, waiting=0) << nothing
    assert p.endpoint("a").sequences == 2


@pytest.mark.parametrize("end", [done(1, 40), done(1), aborted(1), Returned(1, Back.FAILED)])
def test_its_end_frees_nothing_again(play, end):
    p = let_go(play) >> at(9) >> end
    shown = p.endpoint("a")
    assert (shown.sequences, shown.held_blocks, shown.aborting, shown.in_flight) == (1, 60, 0, 1)
    p >> done(2)
    if isinstance(end, Returned):
        p << Dispatch(1, "a")
        assert (p.endpoint("a").sequences, p.endpoint("a").held_blocks) == (2, 51)
        p >> done(1)
    assert (p.endpoint("a").sequences, p.endpoint("a").held_blocks, p.endpoint("a").in_flight) == (0, 0, 0)


def test_what_it_had_is_learned_and_counts_as_service_at_its_end(play):
    p = let_go(play) >> progress(r1=800) >> progress(r1=700) >> arrived(3, blocks=60) << nothing >> at(9) >> Tick()
    assert not p.controller.learned().everything
    before, _ = p.controller.warmth(p.now).drained
    p >> done(1) << nothing
    assert p.controller.learned().everything == (400,), "of each of its sequences"
    assert p.controller.warmth(p.now).drained[0] - before == service(50 * 16 - 1, 800)


def test_what_its_client_has_not_read_counts_by_the_clock_until_its_engine_is_done(play):
    p = full(play) >> scrape("a", 1.0, running=2, waiting=0, tokens=0)
    p >> at(2) >> scrape("a", 2.0, running=2, waiting=0, tokens=100) >> at(4) << nothing  # 50 a second for each of both
    p >> at(5) >> empty(5) >> at(7) >> empty(7) << Dispatch(2, "a") >> progress(r2=1)
    p >> arrived(3, blocks=60) << nothing >> at(9) >> Tick()
    before, _ = p.controller.warmth(p.now).drained
    p >> aborted(1)
    made = 2 * (1 + 120)  # until 5; a stream counts 0.8 tokens for each of the clock's
    assert p.controller.warmth(p.now).drained[0] - before == service(50 * 16 - 1, made)


def test_its_tokens_count_no_more_on_its_endpoint(play):
    p = let_go(play) >> progress(r1=1900)
    assert (p.endpoint("a").held_blocks, p.controller.next_reports([1])) == (60, {})
    state = next(shown for shown in p.controller.requests(p.now, 9) if shown.request == 1)
    assert (state.endpoint, state.generated, state.held_blocks, state.sent_at) == ("a", 1900, 0, 0)


def test_a_share_of_the_cache_is_free_again(play):
    p = play(kv_shares={"x": 0.5}) >> up("a", blocks=100) >> arrived(1, blocks=45, flow="x") << Dispatch(1, "a")
    p >> progress(r1=1) >> arrived(2, blocks=45, flow="x") << nothing >> at(1) >> Behind(1) >> at(2) >> empty(2)
    p >> at(3.5) >> empty(3.5) << Dispatch(2, "a") >> PolicyChanged(Policy(kv_shares={"x": 0.4})) >> done(1)
    assert p.controller._kv_shares.held("x") >= 45 * 16


def test_an_endpoint_that_was_removed_is_known_until_the_last_answer_has_left_it(play):
    p = full(play) >> EndpointGone("a") >> at(2) >> empty(2) >> at(3.5) >> empty(3.5) << nothing
    assert p.controller.in_flight("a") == 1
    p >> up("a", seqs=2) << Dispatch(2, "a") >> done(1)
    assert p.controller.in_flight("a") == 1


def test_a_client_that_was_behind_before_another_core_took_over_is_so_still(play):
    p = play() >> at(1) >> up("a", seqs=1) >> Declared(arrived(1), "a", 5, behind=True) >> arrived(2) << nothing
    p >> at(2) >> empty(2) << nothing >> at(3) >> empty(3) << Dispatch(2, "a")


def test_who_is_not_in_flight_cannot_be_behind(play):
    p = play() >> up("a", seqs=1) >> arrived(1) << Dispatch(1, "a") >> progress(r1=1) >> arrived(2) >> Behind(2)
    p >> Behind(3) >> at(3) >> done(1) << Dispatch(2, "a") >> at(6) >> empty(6) >> at(7) >> empty(7)
    assert p.endpoint("a").sequences == 1
