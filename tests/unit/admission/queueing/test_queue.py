from math import inf

import pytest

from gateway.admission.placing.request import Charge
from gateway.admission.policy import Band
from gateway.admission.queueing.queue import MAX_ASIDE, MAX_IDLE_BANDS, OfferResult, Queue
from gateway.admission.tuning import TUNING
from tests.fakes.waiting import waiting

TAKEN, NO_ROOM, CLOSED = OfferResult.TAKEN, OfferResult.NO_ROOM, OfferResult.CLOSED


class Row:
    """A queue, and what was put into it."""

    def __init__(self, bands=None, weights=None, max_passes=2):
        self.queue = Queue(bands=bands or {}, weights=weights or {}, max_passes=max_passes)
        self.requests = {}

    def join(self, name, lane=0, **of):
        request = self.requests[name] = waiting(name, **of)
        self.queue.push(request, (lane, frozenset(), None, None))
        return request

    def join_both(self, count):
        """So many each of the urgent band, from 1 on, and of band 1, from 101 on."""
        for number in range(1, count + 1):
            self.join(number, cost=10.0)
            self.join(100 + number, band=1, cost=10.0)

    def leave(self, name):
        self.queue.remove(self.requests[name])

    def come_back(self, name, lane=0):
        request = self.requests[name]
        self.queue.settle(request, Charge(0.0), 0.0, inf)
        self.queue.push(request, (lane, frozenset(), None, None))

    def asked(self, answers=lambda request: CLOSED):
        """Who is asked; whom `answers` takes goes."""
        names = []

        def accept(request):
            names.append(request.arrival.request)
            answer = answers(request)
            if answer is TAKEN:
                self.queue.remove(request)
                self.queue.settle(request, self.queue.charge(request), request.cost, inf)  # it ends at once
            return answer

        self.queue.offer(accept)
        return names

    def go(self, count):
        """The next so many that go."""
        names = []

        def answers(request):
            if len(names) == count:
                return CLOSED
            names.append(request.arrival.request)
            return TAKEN

        self.asked(answers)
        return names

    def drain(self):
        return self.go(self.queue.depth)


@pytest.fixture
def row():
    return Row()


def takes(*names):
    return lambda request: TAKEN if request.arrival.request in names else CLOSED


# One flow


def test_first_in_first_out(row):
    for name in (3, 1, 2):
        row.join(name)
    assert row.drain() == [3, 1, 2]
    assert row.queue.depth == row.queue.cost == row.queue.flows == 0
    assert row.queue.bands == ()


def test_who_leaves_is_not_asked(row):
    for name in range(6):
        row.join(name, body_bytes=10, cost=2.0)
    for name in (0, 2, 5):
        row.leave(name)
    assert (row.queue.depth, row.queue.bytes, row.queue.cost) == (3, 30, 6.0)
    assert row.drain() == [1, 3, 4]


def test_who_comes_back_has_the_turn_it_had(row):
    for name in range(4):
        row.join(name)
    assert row.go(2) == [0, 1]
    row.come_back(1)
    row.come_back(0)
    assert row.drain() == [0, 1, 2, 3]


def test_who_comes_back_between_others_has_the_turn_it_had(row):
    for name in range(6):
        row.join(name)
    assert row.go(3) == [0, 1, 2]
    for name in (0, 2, 1):
        row.come_back(name)
    assert row.drain() == [0, 1, 2, 3, 4, 5]


def test_who_comes_back_at_once_is_there_once(row):
    row.join(1)
    row.join(2)
    for _ in range(5):
        assert row.asked(takes(1)) == [1, 2]
        row.come_back(1)
    assert [r.arrival.request for r in row.queue] == [1, 2]
    assert row.queue.depth == 2


def test_fractions_of_tokens_leave_nothing_behind(row):
    for name, cost in enumerate((0.1, 0.2, 0.3)):
        row.join(name, cost=cost)
    row.drain()
    row.join(9, cost=1e-20)
    assert row.queue.cost == 1e-20


