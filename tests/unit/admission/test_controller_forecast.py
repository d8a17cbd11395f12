"""The product, as scripts: the forecast, prefixes that are held once, and smaller ones that pass."""

from itertools import permutations

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Tick
from gateway.admission.policy import Bounds
from tests.unit.admission.playbook import aborted, arrived, at, done, nothing, progress, scrape, up

FORECASTS = [Bounds.FORECAST, Bounds.BOTH]
GROWS_20 = 1 + 20 * 16
"""max_tokens of a request that, cold, is expected to grow by 20 blocks after its first token."""
SHARED = ((64, 1), (16 * 76, 2))
"""A prefix of 76 blocks."""


def taught(p, *lengths, first=1000, max_tokens=500):
    """Requests came, had so many tokens each, and left."""
    for request, length in enumerate(lengths, first):
        p >> at(p.now + 1) >> arrived(request, max_tokens=max_tokens) << Dispatch(request, "a")
        p >> done(request, length)
    return p >> at(p.now + 1)


class TestForecast:
    @pytest.mark.parametrize("bounds", FORECASTS)
    def test_a_request_that_would_outgrow_the_cache_waits_although_it_fits_now(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100) >> arrived(1, blocks=50, max_tokens=GROWS_20) << Dispatch(1, "a")
        p >> progress(r1=1) >> arrived(2, blocks=20, max_tokens=GROWS_20) << nothing  # 70 now, 110 then
        assert p.endpoint("a").closed_by == ()
        p >> done(1) << Dispatch(2, "a")

    def test_the_gate_alone_dispatches_a_request_that_would_outgrow_the_cache(self, play):
        p = play(bounds=Bounds.HYSTERESIS) >> up("a", blocks=100)
        p >> arrived(1, blocks=50, max_tokens=GROWS_20) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=20, max_tokens=GROWS_20) << Dispatch(2, "a")

    @pytest.mark.parametrize("bounds", FORECASTS)
    def test_an_early_end_makes_room_for_the_growth_of_another_request(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100) >> arrived(1, blocks=40, max_tokens=17) << Dispatch(1, "a")
        p >> progress(r1=1) >> at(1) >> arrived(2, blocks=30, max_tokens=1 + 30 * 16) << Dispatch(2, "a")  # 41 + 60

    @pytest.mark.parametrize("bounds", FORECASTS)
    def test_a_request_that_goes_on_as_long_makes_no_room(self, play, bounds):
        p = (
            play(bounds=bounds)
            >> up("a", blocks=100)
            >> arrived(1, blocks=30, max_tokens=1 + 20 * 16)
            << Dispatch(1, "a")
        )
        p >> progress(r1=1) >> at(1) >> arrived(2, blocks=30, max_tokens=1 + 30 * 16) << nothing  # 60 + 2 * 20

    def test_progress_brings_the_end_nearer_and_makes_room_at_last(self, play):
        p = play(bounds=Bounds.FORECAST) >> up("a", blocks=100) >> arrived(1, blocks=20, max_tokens=501)
        p << Dispatch(1, "a") >> progress(r1=1) >> arrived(2, blocks=20, max_tokens=1 + 30 * 16) << nothing
        p >> at(1) >> progress(r1=16) << nothing >> at(2) >> progress(r1=16 * 10) << Dispatch(2, "a")

    @pytest.mark.parametrize(
        ("bounds", "blocks", "goes"),
        [(Bounds.FORECAST, 16, True), (Bounds.FORECAST, 17, False), (Bounds.BOTH, 10, True), (Bounds.BOTH, 11, False)],
    )
    def test_without_the_fence_it_fills_the_cache_further(self, play, bounds, blocks, goes):
        p = play(bounds=bounds) >> up("a", blocks=100) >> arrived(1, blocks=80, max_tokens=1) << Dispatch(1, "a")
        p >> progress(r1=1) >> at(1) >> arrived(2, blocks=blocks, max_tokens=1)
        if goes:
            p << Dispatch(2, "a")
        p << nothing

    @pytest.mark.parametrize("bounds", FORECASTS)
    def test_nobody_is_refused_for_one_that_has_just_left(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100)
        for request in (1, 2):
            p >> arrived(request, blocks=20, max_tokens=GROWS_20) << Dispatch(request, "a")
            p >> progress(**{f"r{request}": 1})
        p >> at(1) >> arrived(3, blocks=1, max_tokens=1) << Dispatch(3, "a")  # with a forecast of now
        p >> at(1.01) >> done(1) >> arrived(4, blocks=20, max_tokens=GROWS_20) << Dispatch(4, "a")

    def test_without_the_fence_no_gate_closes(self, play):
        p = (
            play(bounds=Bounds.FORECAST)
            >> up("a", blocks=100)
            >> arrived(1, blocks=94, max_tokens=1)
            << Dispatch(1, "a")
        )
        p >> progress(r1=1) >> arrived(2, blocks=1, max_tokens=1) << Dispatch(2, "a")
        assert p.endpoint("a").gate_open

    def test_inside_the_fence_the_gate_still_closes(self, play):
        p = (
            play(bounds=Bounds.BOTH)
            >> up("a", blocks=100)
            >> arrived(1, blocks=85, max_tokens=1000)
            << Dispatch(1, "a")
        )
        p >> progress(r1=16 * 7)
        assert p.endpoint("a").closed_by == ("gate",)

    def test_cold_it_takes_nobody_at_max_tokens(self, play):
        p = play(bounds=Bounds.BOTH) >> up("a", blocks=100)
        for request in (1, 2):  # 10 blocks and at most 1024 tokens by the prior, not 4000
            p >> at(request) >> arrived(request, blocks=10, max_tokens=4000) << Dispatch(request, "a")
        p >> progress(r1=1, r2=1) >> at(3) >> arrived(3, blocks=10, max_tokens=4000) << nothing
        p >> at(4) >> done(1) << Dispatch(3, "a")

    @pytest.mark.parametrize("bounds", FORECASTS)
    @pytest.mark.parametrize(("length", "goes"), [(5, True), (400, False)])
    def test_predictions_follow_the_lengths_seen(self, play, bounds, length, goes):
        p = taught(play(bounds=bounds) >> up("a", blocks=100), *[length] * 30)
        p >> arrived(1, blocks=50, max_tokens=500) << Dispatch(1, "a") >> progress(r1=1)
        p >> at(p.now + 1) >> arrived(2, blocks=30, max_tokens=500)
        if goes:
            p << Dispatch(2, "a")
        p << nothing

    def test_a_length_that_a_failure_cut_short_teaches_nothing(self, play):
        p = play(bounds=Bounds.BOTH) >> up("a", blocks=100)
        for request in range(1000, 1030):
            p >> at(p.now + 2) >> arrived(request, max_tokens=500) << Dispatch(request, "a")
            p >> progress(**{f"r{request}": 5}) >> aborted(request)
        p >> at(p.now + 2) >> arrived(1, blocks=50, max_tokens=500) << Dispatch(1, "a") >> progress(r1=1)
        p >> at(p.now + 2) >> arrived(2, blocks=30, max_tokens=500) << nothing

    def test_a_request_that_outlives_its_prediction_is_predicted_again(self, play):
        p = taught(play(bounds=Bounds.BOTH) >> up("a", blocks=100), *[5] * 40, *[400] * 10)
        p >> arrived(1, blocks=30, max_tokens=500) << Dispatch(1, "a") >> progress(r1=1)
        p >> at(p.now + 1) >> arrived(2, blocks=30, max_tokens=500) << Dispatch(2, "a") >> progress(r1=20, r2=20)
        p >> at(p.now + 1) >> Tick()  # both are of the long kind: 62 + 2 * 23 blocks
        assert p.endpoint("a").forecast_usage > 1.0

    @pytest.mark.parametrize(("preemptions", "goes"), [(0, True), (3, False)])
    def test_an_engine_that_preempts_makes_it_more_cautious(self, play, preemptions, goes):
        p = taught(play(bounds=Bounds.BOTH) >> up("a", blocks=100), *[5] * 77, *[400] * 23)
        p >> arrived(1, blocks=10, max_tokens=500) << Dispatch(1, "a") >> progress(r1=1)
        p >> scrape("a", p.now, kv=0.1, running=1, waiting=0, tokens=0, preemptions=0) >> at(p.now + 1)
        p >> scrape("a", p.now, kv=0.1, running=1, waiting=0, tokens=2, preemptions=preemptions)
        p >> arrived(2, blocks=70, max_tokens=500)
        if goes:
            p << Dispatch(2, "a")
        p << nothing

    @pytest.mark.parametrize("bounds", FORECASTS)
    def test_what_others_use_of_the_engine_is_not_there_to_grow_into(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100) >> arrived(1, blocks=20, max_tokens=1) << Dispatch(1, "a")
        p >> progress(r1=1) >> scrape("a", 0.0, kv=0.2, running=1, waiting=0, tokens=0)
        for second in range(1, 12):
            p >> at(second) >> scrape("a", second, kv=0.5, running=5, waiting=0, tokens=second)
        p >> arrived(2, blocks=39, max_tokens=1 + 16 * 30) << nothing  # 89 now; 69 of its own then, and 30 of others
        p >> done(1) << Dispatch(2, "a")

    def test_every_sequence_of_a_group_grows(self, play):
        p = play(bounds=Bounds.BOTH) >> up("a", blocks=100) >> arrived(1, blocks=30, max_tokens=1) << Dispatch(1, "a")
        p >> progress(r1=1) >> arrived(2, 15, n=10, max_tokens=1 + 16 * 7) << nothing
        p >> arrived(3, 15, n=4, max_tokens=1 + 16 * 7) << nothing  # behind it
        p >> done(1) << Dispatch(2, "a") >> done(2) << Dispatch(3, "a")


