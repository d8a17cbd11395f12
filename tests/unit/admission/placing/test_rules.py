"""The table of rules, and what is read from it."""

import pytest

from gateway.admission.events import Arrived, Capacity, Demand, Observed
from gateway.admission.placing.endpoint import EndpointRecord
from gateway.admission.placing.request import RequestRecord
from gateway.admission.placing.rules import (
    RULES,
    Next,
    all_closed_until,
    closed_by,
    declined_by,
    next_in_line,
    shortage_of,
    throttling,
    tokens_to_free,
)
from gateway.admission.policy import Policy
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.tuning import TUNING

NOW = 1.0
BLOCK = 16
PREDICTOR = Predictor()


def endpoint(policy=None, **capacity):
    settings = {"max_model_len": 4096, "kv_blocks": 100, "block_size": BLOCK, **capacity}
    return EndpointRecord("a", Capacity(**settings), policy or Policy(), PREDICTOR)


def all_shut(endpoints):
    return all_closed_until(endpoints, NOW) >= NOW


def request(blocks=1, *, max_tokens=1, number=1, copies=1):
    arrival = Arrived(number, Demand((blocks * BLOCK - 1,), max_tokens, copies))
    return RequestRecord(arrival, NOW, PREDICTOR.kind(arrival))


def holding(blocks, *, seen=True, max_tokens=1, **settings):
    """An endpoint with one request on it."""
    made = endpoint(**settings)
    reservation = made.reserve(request(blocks, max_tokens=max_tokens), NOW)
    if seen:
        made.ledger.progress(reservation, 1, NOW)
    made.advance(NOW)
    return made


def declining(e, asking):
    """Name of the rule by which an endpoint declines a request, under its policy."""
    rule = declined_by(e, asking, NOW, throttling(e.policy))
    return None if rule is None else rule.name


def asked(e, *args, **settings):
    return declining(e, request(*args, **settings))


def test_each_rule_has_a_name_and_a_meaning_of_its_own():
    assert len({rule.name for rule in RULES}) == len({rule.says_no for rule in RULES}) == len(RULES)


def test_those_that_measure_are_asked_last():
    measures = [rule.measures for rule in RULES]
    assert measures == sorted(measures)


def test_a_rule_that_throttles_a_flow_is_asked_before_every_row_that_keeps_an_endpoint_for_a_head():
    """Except those that decline what has a place, and what has room: the last that does not measure, and the last."""
    below = ([rule for rule in RULES if not rule.measures][-1], RULES[-1])
    assert [rule.name for rule in below] == ["sequence_share", "share"]
    keeps = [rule.after is not Next.OTHER_FLOWS for rule in RULES if rule not in below]
    assert keeps == sorted(keeps)


def test_no_flow_is_set_aside_where_no_setting_asks_for_it():
    assert throttling(Policy()) == ()


def test_a_rule_can_read_the_policy_in_force():
    e = endpoint(Policy(kv_high=0.7))
    assert e.policy.kv_high == 0.7
    e.govern(Policy(kv_high=0.8))
    assert e.policy.kv_high == 0.8


def test_what_fits_is_not_declined():
    assert asked(holding(10), 10) is None


def test_an_idle_endpoint_takes_what_exceeds_every_limit_but_not_while_it_is_busy():
    e = endpoint(max_num_seqs=0)
    assert asked(e, 99) is None
    e.note_busy(NOW)
    assert asked(e, 1) == "busy"


def test_a_busy_engine_gets_as_many_as_it_had():
    """It is full, not slow: short answers end many times in a second."""
    e = endpoint()
    _, last = e.reserve(request(), NOW), e.reserve(request(), NOW)
    e.note_busy(NOW)
    assert (asked(e), all_shut([e]), e.busy_for(NOW) > 0) == ("busy", True, True)
    e.release(last, 1, NOW, aborted=False)
    assert (asked(e), all_shut([e]), e.busy_for(NOW) > 0) == (None, False, False)
    e.reserve(request(), NOW)
    assert (asked(e), all_shut([e]), e.busy_for(NOW) > 0) == ("busy", True, True)


