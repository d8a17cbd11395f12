import pytest

from gateway.admission.queueing.headroom import MOST_ACTIVE, Headroom, Holdings
from gateway.admission.tuning import TUNING


def flying(*sent, weights=None, now=0.0):
    headroom = Headroom(weights or {})
    for flow, tokens in sent:
        headroom.sent(flow, 0, tokens, now)
    return headroom


def spare(headroom, flow, now, **waiting):
    return headroom.kept(lambda name: waiting.get(name, 0), now).spare(flow, 0, 0.0)


def test_a_single_flow_leaves_nothing_free():
    assert spare(flying(("a", 500), ("a", 500)), "a", 1.0) == 0


def test_who_is_beyond_its_share_leaves_room_for_one_request_of_each_other():
    headroom = flying(("noisy", 500), ("noisy", 500), ("noisy", 500), ("quiet", 80), ("calm", 40))
    assert spare(headroom, "noisy", 1.0) == 120


def test_who_is_within_it_may_use_that_room():
    headroom = flying(("noisy", 500), ("noisy", 500), ("quiet", 80))
    assert spare(headroom, "quiet", 1.0) == 0
    assert spare(headroom, "new", 1.0) == 0


def test_flows_that_hold_about_the_same_leave_each_other_nothing():
    headroom = flying(("a", 520), ("b", 480))
    assert spare(headroom, "a", 1.0) == spare(headroom, "b", 1.0) == 0


def test_shares_go_by_weight():
    sent = (("large", 300), ("small", 100))
    assert spare(flying(*sent), "large", 1.0) == 100
    assert spare(flying(*sent, weights={"large": 4.0}), "large", 1.0) == 0


def test_room_is_kept_for_what_a_flow_had_at_its_fullest_of_late():
    headroom = flying(("noisy", 2000), ("quiet", 80), ("quiet", 80), ("quiet", 80))
    headroom.left("quiet", 80, 1.0)
    headroom.left("quiet", 80, 1.0)
    assert spare(headroom, "noisy", 2.0) == 160 + 80
    headroom.sent("quiet", 0, 80, TUNING.active_span)
    assert spare(headroom, "noisy", TUNING.active_span) == 80 + 80  # it is known for one span more
    headroom.left("quiet", 80, TUNING.active_span)
    headroom.sent("quiet", 0, 80, 2 * TUNING.active_span)
    assert spare(headroom, "noisy", 2 * TUNING.active_span) == 80


def test_a_burst_does_not_take_a_flow_beyond_its_share_before_it_has_lasted():
    headroom = flying(("noisy", 500), ("quiet", 80))
    headroom.sent("noisy", 0, 1, 60.0)
    headroom.sent("quiet", 0, 800, 60.0)
    assert spare(headroom, "quiet", 61.0) == 0
    assert spare(headroom, "quiet", 60.0 + 2 * TUNING.holdings_window) > 0


def test_who_holds_less_than_its_share_now_leaves_nothing_whatever_it_held_before():
    headroom = flying(("noisy", 500), ("noisy", 100), ("quiet", 300))
    assert spare(headroom, "noisy", 20.0) > 0
    headroom.left("noisy", 500, 20.0)
    assert spare(headroom, "noisy", 20.1) == 0


def test_nothing_is_kept_for_who_has_more_than_that_waiting():
    headroom = flying(("noisy", 500), ("other", 80), ("other", 80))
    assert spare(headroom, "noisy", 1.0, other=0) == 80
    headroom.left("other", 80, 1.0)
    assert spare(headroom, "noisy", 2.0, other=2) == 160
    assert spare(headroom, "noisy", 2.0, other=3) == 0


def test_room_is_kept_only_for_flows_heard_of_lately():
    headroom = flying(("noisy", 500), ("quiet", 80))
    assert spare(headroom, "noisy", TUNING.active_span) == 80
    assert spare(headroom, "noisy", TUNING.active_span + 1) == 0


def test_a_flow_that_gets_nothing_is_active_too():
    headroom = flying(("noisy", 500), ("quiet", 80))
    headroom.left("quiet", 80, 1.0)
    later = 1.5 * TUNING.active_span
    assert spare(headroom, "noisy", later) == 0
    headroom.asked("quiet", 0, 40, later)
    headroom.asked("new", 0, 10, later)
    assert spare(headroom, "noisy", later) == 40 + 80 + 10
    assert spare(headroom, "noisy", later + TUNING.active_span) == 130
    assert spare(headroom, "noisy", later + TUNING.active_span + 1) == 0


def test_the_peak_of_a_flow_that_gets_nothing_is_forgotten():
    headroom = flying(("noisy", 500), ("quiet", 80))
    headroom.left("quiet", 80, 1.0)
    for span in (1, 2, 3):
        headroom.asked("quiet", 0, 40, span * TUNING.active_span)
    assert spare(headroom, "noisy", 3 * TUNING.active_span) == 40


def test_what_a_flow_held_of_late_counts_for_a_request_that_takes_it_beyond_its_share_again():
    """A group after the other would hold all places: between two of them its flow holds none."""
    headroom = flying(("groups", 64), ("other", 4))
    headroom.left("groups", 64, 20.0)
    assert headroom.kept(lambda _: 0, 20.1).spare("groups", 0, 64) == 4
    assert headroom.kept(lambda _: 0, 20.1).spare("groups", 0, 1) == 0
    assert headroom.kept(lambda _: 0, 90.0).spare("groups", 0, 64) == 0