class TestBackfill:
    def crowded(self, play, passes):
        """The head of the queue does not fit; 30 blocks are free."""
        p = play(max_passes=passes) >> up("a", blocks=100) >> arrived(1, blocks=60) << Dispatch(1, "a")
        return p >> progress(r1=1) >> arrived(2, blocks=60) << nothing

    def test_at_most_max_passes_smaller_requests_are_backfilled(self, play):
        p = self.crowded(play, 2)
        for request in (3, 4):
            p >> arrived(request, blocks=5) << Dispatch(request, "a") >> progress(**{f"r{request}": 1})
        p >> arrived(5, blocks=5) << nothing
        p >> done(3) << nothing >> done(4) << nothing
        p >> done(1) << Dispatch(2, "a") >> progress(r2=1) << Dispatch(5, "a")

    def test_waiting_requests_are_backfilled_once_they_fit(self, play):
        p = self.crowded(play, 2) >> arrived(3, blocks=29) << Dispatch(3, "a") >> progress(r3=1)
        p >> arrived(4, blocks=20) << nothing >> done(3) << Dispatch(4, "a")

    def test_each_head_has_its_own_count_of_backfills(self, play):
        p = self.crowded(play, 1) >> arrived(3, blocks=5) << Dispatch(3, "a") >> progress(r3=1)
        p >> arrived(4, blocks=60) << nothing >> done(1) << Dispatch(2, "a") >> progress(r2=1)
        p >> arrived(5, blocks=5) << Dispatch(5, "a") >> progress(r5=1) >> arrived(6, blocks=5) << nothing

    def test_nothing_is_backfilled_with_max_passes_of_zero(self, play):
        self.crowded(play, 0) >> arrived(3, blocks=5) << nothing

    def test_a_larger_request_is_not_backfilled_although_it_would_fit(self, play):
        p = play(bounds=Bounds.FORECAST, max_passes=8) >> up("a", blocks=100)
        p >> arrived(1, blocks=40, max_tokens=500) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=10, max_tokens=500) << nothing  # 50 + 62
        p >> arrived(3, blocks=11, max_tokens=1) << nothing
        p >> arrived(4, blocks=9, max_tokens=1) << Dispatch(4, "a")

    def test_nothing_is_backfilled_before_a_head_that_waits_for_a_sequence(self, play):
        p = play(max_passes=8) >> up("a", seqs=1) >> arrived(1, blocks=9) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=4) << nothing >> arrived(3, blocks=1) << nothing

    def test_nothing_is_backfilled_to_an_endpoint_short_of_sequences(self, play):
        p = play(max_passes=8) >> up("a", blocks=100) >> up("b", blocks=100, seqs=2)
        p >> arrived(1, blocks=75) << Dispatch(1, "a") >> progress(r1=1) >> arrived(2, n=2) << Dispatch(2, "b")
        p >> arrived(3, blocks=20) << nothing  # no room there, too many sequences here
        p >> arrived(4, blocks=16) << nothing >> arrived(5, blocks=15) << Dispatch(5, "a")

    def test_one_sequence_is_smaller_than_several_however_short_their_prompt(self, play):
        p = play(max_passes=8) >> up("a", blocks=100) >> arrived(1, blocks=60) << Dispatch(1, "a") >> progress(r1=1)
        p >> arrived(2, blocks=1, n=40) << nothing >> arrived(3, blocks=20) << Dispatch(3, "a")

    def test_only_its_own_lane_may_use_the_endpoint_that_it_waits_for(self, play):
        p = play(max_passes=8) >> up("big", blocks=100, length=2000) >> up("small", blocks=10, length=100)
        p >> arrived(1, blocks=60) << Dispatch(1, "big") >> progress(r1=1) >> arrived(2, blocks=60) << nothing
        p >> arrived(3, 90) << Dispatch(3, "small") >> arrived(4, 90) << nothing  # big has room
        p >> arrived(5, blocks=10) << Dispatch(5, "big")