def test_an_engine_that_was_full_and_is_idle_gets_a_request_of_several_sequences():
    """No endpoint would seem shut, and it would wait."""
    e = endpoint()
    last = e.reserve(request(), NOW)
    e.note_busy(NOW)
    e.release(last, 1, NOW, aborted=False)
    assert asked(e, copies=2) is None


def test_an_idle_endpoint_that_would_fail_others_declines_what_does_not_fit_beside_them():
    for holds_limit, declines in ((True, "kv"), (False, None)):
        e = endpoint(holds_limit=holds_limit)
        e.observe(Observed("a", NOW - 0.4, 0.0, 0, 0, 0), NOW - 0.4)
        e.observe(Observed("a", NOW, 0.5, 1, 0, 9), NOW)
        assert (asked(e, 60), asked(e, 40)) == (declines, None)


def gate_closed():
    e = holding(95)
    e.advance(NOW)
    return e


def engine_waits():
    e = holding(10)
    for second in (0.2, 0.4):
        e.observe(Observed("a", NOW + second, None, 1, 9, int(second * 10), 0), NOW + second)
    return e


def backlogged():
    """A prompt of 160 tokens that waits in an engine which begins with 100 tokens a second."""
    e = holding(10)
    waits = e.reserve(request(10), NOW)
    for tenth in range(1, 16):
        e.ledger.begins.pressed(NOW + tenth / 10)
        e.ledger.begins.completed(10, NOW + tenth / 10)
    e.observe(Observed("a", NOW + 1.5, None, 1, 1, 5, 0), NOW + 1.5)
    assert waits.reported == 0
    return e


def cold_beside_a_warm_one():
    e = holding(10, seen=False)
    e.all_cold = False
    return e


def failing_beside_a_sound_one():
    e = holding(10)
    e.beside_sound = True
    for _ in range(TUNING.failing_after):
        e.note_failure(NOW)
    return e


def over_its_share():
    asking = request(1)
    asking.over_share = 40.0
    return endpoint(Policy(kv_shares={"a": 0.5})), asking


def kept_for_others(*, spare):
    asking = request(30)
    asking.spare = spare * BLOCK
    return holding(50), asking


def places_kept(*, spare, running, copies=1, limit=32, whole=False):
    asking = request(copies=copies)
    asking.spare_places, asking.as_a_whole = spare, whole
    e = holding(1, max_num_seqs=limit, kv_blocks=None)
    for _ in range(running - 1):
        e.reserve(request(), NOW)
    return e, asking


