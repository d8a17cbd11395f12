from gateway.admission.queueing.flow_fairness import MAX_IDLE_FLOWS, Fairness
from tests.fakes.waiting import waiting


def wait(fairness, flow, cost=10.0, least=None, top=None):
    request = waiting(1, flow=flow, cost=cost)
    return request, fairness.join(request, least, top)


def test_a_flow_is_charged_by_its_weight():
    fairness = Fairness({"heavy": 4.0})
    _, heavy = wait(fairness, "heavy")
    _, light = wait(fairness, "light")
    fairness.charge("heavy", 100.0)
    fairness.charge("light", 100.0)
    assert (heavy.counter, light.counter) == (25.0, 100.0)


def test_who_comes_from_idling_starts_where_the_others_stand():
    fairness = Fairness({})
    _, busy = wait(fairness, "busy")
    for _ in range(50):
        fairness.charge("busy", 10.0)
    _, new = wait(fairness, "new", least=busy.counter, top=busy.counter)
    assert new.counter == busy.counter == 500.0


def test_who_idles_saves_nothing_up():
    fairness = Fairness({})
    _, busy = wait(fairness, "busy")
    request, _ = wait(fairness, "idle")
    fairness.leave(request)
    for _ in range(50):
        fairness.charge("busy", 10.0)
    assert wait(fairness, "idle", least=busy.counter, top=busy.counter)[1].counter == busy.counter == 500.0


def test_nobody_starts_far_behind_those_of_its_own_lane():
    fairness = Fairness({})
    wait(fairness, "stuck", cost=10.0)
    _, new = wait(fairness, "new", least=0.0, top=1000.0)
    assert new.counter == 10.0


def test_virtual_time_does_not_drift_from_the_counters_of_the_flows():
    fairness = Fairness({})
    wait(fairness, "busy", cost=10.0)
    fairness.charge("idle", 400.0)  # what was charged before "busy" came is settled after
    assert wait(fairness, "first", least=0.0, top=0.0)[1].counter == 10.0
    fairness.charge("busy", 30.0)
    assert wait(fairness, "second", least=30.0, top=30.0)[1].counter == 30.0


def test_a_flow_does_not_shed_its_debt_by_idling_a_moment():
    fairness = Fairness({})
    _, other = wait(fairness, "other")
    greedy, flow = wait(fairness, "greedy")
    fairness.charge("greedy", 300.0)
    fairness.leave(greedy)
    debt = flow.counter
    assert wait(fairness, "greedy", least=other.counter, top=other.counter)[1].counter == debt


def test_a_debt_is_over_when_the_others_had_as_much():
    fairness = Fairness({})
    wait(fairness, "other")
    greedy, _ = wait(fairness, "greedy")
    fairness.charge("greedy", 300.0)
    fairness.leave(greedy)
    fairness.charge("other", 1000.0)
    assert wait(fairness, "greedy", least=1000.0, top=1000.0)[1].counter <= 1000.0 + 10.0


def test_it_does_not_matter_whether_who_goes_is_charged_before_or_after():
    counters = []
    for first in ("charge", "leave"):
        fairness = Fairness({})
        wait(fairness, "other")
        request, flow = wait(fairness, "flow")
        for step in (first, "leave" if first == "charge" else "charge"):
            fairness.charge("flow", 10.0) if step == "charge" else fairness.leave(request)
        counters.append((flow.counter, wait(fairness, "fresh", least=0.0, top=0.0)[1].counter))
    assert counters[0] == counters[1] == (10.0, 5.0)


def test_a_refund_is_no_hoard():
    fairness = Fairness({})
    wait(fairness, "big", cost=10.0)
    fairness.charge("big", 10_000.0)  # nobody else was there
    _, other = wait(fairness, "other", least=10_000.0, top=10_000.0)
    _, big = wait(fairness, "big")
    assert fairness.charge("big", -9_000.0)
    level = 10_000.0 - 4_500.0  # what each of two would have had
    assert big.counter == max(1_000.0, level - 10.0)
    assert other.counter == 10_000.0


def test_a_refund_to_an_idle_flow_gains_it_nothing():
    fairness = Fairness({})
    wait(fairness, "other")
    assert not fairness.charge("idle", -500.0)
    assert wait(fairness, "idle", least=0.0, top=0.0)[1].counter >= 0.0


def test_an_idle_flow_whose_request_took_more_is_in_debt():
    fairness = Fairness({})
    _, other = wait(fairness, "other")
    fairness.charge("idle", 400.0)
    assert wait(fairness, "idle", least=0.0, top=0.0)[1].counter == 400.0
    assert other.counter == 0.0


def test_new_flows_start_later_the_more_service_was_given():
    """Else an endless row of them would go before one that was charged."""
    fairness = Fairness({})
    _, flow = wait(fairness, "waits", cost=10.0)
    fairness.charge("waits", 20.0)
    started = []
    for number in range(20):
        request, fresh = wait(fairness, f"fresh{number}", least=min([flow.counter, *started[-1:]]), top=flow.counter)
        started.append(fresh.counter)
        fairness.charge(request.arrival.flow, 10.0)
        fairness.leave(request)
    assert started[-1] > 20.0


def test_idle_flows_are_forgotten_in_the_end():
    fairness = Fairness({})
    wait(fairness, "stays")
    for number in range(3 * MAX_IDLE_FLOWS):
        request, _ = wait(fairness, f"f{number}", least=0.0, top=0.0)
        fairness.leave(request)
        fairness.charge(request.arrival.flow, 10.0)
        fairness.charge(f"unknown{number}", 10.0)
    assert len(fairness._idle) <= MAX_IDLE_FLOWS


def test_a_debt_is_known_to_another_core():
    before, after = Fairness({"heavy": 4.0}), Fairness({"heavy": 4.0})
    for flow in ("heavy", "light", "next"):
        wait(before, flow)
    for flow, cost in (("heavy", 80.0), ("light", 50.0), ("next", 10.0)):
        before.charge(flow, cost)
    debts = dict(before.debts())
    assert debts == {"heavy": 10.0, "light": 40.0}
    for flow, debt in debts.items():
        after.recall(flow, debt)
    counters = {flow: wait(after, flow)[1].counter for flow in ("heavy", "light", "next")}
    assert counters == {"heavy": 10.0, "light": 40.0, "next": 0.0}
    after.recall("light", 99.0)
    assert after.active["light"].counter == 40.0


def test_who_is_not_ahead_has_no_debt():
    fairness = Fairness({})
    fairness.charge("alone", 50.0)
    request, _ = wait(fairness, "waits")
    assert list(fairness.debts()) == []
    fairness.leave(request)
    fairness.charge("waits", 30.0)
    assert [flow for flow, _ in fairness.debts()] in ([], ["waits"])