class TestPrefixes:
    def sharing(self, request, blocks=80, prefix=SHARED):
        return arrived(request, blocks=blocks, max_tokens=1, prefix=prefix)

    @pytest.mark.parametrize("bounds", Bounds)
    def test_who_shares_fits_where_another_of_its_size_would_not(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100) >> self.sharing(1) << Dispatch(1, "a") >> progress(r1=1)
        p >> self.sharing(2) << Dispatch(2, "a") >> progress(r2=1)
        assert p.endpoint("a").effective_usage == pytest.approx(0.84)
        p >> self.sharing(3, prefix=()) << nothing

    @pytest.mark.parametrize("bounds", Bounds)
    def test_other_hashes_share_nothing(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100) >> self.sharing(1) << Dispatch(1, "a") >> progress(r1=1)
        p >> self.sharing(2, prefix=((64, 8), (16 * 76, 9))) << nothing

    @pytest.mark.parametrize("bounds", Bounds)
    def test_an_endpoint_without_a_prefix_cache_shares_nothing(self, play, bounds):
        p = play(bounds=bounds) >> up("a", blocks=100, shares_prefix=False) >> self.sharing(1) << Dispatch(1, "a")
        p >> progress(r1=1) >> self.sharing(2) << nothing

    @pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
    @pytest.mark.parametrize("ending", [done, aborted])
    def test_released_in_any_order_everything_is_given_back(self, play, order, ending):
        prefixes = {1: SHARED, 2: SHARED, 3: SHARED[:1]}
        p = play() >> up("a", blocks=100)
        for request, prefix in prefixes.items():
            p >> self.sharing(request, prefix=prefix, blocks=80 if prefix is SHARED else 6) << Dispatch(request, "a")
            p >> progress(**{f"r{request}": 1})
        left = {1, 2, 3}
        for second, request in enumerate(order, 1):
            p >> at(2 * second) >> ending(request) >> at(2 * second + 1) >> progress(r0=1) >> scrape("a", p.now)
            left.remove(request)
            longest = 76 if left & {1, 2} else 4 if left else 0
            own = sum(4 if of in {1, 2} else 2 for of in left)
            assert p.endpoint("a").effective_usage == pytest.approx((longest + own) / 100)
        ledger = p.controller._endpoints.get("a").ledger
        assert (ledger.held, ledger.used, ledger.saved_blocks, ledger.shared_tokens) == (0, 0, 0, 0)

    @pytest.mark.parametrize(("load", "goes_to"), [(20, "a"), (25, "b")])
    def test_it_goes_to_who_has_its_prefix_unless_that_is_too_much_fuller(self, play, load, goes_to):
        prefix = ((64, 1), (128, 2))
        p = play() >> up("a", blocks=100) >> up("b", blocks=100)
        p >> self.sharing(1, 10, prefix) << Dispatch(1, "a") >> done(1)
        p >> arrived(2, blocks=load, max_tokens=1) << Dispatch(2, "a") >> progress(r2=1)
        p >> self.sharing(3, 10, prefix) << Dispatch(3, goes_to)  # 128 of 159 tokens cached: worth 0.24

    def test_who_knows_nothing_of_it_is_not_preferred(self, play):
        p = play() >> up("a", blocks=100) >> up("b", blocks=100) >> self.sharing(1, 10) << Dispatch(1, "a")
        p >> progress(r1=1) >> self.sharing(2, 10, ((64, 8), (128, 9))) << Dispatch(2, "b")


