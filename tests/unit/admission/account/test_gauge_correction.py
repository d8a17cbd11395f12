import pytest

from gateway.admission.account.gauge_correction import Account, Correction, History


def corrected(*samples, poll=1.0, exact=False):
    """A correction that has seen samples `(time, blocks by the gauge, confirmed, held)`."""
    correction = Correction(poll, exact=exact)
    for time, blocks, confirmed, held in samples:
        correction.sample(blocks, Account(confirmed, held, 0), time, waiting=False)
    return correction


class TestHistory:
    def test_it_tells_the_bounds_since_a_time(self):
        history = History(10.0)
        for time, confirmed, held, unconfirmed in [(1, 5, 9, 2), (2, 3, 7, 1), (3, 6, 8, 0)]:
            history.record(time, confirmed, held, unconfirmed)
        assert history.since(2.5) == Account(3, 8, 1)  # what held at 2.5, and after
        assert history.since(3.0) == Account(6, 8, 0)
        assert history.since(1.5) == Account(3, 9, 2)

    def test_before_its_first_entry_nothing_was_held(self):
        history = History(10.0)
        history.record(5.0, 3, 4, 1)
        assert history.since(1.0) == Account(0, 4, 1)

    def test_it_forgets_what_is_older_than_its_span(self):
        history = History(10.0)
        for step in range(100_000):
            history.record(step * 0.005, step, step, 0)
        assert len(history._accounts) <= 1002

    def test_entries_close_together_are_one(self):
        history = History(10.0)
        history.record(1.0, 1, 1, 0)
        history.record(1.001, 2, 2, 0)
        assert history.since(1.0) == Account(2, 2, 0)


class TestCorrection:
    def test_between_confirmed_and_all_nothing_differs(self):
        assert corrected((0, 15, 10, 20)).read(0) == 0

    def test_above_all_that_we_hold_it_is_traffic_around_us(self):
        assert corrected((0, 25, 10, 20)).read(0) == 5

    def test_below_what_is_confirmed_it_is_sharing_that_we_cannot_see(self):
        assert corrected((0, 4, 10, 20)).read(0) == -6

    def test_what_is_missing_while_requests_wait_in_the_engine_is_no_sharing(self):
        correction = Correction(1.0)
        correction.sample(4, Account(10, 20, 0), 0.0, waiting=True)
        assert correction.read(0.0) == 0

    def test_one_odd_sample_is_damped(self):
        correction = corrected((0, 15, 10, 20), (1, 15, 10, 20), (2, 80, 10, 20))
        assert 0 < correction.read(2) < 0.5 * 60

    def test_an_exact_gauge_is_not_damped_and_gives_nothing_away(self):
        samples = [(0, 15, 10, 20), (1, 80, 20, 20), (2, 30, 20, 20), (3, 4, 10, 20)]
        read = [corrected(*samples[:seen], exact=True).read(seen - 1) for seen in range(1, 5)]
        assert read == [0, 60, 10, 0]

    def test_an_exact_gauge_that_has_yet_to_show_a_request_of_ours_takes_nothing_from_others(self):
        samples = [(0, 60, 0, 0), (1, 60, 0, 30), (2, 90, 0, 30), (3, 70, 30, 30)]
        read = [corrected(*samples[:seen], exact=True).read(seen - 1) for seen in range(1, 5)]
        assert read == [60, 60, 60, 40]

    def test_a_lasting_difference_comes_through(self):
        samples = [(t, 15, 10, 20) for t in range(3)] + [(t, 80, 10, 20) for t in range(3, 20)]
        assert corrected(*samples).read(19) == pytest.approx(60, rel=0.01)

    def test_without_fresh_samples_it_fades_to_nothing(self):
        correction = corrected((0, 50, 10, 20), poll=2.0)
        assert correction.read(6.0) == 30
        assert correction.read(9.0) == pytest.approx(15)
        assert correction.read(12.0) == 0
        assert correction.read(100.0) == 0

    def test_a_reset_forgets(self):
        correction = corrected((0, 50, 10, 20))
        correction.reset()
        assert correction.read(0) == 0
