from gateway.admission.headroom import ACTIVE, LOOK, Headroom


def flying(*sent, weights=None, now=0.0):
    headroom = Headroom(weights or {})
    for flow, tokens in sent:
        headroom.sent(flow, tokens, now)
    return headroom


def test_a_single_flow_leaves_nothing_free():
    assert flying(("a", 500), ("a", 500)).spare("a", 1.0) == 0


def test_who_is_beyond_its_share_leaves_room_for_one_request_of_each_other():
    headroom = flying(("noisy", 500), ("noisy", 500), ("noisy", 500), ("quiet", 80), ("calm", 40))
    assert headroom.spare("noisy", 1.0) == 120


def test_who_is_within_it_may_use_that_room():
    headroom = flying(("noisy", 500), ("noisy", 500), ("quiet", 80))
    assert headroom.spare("quiet", 1.0) == 0
    assert headroom.spare("new", 1.0) == 0


def test_shares_go_by_weight():
    sent = (("large", 300), ("small", 100))
    assert flying(*sent).spare("large", 1.0) == 100
    assert flying(*sent, weights={"large": 4.0}).spare("large", 1.0) == 0


def test_room_is_kept_only_for_flows_heard_of_lately():
    headroom = flying(("quiet", 80))
    headroom.sent("noisy", 500, ACTIVE)
    assert headroom.spare("noisy", ACTIVE) == 80
    assert headroom.spare("noisy", 2 * ACTIVE + 1) == 0


def test_what_left_counts_no_more_and_what_one_needs_is_a_mean():
    headroom = flying(("noisy", 500), ("quiet", 80), ("quiet", 180))
    assert headroom.spare("noisy", 1.0) == 90
    headroom.left("noisy", 500)
    assert headroom.spare("noisy", 1.0) == 0


def test_idle_flows_are_forgotten_and_few_are_looked_at():
    headroom = Headroom({})
    for number in range(5 * LOOK):
        headroom.sent(f"f{number}", 10, 0.0)
        headroom.left(f"f{number}", 10)
    headroom.sent("noisy", 1000, 1.0)
    assert headroom.spare("noisy", 1.0) == (LOOK - 1) * 10
    for number in range(5 * LOOK):
        headroom.sent("noisy", 1000, ACTIVE + 5.0 + number)
    assert len(headroom._tenants) == 1