def test_who_shares_with_one_that_ends_soon_needs_the_whole_prefix(play):
    """The forecast with a request is that after its dispatch: its prefix stays when the first holder has ended."""
    p = play(bounds=Bounds.FORECAST) >> up("a", blocks=100)
    p >> arrived(1, blocks=41, max_tokens=2, prefix=((16 * 40, 1),)) << Dispatch(1, "a") >> progress(r1=1)
    second = arrived(2, blocks=41, max_tokens=400, prefix=((16 * 40, 1),))
    predicted = p.controller.explain(second, p.now).candidates[0].forecast_with
    p >> second << Dispatch(2, "a") >> at(1) >> Tick()
    assert predicted >= p.controller.explain(arrived(3), p.now).candidates[0].forecast_without


class TestHoldsLimit:
    """An engine that fails everything when its cache runs out: a request holds its limit from its start."""

    @staticmethod
    def full(p):
        return p >> up("a", blocks=100, block=1, shares_prefix=False, holds_limit=True)

    @pytest.mark.parametrize("bounds", list(Bounds))
    def test_what_runs_can_never_come_to_more_than_the_cache(self, play, bounds):
        p = self.full(play(bounds=bounds)) >> arrived(1, 10, max_tokens=40) << Dispatch(1, "a")
        p >> arrived(2, 10, max_tokens=40) << Dispatch(2, "a")  # all 100
        p >> progress(r1=1, r2=1) >> arrived(3, 1, max_tokens=1) << nothing
        p >> done(1, 2) << Dispatch(3, "a")

    def test_its_progress_changes_nothing(self, play):
        p = self.full(play()) >> arrived(1, 10, max_tokens=40) << Dispatch(1, "a")
        for seen in (1, 20, 40):
            p >> progress(r1=seen)
            assert p.endpoint("a").held_blocks == 50

    def test_only_what_was_seen_is_charged_when_its_client_leaves(self, play):
        p = self.full(play(weights={})) >> arrived(1, 10, max_tokens=40, flow="x") << Dispatch(1, "a")
        p >> progress(r1=3) >> aborted(1)
        assert p.controller._queue.depth == 0
        p >> at(2) >> scrape("a", 2, kv=0.0, running=0, tokens=3)
        assert p.endpoint("a").held_blocks == 0

    def test_what_others_ask_of_it_is_not_killed_by_the_first_of_ours(self, play):
        """A vLLM without requests of ours takes one: it preempts. This engine would fail those of others, too."""
        p = self.full(play()) >> scrape("a", 0, kv=0.0, tokens=0) >> at(1) >> scrape("a", 1, kv=0.6, tokens=9)
        p >> arrived(1, 10, max_tokens=40) << nothing >> arrived(2, 10, max_tokens=60) << nothing
        p >> at(2) >> scrape("a", 2, kv=0.5, tokens=20) << Dispatch(1, "a") >> progress(r1=1) >> done(1)
        p >> at(3) >> scrape("a", 3, kv=0.7, tokens=60) << nothing >> at(4)
        p >> scrape("a", 4, kv=0.0, tokens=60) << Dispatch(2, "a")

    def test_others_that_read_their_prompts_for_long_are_still_there(self, play):
        """Nothing of what it tells moves meanwhile."""
        p = self.full(play()) >> scrape("a", 0, kv=0.0, tokens=0) >> at(1) >> scrape("a", 1, kv=0.6, tokens=9)
        p >> arrived(1, 10, max_tokens=90) << nothing
        for second in range(2, 10):
            p >> at(second) >> scrape("a", second, kv=0.6, tokens=9) << nothing
        p >> at(10) >> scrape("a", 10, kv=0.0, tokens=9) << Dispatch(1, "a")

    def test_a_gauge_that_is_not_told_any_more_keeps_nobody_waiting(self, play):
        p = self.full(play()) >> scrape("a", 0, kv=0.0, tokens=0) >> at(1) >> scrape("a", 1, kv=0.6, tokens=9)
        p >> arrived(1, 10, max_tokens=90) << nothing >> at(6) >> Tick() << nothing
        p >> at(7) >> Tick() << Dispatch(1, "a")

    def test_one_that_the_gauge_has_yet_to_show_takes_no_room_from_others(self, play):
        """It is on its way while the gauge is read: that shows 60 of others, which are not 30 less for it."""
        p = self.full(play()) >> scrape("a", 0, kv=0.6, tokens=9) >> arrived(1, 10, max_tokens=20) << Dispatch(1, "a")
        p >> at(1) >> scrape("a", 1, kv=0.6, tokens=20) >> arrived(2, 10, max_tokens=20) << nothing
        p >> at(2) >> scrape("a", 2, kv=0.9, tokens=20) << nothing >> progress(r1=1)
        p >> at(3) >> scrape("a", 3, kv=0.7, tokens=30) << Dispatch(2, "a")

    def test_one_that_is_larger_than_the_cache_goes_alone(self, play):
        p = self.full(play()) >> arrived(1, 60, n=2, max_tokens=90) << Dispatch(1, "a")
        p >> arrived(2, 1, max_tokens=1) << nothing

    def test_an_idle_one_takes_any_request_that_fits_it(self, play):
        p = self.full(play()) >> arrived(1, 60, max_tokens=40) << Dispatch(1, "a")
        p >> arrived(2, 99, max_tokens=1) << nothing >> done(1) << Dispatch(2, "a")