# Lanes


def test_a_refused_head_ends_its_lane_and_no_other(row):
    row.join(1, lane=0)
    row.join(2, lane=0)
    row.join(3, lane=7)
    assert row.asked(takes(3)) == [1, 3]


def test_lanes_are_merged_in_order(row):
    for name, lane in [(1, 0), (2, 7), (3, 0), (4, 9), (5, 7)]:
        row.join(name, lane=lane)
    assert row.drain() == [1, 2, 3, 4, 5]


def test_service_in_one_lane_counts_in_another(row):
    for name in range(4):
        row.join(name, lane=1, flow="a")
    row.join(10, lane=2, flow="a")
    row.join(11, lane=2, flow="b")
    assert row.go(1) == [0]
    assert row.asked() == [11, 1]


def test_new_lanes_keep_order_bytes_and_depth(row):
    for name in range(6):
        row.join(name, lane=name % 2, band=name // 3, body_bytes=name, cost=2.0)
    row.queue.relane(lambda request: (request.arrival.request % 3, frozenset(), None, None))
    assert (row.queue.depth, row.queue.bytes, row.queue.cost) == (6, 15, 12.0)
    assert row.drain() == [0, 1, 2, 3, 4, 5]


# Flows


def test_flows_take_turns_by_the_service_they_got(row):
    for name in range(6):
        row.join(name, flow="small", cost=10.0)
    for name in range(10, 13):
        row.join(name, flow="large", cost=20.0)
    assert row.drain() == [0, 10, 1, 2, 11, 3, 4, 12, 5]


def test_a_weight_is_worth_as_much_more_service():
    row = Row(weights={"heavy": 3.0})
    for name in range(40):
        row.join(name, flow="heavy" if name % 2 else "light")
    assert sum(name % 2 for name in row.go(20)) == 15


def test_a_quiet_flow_goes_before_a_backlog(row):
    for name in range(100):
        row.join(name, flow="noisy")
    row.go(20)
    row.join(500, flow="quiet")
    assert 500 in row.go(2)


def test_what_was_really_used_counts(row):
    for name in range(10):
        row.join(name, flow="modest" if name % 2 else "greedy", cost=10.0)
    row.go(2)
    row.queue.settle(row.requests[0], Charge(0.0), 30.0, inf)
    assert row.go(3) == [3, 5, 2]


def test_a_refund_brings_a_flow_forward(row):
    for name in range(8):
        row.join(name, flow=f"f{name % 4}", cost=10.0)
    row.go(4)
    row.queue.settle(row.requests[3], Charge(0.0), 5.0, inf)
    assert row.drain() == [7, 4, 5, 6]


def test_flows_of_one_request_each_go_in_order_of_arrival(row):
    for name in range(20):
        row.join(name, flow=f"f{name}")
    assert row.go(10) == list(range(10))
    for name in range(20, 30):
        row.join(name, flow=f"f{name}")
    assert row.drain() == list(range(10, 30))


# Bands


def test_lower_bands_first(row):
    row.join(1, band=5)
    row.join(2, band=-1)
    row.join(3, band=5)
    assert row.queue.bands == (-1, 5)
    assert [row.queue.depth_of(band) for band in (-1, 0, 5)] == [1, 0, 2]
    assert [row.queue.waiting(flow) for flow in ("", "nobody")] == [3, 0]
    assert row.drain() == [2, 1, 3]


def test_a_reserved_share_is_given():
    row = Row(bands={1: Band(reserved=0.25)})
    for name in range(100):
        row.join(name, band=name % 2)
    assert sum(name % 2 for name in row.go(41)) == 10


def test_a_band_without_a_share_waits_long_but_not_for_ever(row):
    row.join(-1, band=9, cost=1.0)
    for name in range(100):
        row.join(name, band=0, cost=1.0)
    assert row.drain().index(-1) == 50


def test_nobody_is_owed_for_the_time_nobody_waited():
    row = Row(bands={1: Band(reserved=0.5)})
    for name in range(100):
        row.join(name, band=0)
    row.go(50)
    for name in range(100, 110):
        row.join(name, band=1)
    assert [name >= 100 for name in row.go(6)] == [False, False, True, False, True, False]


@pytest.mark.parametrize("shares", [(0.6, 0.6, 0.6), (0.9, 0.5, 0.4), (0.4, 0.6, 0.9)])
def test_of_more_than_there_is_each_band_gets_a_part(shares):
    row = Row(bands={band: Band(reserved=share) for band, share in enumerate(shares, 1)})
    for name in range(800):
        row.join(name, band=name % 4, cost=1.0 + 9.0 * (name % 4 == 3))
    went = [name % 4 for name in row.go(150)]
    assert all(went[50:].count(band) >= 5 for band in (1, 2, 3))


@pytest.mark.parametrize("used", [0.0, 5000.0])
def test_a_band_is_owed_its_share_of_what_requests_took_not_of_what_was_expected(used):
    """It begins to wait while a large request is in flight, which leaves early."""
    row = Row(bands={1: Band(reserved=0.5)})
    large = row.join(0, cost=5000.0)
    row.leave(0)
    charge = row.queue.charge(large)
    row.join_both(20)
    row.queue.settle(large, charge, used, inf)
    went = row.go(20)
    assert sum(name > 100 for name in went) == (13 if used else 9)


def one_in_flight_of_a_band():
    """It was owed to its band. Requests of this and of an urgent one wait."""
    row = Row(bands={1: Band(reserved=0.5)})
    request = row.join(0, cost=10.0, band=1)
    row.leave(0)
    row.join_both(30)
    return row, request, Charge(1.0)


@pytest.mark.parametrize(("most", "of_band"), [(inf, 0), (100.0, 4)])
def test_a_band_pays_while_its_requests_run_for_what_they_have_had_beyond_their_cost(most, of_band):
    row, long, charge = one_in_flight_of_a_band()
    row.queue.accrue(long, charge, 10.0, most)
    row.queue.accrue(long, charge, 510.0, most)
    assert sum(name > 100 for name in row.go(20)) == of_band
    row.queue.settle(long, charge, 510.0, most)
    assert charge.counted == 510.0


@pytest.mark.parametrize("so_far", [[], [510.0], [10.0, 300.0, 510.0]])
@pytest.mark.parametrize("most", [inf, 100.0])
def test_what_was_counted_while_it_ran_and_not_taken_in_the_end_is_as_if_it_had_not_been(so_far, most):
    row, failed, charge = one_in_flight_of_a_band()
    for service in so_far:
        row.queue.accrue(failed, charge, service, most)
    row.queue.settle(failed, charge, 10.0, most)
    assert row.queue._served == 10.0
    assert sum(name > 100 for name in row.go(20)) == 10


def test_no_band_waits_for_what_another_did_not_have_in_the_end():
    """The long answers of an engine that crashes: a band that began to wait meanwhile had nothing for minutes."""
    row = Row(bands={1: Band(reserved=0.5)})
    failed = row.join(0, cost=10.0)
    row.leave(0)
    charge = row.queue.charge(failed)
    row.queue.accrue(failed, charge, 5000.0, inf)
    row.join_both(20)
    row.queue.settle(failed, charge, 10.0, inf)
    assert sum(name > 100 for name in row.go(20)) == 9


def test_nor_does_its_own_band_that_was_not_owed_it():
    """It went past an empty queue, as others of its band since."""
    row = Row(bands={1: Band(reserved=0.5)})
    failed, later = waiting(0, cost=10.0, band=1), waiting(1, cost=10.0, band=1)
    row.queue.bypass(failed)
    charge = row.queue.charge(failed)
    row.queue.accrue(failed, charge, 5000.0, inf)
    row.queue.bypass(later)
    row.queue.charge(later)
    row.join_both(20)
    row.queue.settle(failed, charge, 10.0, inf)
    assert sum(name > 100 for name in row.go(20)) == 9


def test_what_its_own_band_was_owed_is_taken_back_once():
    row, failed, charge = one_in_flight_of_a_band()
    running, other = row.join(1000, cost=10.0, band=1), Charge(1.0)
    row.leave(1000)
    row.queue.accrue(failed, charge, 510.0, inf)
    row.queue.accrue(running, other, 60.0, inf)
    row.queue.settle(failed, charge, 10.0, inf)
    assert sum(name > 100 for name in row.go(20)) == 8, "it waits for what the other took"


def test_bands_without_anybody_are_forgotten_in_the_end(row):
    for band in range(3 * MAX_IDLE_BANDS):
        row.join(band, band=band)
        row.go(1)
    assert len(row.queue._bands) <= MAX_IDLE_BANDS
    row.queue.charge(row.requests[0])  # late, of a band that is forgotten
    row.queue.settle(row.requests[0], Charge(0.0), 5.0, inf)
    assert row.queue.ahead(0, "").same == 0


# Passing


def test_smaller_requests_are_backfilled_before_a_head_that_does_not_fit(row):
    row.join(1, size=9)
    for name, size in [(2, 9), (3, 4), (4, 5)]:
        row.join(name, size=size)
    assert row.asked(lambda r: NO_ROOM if r.size > 4 else TAKEN) == [1, 3, 4]
    assert row.requests[1].backfilled == 1
    assert [r.arrival.request for r in row.queue] == [1, 2, 4]


def test_at_most_max_passes_requests_are_backfilled_before_a_head(row):
    head = row.join(1, size=9)
    for name in range(2, 9):
        row.join(name, size=1)
    too_large = lambda r: NO_ROOM if r.size == 9 else TAKEN  # noqa: E731
    assert row.asked(too_large) == [1, 2, 3]
    assert head.backfilled == 2
    assert row.asked(too_large) == [1]
    assert row.drain() == [1, 4, 5, 6, 7, 8]


def test_few_are_asked_behind_a_head_that_does_not_fit(row):
    row.join(1, size=9)
    for name in range(2, 100):
        row.join(name, size=1, flow=f"f{name % 7}")
    assert len(row.asked(lambda r: NO_ROOM)) == 5


def test_nothing_is_backfilled_where_no_request_could_go(row):
    row.join(1, size=9)
    row.join(2, size=1)
    assert row.asked() == [1]


def test_backfill_ends_where_all_endpoints_are_closed(row):
    row.join(1, size=9)
    row.join(2, size=1)
    row.join(3, size=1)
    assert row.asked(lambda r: NO_ROOM if r.size == 9 else CLOSED) == [1, 2]


def test_backfills_are_offered_in_the_order_of_fairness(row):
    row.join(1, size=9, flow="a", cost=10.0)
    for name in (2, 3):
        row.join(name, flow="a", cost=10.0)
    for name in (4, 5):
        row.join(name, flow="b", cost=4.0)
    assert row.asked(lambda r: NO_ROOM) == [1, 4, 5, 2, 3]


def test_a_backfilled_request_is_charged():
    row = Row(max_passes=1)
    row.join(1, size=9, flow="a", cost=5.0)
    row.join(2, flow="b", cost=50.0)
    row.join(3, flow="b", cost=50.0)
    row.join(4, flow="a", cost=5.0)
    assert row.asked(lambda r: NO_ROOM if r.size == 9 else TAKEN) == [1, 2]
    assert row.drain() == [1, 4, 3]


def test_the_smallest_backfills_are_offered_first(row):
    for name, size in enumerate((9, 5, 3, 8, 1, 4)):
        row.join(name, size=size)
    assert row.asked(lambda r: NO_ROOM) == [0, 4, 2, 5, 1]


# A flow that is throttled


def holds(*flows, otherwise=NO_ROOM):
    return lambda request: OfferResult.NOT_ITS_FLOW if request.arrival.flow in flows else otherwise


def test_one_request_of_each_flow_that_is_throttled_is_asked_each_time(row):
    for name in range(30):
        row.join(name, flow="abc"[name % 3])
    assert row.asked(holds(*"abc")) == [0, 1, 2]
    assert row.asked(holds(*"abc")) == [0, 1, 2]
    assert row.drain() == list(range(30))


def test_the_head_of_the_next_flow_has_the_rights_of_a_head(row):
    row.join(0, flow="a")
    large = row.join(1, size=9, flow="b")
    for name in range(2, 7):
        row.join(name, flow="c")
    throttled = lambda r: OfferResult.NOT_ITS_FLOW if r.arrival.request == 0 else NO_ROOM if r is large else TAKEN  # noqa: E731
    assert row.asked(throttled) == [0, 1, 2, 3]
    assert large.backfilled == row.queue._max_passes == 2
    assert row.asked(throttled) == [0, 1]
    assert not row.queue.may_go(row.join(7, flow="c"))


def test_a_flow_that_is_throttled_in_one_lane_goes_in_another(row):
    for name, lane in [(1, 0), (2, 7), (3, 7)]:
        row.join(name, lane=lane, flow="a")
    assert row.asked(lambda r: OfferResult.NOT_ITS_FLOW if r.arrival.request == 1 else TAKEN) == [1, 2, 3]


def test_the_lanes_of_less_urgent_bands_are_asked_too(row):
    row.join(1, flow="a")
    row.join(2, flow="b", band=1)
    assert row.asked(holds("a", otherwise=TAKEN)) == [1, 2]


def test_a_lane_ends_when_very_many_flows_are_throttled(row):
    for name in range(2 * MAX_ASIDE):
        row.join(name, flow=f"f{name}")
    assert len(row.asked(lambda r: OfferResult.NOT_ITS_FLOW)) == MAX_ASIDE + 1


def test_very_many_throttled_flows_keep_no_other_from_its_turn(row):
    for name in range(2 * MAX_ASIDE + 1):
        row.join(name, flow=f"f{name}")
    row.join(1000, flow="free")
    throttled = lambda r: TAKEN if r.arrival.flow == "free" else OfferResult.NOT_ITS_FLOW  # noqa: E731
    first, *later = [row.asked(throttled) for _ in range(8)]
    assert len(first) == MAX_ASIDE + 1
    assert [1000 in names for names in later] == [False, True, *[False] * 5]
    assert all(len(names) <= MAX_ASIDE + 1 for names in later)
    assert {name for names in later[2:] for name in names} == {*range(2 * MAX_ASIDE + 1)}, "all are asked again"
    row.join(1001, flow="free")
    assert 1001 in row.asked(throttled)


def test_a_newcomer_of_another_flow_may_go_at_once(row):
    for name in range(30):
        row.join(name, flow="a")
    row.asked(holds("a"))
    assert not row.queue.may_go(row.join(30, flow="a"))
    assert row.queue.may_go(row.join(31, flow="b"))


def test_a_newcomer_of_that_flow_is_not_backfilled_before_the_head_of_another(row):
    row.join(1, flow="a")
    row.join(2, flow="b", size=9)
    row.asked(holds("a"))
    assert not row.queue.may_backfill(row.join(3, flow="a"))
    assert row.queue.may_backfill(row.join(4, flow="c"))


def test_who_comes_back_for_the_first_turn_of_that_flow_may_go(row):
    row.join(0, flow="a")
    row.join(1, flow="a")
    assert row.go(1) == [0]
    row.asked(holds("a"))
    row.come_back(0)
    assert row.queue.may_go(row.requests[0])


def test_when_the_only_request_of_that_flow_leaves_nothing_of_it_stays(row):
    row.join(1, flow="a")
    row.join(2, flow="b")
    row.asked(holds("a"))
    row.leave(1)
    row.join(3, flow="a")
    assert row.drain() == [2, 3]


def test_what_is_throttled_is_not_ahead_of_other_flows(row):
    for name in range(10):
        row.join(name, flow="a", cost=10.0)
    row.asked(holds("a"))
    assert row.queue.ahead(0, "b", (0, frozenset(), None, None)).same == row.queue.ahead(1, "b").urgent == 0.0
    assert row.queue.ahead(0, "a", (0, frozenset(), None, None)).same == 100.0
    row.asked()
    assert row.queue.ahead(0, "b", (0, frozenset(), None, None)).same == 10.0


# Whether a newcomer changes anything


def test_a_newcomer_may_go_if_it_is_the_first(row):
    assert row.queue.may_go(row.join(1))
    assert not row.queue.may_go(row.join(2))
    assert row.queue.may_go(row.join(3, lane=5))
    assert row.queue.may_go(row.join(4, band=3))


def test_who_comes_back_may_go_before_those_who_came_later(row):
    for name in range(10):
        row.join(name, flow=f"f{name % 2}")
    row.go(1)
    row.come_back(0)
    assert row.queue.may_go(row.requests[0])


def test_a_smaller_new_request_may_be_backfilled_before_a_head_that_did_not_fit(row):
    head = row.join(1, size=9)
    assert not row.queue.may_go(row.join(2, size=1)), "nobody was asked yet"
    row.leave(2)
    row.asked(lambda r: NO_ROOM)
    assert row.queue.may_go(row.join(3, size=8))
    assert not row.queue.may_go(row.join(4, size=9))
    head.backfilled = 2
    assert not row.queue.may_go(row.join(5, size=8))


@pytest.mark.parametrize("flows", [1, 3])
def test_a_new_request_beyond_the_backfill_window_may_not_go(row, flows):
    row.join(1, size=9, flow="f1")
    for name in range(2, 1 + TUNING.backfill_window):
        row.join(name, size=1, flow=f"f{name % flows}")
    row.asked(lambda r: NO_ROOM)
    assert row.queue.may_go(row.join(98, size=1, flow="f0"))
    row.asked(lambda r: NO_ROOM)
    row.join(99, size=1, flow="f0")
    row.asked(lambda r: NO_ROOM)
    assert not row.queue.may_go(row.join(100, size=1, flow="f0"))


@pytest.mark.parametrize("flow", ["", "other"])
def test_a_request_outside_the_queue_may_be_backfilled_as_if_it_were_the_last_in_it(row, flow):
    row.join(1, size=9)
    for name in range(2, 1 + TUNING.backfill_window):
        row.join(name, size=1)
    row.asked(lambda r: NO_ROOM)
    small = row.join(90, size=8, flow=flow)
    may = row.queue.may_backfill(small)
    row.leave(90)
    assert row.queue.may_backfill(small) is may is True
    large = row.join(91, size=9, flow=flow)
    row.leave(91)
    assert not row.queue.may_backfill(large)


def test_nothing_may_be_backfilled_in_an_empty_queue(row):
    gone = row.join(1)
    assert not row.queue.may_backfill(gone)
    row.leave(1)
    assert not row.queue.may_backfill(gone)


def test_nobody_may_go_after_a_head_for_whom_all_is_closed(row):
    row.join(1, size=9)
    row.asked(lambda r: NO_ROOM)
    row.asked()
    assert not row.queue.may_go(row.join(2, size=1))


def test_flows_that_are_throttled_use_up_no_tries_for_backfill(row):
    head = row.join(1, size=9)
    for name in range(2, 2 + TUNING.backfill_tries):
        row.join(name, size=1, flow="throttled")
    row.join(20, size=2, flow="other")
    assert row.asked(lambda r: NO_ROOM if r is head else holds("throttled", otherwise=TAKEN)(r)) == [1, 2, 20]


# What is ahead


def test_what_is_ahead_of_a_newcomer(row):
    for name in range(10):
        row.join(name, flow="noisy", cost=10.0)
    row.join(20, band=-1, cost=7.0)
    row.join(21, band=3, cost=100.0)
    same = row.queue.ahead(0, "noisy", (0, frozenset(), None, None))
    assert (same.urgent, same.same, same.reserved, same.yielded) == (7.0, 100.0, 0.02, 0.02)
    assert row.queue.ahead(0, "quiet", (0, frozenset(), None, None)).same == 10.0
    assert row.queue.ahead(-1, "quiet").urgent == 0.0
    assert row.queue.ahead(9, "quiet").urgent == 207.0
    assert row.queue.ahead(9, "quiet").same == 0.0


def test_a_less_urgent_band_of_which_all_is_set_aside_gets_nothing(row):
    row.join(1, cost=10.0)
    row.join(2, band=1, flow="throttled")
    assert row.queue.ahead(0, "x", (0, frozenset(), None, None)).yielded == TUNING.starved_share
    row.asked(holds("throttled"))
    assert row.queue.ahead(0, "x", (0, frozenset(), None, None)).yielded == 0.0
    row.join(3, band=1)
    assert row.queue.ahead(0, "x", (0, frozenset(), None, None)).yielded == TUNING.starved_share


def test_service_until_a_turn_is_bounded_by_what_is_reserved():
    row = Row(bands={1: Band(reserved=0.5)})
    for name in range(100):
        row.join(name, cost=10.0)
    ahead = row.queue.ahead(1, "batch")
    assert (ahead.urgent, ahead.same) == (1000.0, 0.0)
    assert ahead.service(10.0) == 20.0
    row.join(200, band=1, cost=10.0)
    assert row.queue.ahead(0, "x", (0, frozenset(), None, None)).service(10.0) == 20.0
    assert row.queue.ahead(1, "x", (0, frozenset(), None, None)).service(10.0) == 40.0


# Deadlines


def test_the_first_deadline_whatever_the_band_and_lane(row):
    row.join(1, deadline=5.0, band=0)
    row.join(2, deadline=3.0, band=9, lane=4)
    assert row.queue.first_deadline().arrival.request == 2
    row.leave(2)
    assert row.queue.first_deadline().arrival.request == 1
    row.leave(1)
    assert row.queue.first_deadline() is None


def test_the_first_deadline_after_deadlines_changed(row):
    row.join(1, deadline=5.0)
    row.join(2, deadline=3.0)
    row.requests[1].deadline = 1.0
    row.queue.reschedule()
    assert row.queue.first_deadline().arrival.request == 1


# Memory


def heaps(row):
    lanes = [lane for band in row.queue._bands.values() for lane in band.lanes.values()]
    return [len(lane._heap) for lane in lanes], len(row.queue._deadlines)


def test_departures_leave_no_memory_behind(row):
    row.join(-1)
    for name in range(20_000):
        row.join(name, flow=f"f{name % 10_000}")
        row.leave(name)
        del row.requests[name]
    (lane,), deadlines = heaps(row)
    assert lane < 200
    assert deadlines < 200


def test_who_comes_and_goes_leaves_no_memory_behind(row):
    row.join(1, flow="a")
    other = row.join(2, flow="b")
    for _ in range(5000):
        row.asked(takes(1))
        row.come_back(1)
        row.queue.settle(other, Charge(0.0), other.cost - 1.0, inf)
        row.queue.settle(other, Charge(0.0), other.cost + 1.0, inf)
    (lane,), deadlines = heaps(row)
    assert lane < 200
    assert deadlines < 200