SAY_NO = {
    "kv_share": over_its_share,
    "busy": lambda: ((e := holding(10), e.note_busy(NOW))[0], request()),
    "failing": lambda: (failing_beside_a_sound_one(), request()),
    "sequences": lambda: (holding(10, max_num_seqs=1), request()),
    "cold": lambda: (cold_beside_a_warm_one(), request()),
    "gate": lambda: (gate_closed(), request()),
    "engine_waiting": lambda: (engine_waits(), request()),
    "engine_backlog": lambda: (backlogged(), request()),
    "sequence_share": lambda: places_kept(spare=1, running=31),
    "prefill": lambda: (holding(30, seen=False), request(10)),
    "kv": lambda: (holding(50), request(45)),
    "forecast": lambda: (holding(50, max_tokens=BLOCK * 45), request(5, max_tokens=BLOCK * 45)),
    "share": lambda: kept_for_others(spare=20),
}
"""For each rule an endpoint and a request that it declines by this rule."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_first_that_says_no_is_told(rule):
    assert declining(*SAY_NO[rule.name]()) == rule.name


def test_a_flow_that_has_its_share_may_fill_what_is_not_kept_for_others():
    assert declining(*kept_for_others(spare=10)) is None


def test_a_flow_that_has_its_share_may_use_the_places_that_are_not_kept_for_others():
    assert declining(*places_kept(spare=1, running=30)) is None
    assert declining(*places_kept(spare=20, running=29)) is None  # a sixteenth of 32 are kept at most
    assert declining(*places_kept(spare=20, running=30)) == "sequence_share"
    assert declining(*places_kept(spare=1, running=3, limit=4)) is None


def test_a_group_begins_with_one_place_more_than_is_kept_unless_it_may_begin_only_as_a_whole():
    """Those without a place would wait in the engine, and take each that becomes free before who comes later."""
    assert declining(*places_kept(spare=1, running=29, copies=64)) is None
    assert declining(*places_kept(spare=1, running=20, copies=11, whole=True)) is None
    assert declining(*places_kept(spare=1, running=20, copies=12, whole=True)) == "sequence_share"


def test_a_peak_that_is_too_high_already_keeps_out_only_what_raises_it():
    """What ends before is none of its causes: until the long answers had ended, nothing was admitted."""
    e = endpoint()
    for _ in range(5):
        e.ledger.progress(e.reserve(request(5, max_tokens=20 * BLOCK), NOW), 1, NOW)
    e.advance(NOW)
    e.refresh_forecast(NOW)
    assert e.forecast(NOW) > 100
    assert asked(e, 5, max_tokens=BLOCK) is None
    assert asked(e, 5, max_tokens=20 * BLOCK) == "forecast"
    assert asked(e, 20, max_tokens=19 * BLOCK) == "forecast"  # it would be over the limit before its end


def test_where_the_size_of_the_cache_is_unknown_no_rule_of_it_is_asked():
    assert asked(holding(50, kv_blocks=None), 99) is None
    assert tokens_to_free(holding(50, kv_blocks=None), request(99), NOW) == 0.0


def test_what_must_become_free_is_the_most_that_a_rule_that_frees_lacks():
    e = holding(50)
    assert tokens_to_free(e, request(40), NOW) == 0.0
    assert tokens_to_free(e, request(45), NOW) == pytest.approx(5 * BLOCK)


def test_an_endpoint_is_closed_by_what_holds_for_every_request():
    assert closed_by(holding(50), NOW) == ()
    assert [rule.name for rule in closed_by(gate_closed(), NOW)] == ["gate"]
    assert [rule.name for rule in closed_by(holding(10, max_num_seqs=1), NOW)] == ["sequences"]
    assert [rule.name for rule in closed_by(holding(33, seen=False), NOW)] == ["prefill"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_endpoint_is_shut_by_a_rule_that_closes_it_and_lets_nobody_be_offered_next(rule):
    e, _ = SAY_NO[rule.name]()
    assert all_shut([e]) is (rule.closes and rule.after is Next.NOBODY)


def test_endpoints_are_all_shut_if_none_is_open():
    full = holding(10, max_num_seqs=1)
    assert all_shut([])
    assert all_shut([full, holding(20, max_num_seqs=1)])
    assert not all_shut([full, holding(10)])
    assert not all_shut([holding(10), full])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_only_what_progress_and_time_cannot_open_stays_shut(rule):
    e, _ = SAY_NO[rule.name]()
    e.advance(NOW)
    until = all_closed_until([e], NOW)
    assert (until > NOW) is rule.lasts
    assert rule.name != "busy" or until == e.gate.busy_until


def test_progress_may_open_where_aborted_requests_hold_what_is_missing():
    full = holding(10, max_num_seqs=1)
    (reservation,) = full.ledger
    full.release(reservation, None, NOW, aborted=True)
    full.advance(NOW)
    assert all_closed_until([full], NOW) == NOW


def test_an_idle_endpoint_is_shut_only_while_it_is_busy():
    e = endpoint(max_num_seqs=0)
    assert not all_shut([e])
    e.note_busy(NOW)
    assert all_shut([e])


def test_what_would_take_its_flow_over_its_share_is_refused_by_every_endpoint_even_an_idle_one():
    shared_out = Policy(kv_shares={"x": 0.5})
    asking = request()
    asking.over_share = 40.0
    named = {rule.name: rule for rule in RULES}
    for e in (endpoint(shared_out), holding(10, max_num_seqs=1, policy=shared_out)):
        assert declining(e, asking) == "kv_share"
        assert shortage_of(named["kv_share"], e, asking, NOW) == 2.5


def test_whoever_might_fit_is_asked_next():
    by_name = {rule.name: rule for rule in RULES}
    assert next_in_line([]) is Next.NOBODY
    e = endpoint()
    for names, after in (
        (("busy", "sequences"), Next.NOBODY),
        (("busy", "kv"), Next.SMALLER),
        (("kv", "share"), Next.ITS_BAND),
        (("kv", "kv_share"), Next.OTHER_FLOWS),
    ):
        assert next_in_line([(e, by_name[name]) for name in names]) is after