def test_a_flow_within_its_share_starves_for_some_seconds_after_a_refusal():
    headroom = flying(("groups", 64), ("other", 4))
    assert not headroom.starves("groups", 0, 20.0)
    for flow in ("other", "groups", "unknown"):
        headroom.refused(flow, 20.0)
    assert headroom.starves("groups", 0, 20.0 + TUNING.refused_span)
    assert not headroom.starves("groups", 0, 20.1 + TUNING.refused_span)
    assert not headroom.starves("other", 0, 20.0)  # the other one is beyond its share


@pytest.mark.parametrize(("least", "kept"), [(0.0, 9), (1.0, 0)])
def test_every_flow_may_hold_the_least_however_many_there_are(least, kept):
    headroom = Headroom({}, least)
    for flow in "abcdefghij":
        headroom.sent(flow, 0, 1, 0.0)
    for flow in "bcdefghij":
        headroom.left(flow, 1, 100.0)
        headroom.asked(flow, 0, 1, 200.0)
    assert headroom.kept(lambda _: 0, 200.0).spare("a", 0, 0) == kept


def test_nothing_is_kept_for_a_less_urgent_band():
    headroom = flying(("noisy", 500))
    for flow, band in (("urgent", 0), ("alike", 1), ("batch", 2)):
        headroom.asked(flow, band, 10, 0.0)
        headroom.refused(flow, 0.0)
    assert [headroom.kept(lambda _: 0, 1.0).spare("noisy", band, 0) for band in (2, 1, 0)] == [30, 20, 10]
    assert headroom.starves("noisy", 0, 1.0)
    assert not headroom.starves("noisy", -1, 1.0)


def test_what_left_counts_no_more_and_what_one_needs_is_as_large_as_its_latest():
    headroom = flying(("noisy", 500), ("quiet", 80), ("quiet", 180))
    assert spare(headroom, "noisy", 1.0) == 180
    headroom.left("noisy", 500, 1.0)
    assert spare(headroom, "noisy", 1.0) == 0


def test_idle_flows_are_forgotten_and_few_are_looked_at():
    headroom = Headroom({})
    for number in range(5 * TUNING.kept_flows):
        headroom.sent(f"f{number}", 0, 10, 0.0)
        headroom.left(f"f{number}", 10, 0.0)
    headroom.sent("noisy", 0, 1000, 1.0)
    assert spare(headroom, "noisy", 2.0) == (TUNING.kept_flows - 1) * 20
    for number in range(5 * TUNING.kept_flows):
        headroom.sent("noisy", 0, 1000, TUNING.active_span + 5.0 + number)
    assert len(headroom._active) == 1


def test_so_many_flows_are_known_and_what_others_hold():
    headroom = flying(("noisy", 500))
    for number in range(MOST_ACTIVE + 10):
        headroom.asked(f"f{number}", 0, 10, 1.0)
    assert len(headroom._active) == MOST_ACTIVE
    headroom.left("noisy", 500, 2.0)
    assert headroom._weight == MOST_ACTIVE


@pytest.mark.parametrize("long", [False, True], ids=["alone", "behind a long stream"])
def test_flows_that_have_long_gone_count_in_nobodys_share(long):
    """Who counts is decided by who holds something or was heard of lately, however many were there before."""

    def kept(gone):
        headroom = flying(*[("long", 500)] * long)
        for number in range(gone):
            headroom.sent(f"g{number}", 0, 100, 0.1)
            headroom.left(f"g{number}", 100, 0.2)
        for second in range(40):
            headroom.sent("noisy", 0, 3000, TUNING.active_span + second)
        headroom.sent("quiet", 0, 1000, TUNING.active_span + 40)
        return spare(headroom, "noisy", TUNING.active_span + 60)

    assert kept(2000) == kept(0) == 1000


def test_who_holds_something_has_its_share_until_it_holds_nothing():
    headroom = flying(("long", 500), ("noisy", 500))
    later = TUNING.active_span + 10
    for second in range(3):
        headroom.sent("noisy", 0, 100, later + second)
    assert spare(headroom, "long", later + 60) == 0
    assert headroom._weight == 2
    headroom.left("long", 500, later + 61)
    assert headroom._weight == 1
    headroom.sent("long", 0, 10, later + 62)
    headroom.left("long", 10, later + 63)
    assert headroom._weight == 2


class TestHeld:
    def test_the_average_follows_within_a_few_of_its_time_constants(self):
        held = Holdings()
        held.add(100, 0.0)
        assert held.average(0.0) == 0
        assert held.average(10 * TUNING.holdings_window) > 99
        held.add(-100, 10 * TUNING.holdings_window)
        assert 30 < held.average(11 * TUNING.holdings_window) < 45

    def test_averages_of_parts_add_up_to_that_of_the_whole(self):
        one, other, both = Holdings(), Holdings(), Holdings()
        for part, tokens, at in ((one, 500, 3.0), (other, 80, 31.0), (one, -200, 33.0), (other, 40, 34.5)):
            part.add(tokens, at)
            both.add(tokens, at)
        assert one.average(40.0) + other.average(40.0) == pytest.approx(both.average(40.0))

    def test_a_short_burst_hardly_shows(self):
        held = Holdings()
        held.add(1000, 60.0)
        held.add(-1000, 60.1)
        assert held.average(60.1) < 1000 * 0.1 / TUNING.holdings_window * 1.1
