from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.events import Arrived, Demand
from gateway.admission.prediction.predictor import KINDS, Lengths, Predictor, conditional_quantiles
from gateway.admission.tuning import TUNING


def arrival(flow="alice", limit=2000, prompt=10, **rest):
    return Arrived(1, Demand((prompt,), limit), flow=flow, **rest)


class Taught:
    """A predictor that has learned lengths, asked about requests of a flow."""

    def __init__(self, *lengths, limit=2000):
        self.predictor = Predictor()
        self.learn(*lengths, limit=limit)

    def learn(self, *lengths, limit=2000, **arriving):
        for length in lengths:
            self.predictor.learn(self.predictor.kind(arrival(limit=limit, **arriving)), length, limit)

    def mean(self, limit=2000):
        return self.predictor.mean(self.predictor.kind(arrival(limit=limit)), limit)

    def predict(self, quantile, generated=0, limit=2000, **arriving):
        kind = self.predictor.kind(arrival(limit=limit, **arriving))
        return self.predictor.predict(kind, [quantile], generated, limit)[0]


def test_cold_it_is_neither_naught_nor_the_limit():
    assert 16 <= Taught().predict(0.6, limit=100_000) <= 2048


def test_it_learns_the_quantile():
    taught = Taught(*range(1, 101))
    assert taught.predict(0.5) == pytest.approx(50, abs=2)
    assert taught.predict(0.9) == pytest.approx(90, abs=2)


def test_the_mean_of_mostly_short_and_some_long_lengths_is_between_them():
    taught = Taught(*[5] * 55, *[1500] * 45)
    assert taught.mean() == pytest.approx(0.55 * 5 + 0.45 * 1500, rel=0.1)
    assert taught.mean(limit=1200) == pytest.approx(0.55 * 5 + 0.45 * 1200, rel=0.1)
    assert Taught().mean() == Taught().predict(0.5)


def test_the_longest_is_the_limit_until_enough_is_known_of_the_kind():
    def longest(taught):
        return taught.predictor.longest(taught.predictor.kind(arrival()), 2000)

    assert longest(Taught(*[5] * (TUNING.lengths_enough - 1))) == 2000
    assert longest(Taught(*[5] * TUNING.lengths_enough, *[80] * TUNING.lengths_enough)) == 80


def test_what_a_request_has_generated_is_known_of_it():
    taught = Taught(*[10] * 80, *range(200, 300))
    assert taught.predict(0.4) == 10
    assert taught.predict(0.4, 11) >= 230


def test_one_that_outlived_all_others_goes_on_in_proportion():
    assert 500 < Taught(*range(1, 101)).predict(0.6, 500) < 1000


def test_outputs_cut_at_their_limit_want_all_there_is():
    taught = Taught(*[100] * 50, limit=100)
    assert taught.predict(0.5, limit=80) == 80
    assert taught.predict(0.5, limit=120) == 120


def test_a_flow_is_like_the_others_until_it_is_known_itself():
    taught = Taught(*[500] * 50)
    assert taught.predict(0.6, flow="bob") == 500
    taught.learn(*[20] * TUNING.lengths_enough, flow="bob")
    assert taught.predict(0.6, flow="bob") == 20


@pytest.mark.parametrize("other", [{"limit": 500}, {"tools": True}, {"streamed": False}, {"prompt": 20}])
def test_requests_are_of_a_kind_by_limit_tools_stream_and_prompt(other):
    taught = Taught(*[400] * 50)
    taught.learn(*[20] * TUNING.lengths_enough, **other)
    assert taught.predict(0.6, **other) == 20
    assert taught.predict(0.6) == 400


def test_prompts_of_about_the_same_length_are_of_one_kind():
    taught = Taught(*[400] * 50)
    taught.learn(*[20] * TUNING.lengths_enough, prompt=1000)
    assert taught.predict(0.6, prompt=960) == taught.predict(0.6, prompt=1020) == 20


def test_a_kind_nobody_has_seen_is_like_all():
    assert Taught(*[70] * 50).predict(0.6, flow="x", limit=500, tools=True, streamed=False) == 70


def test_only_the_last_lengths_count():
    assert Taught(*[10] * TUNING.lengths_kept, *[300] * TUNING.lengths_kept).predict(0.05) == 300


def test_memory_is_bounded():
    taught = Taught()
    for flow in range(3 * KINDS):
        taught.learn(10, flow=str(flow))
    assert len(taught.predictor._lengths) <= KINDS


def test_asking_what_one_is_like_changes_nothing():
    predictor = Predictor()
    predictor.like(arrival())
    assert not predictor._lengths


@given(st.lists(st.integers(1, 500), min_size=1, max_size=600))
def test_a_window_keeps_its_last_lengths_in_order(lengths):
    window = Lengths()
    for length in lengths:
        window.add(length)
    assert window.ordered == sorted(lengths[-TUNING.lengths_kept :])


@given(st.integers(1, 3000), st.integers(0, 3000), st.floats(0, 0.99), st.integers(0, 300))
def test_a_prediction_is_beyond_what_there_is_and_within_the_limit(limit, generated, quantile, learned):
    random = Random(learned)  # noqa: S311
    predicted = Taught(*(random.randint(1, 400) for _ in range(learned))).predict(quantile, generated, limit)
    assert min(generated + 1, limit) <= predicted <= limit


def test_nothing_known_is_infinite_only_where_all_were_cut():
    assert conditional_quantiles([inf] * 8, [0.5], 10) == [inf]


def test_while_next_to_nothing_is_known_all_are_predicted_alike_and_long():
    cold = Taught()
    assert cold.predict(0.1) == cold.predict(0.98) == 512


def test_what_little_is_known_joins_the_guess():
    assert Taught(*[40] * (TUNING.lengths_enough - 1)).predict(0.5) < 100
    assert Taught(*[1500] * 4).predict(0.5) > 512


def test_another_predictor_starts_from_what_one_has_learned():
    taught = Taught(*range(100, 200))
    other = Taught()
    other.predictor.recall(taught.predictor.learned())
    assert other.predict(0.5, flow="bob") == taught.predict(0.5, flow="bob") == 150


def test_endless_outputs_are_told_as_such():
    taught = Taught(*[100] * TUNING.lengths_enough, limit=100)
    assert taught.predictor.learned().everything == (None,) * TUNING.lengths_enough
    other = Taught()
    other.predictor.recall(taught.predictor.learned())
    assert other.predict(0.5, limit=120) == 120


def test_one_that_has_learned_itself_recalls_nothing():
    taught = Taught(*[10] * TUNING.lengths_enough)
    taught.predictor.recall(Taught(*[900] * TUNING.lengths_enough).predictor.learned())
    assert taught.predict(0.5) == 10


def test_what_is_recalled_replaces_what_was_recalled_before():
    """First come the lengths of a file, then those of the owner that decided until now."""
    other = Taught()
    other.predictor.recall(Taught(*[900] * TUNING.lengths_enough).predictor.learned())
    other.predictor.recall(Taught(*[10] * TUNING.lengths_enough).predictor.learned())
    other.predictor.recall(Taught().predictor.learned())
    assert other.predict(0.5) == 10


def test_what_is_told_says_nothing_of_who_asked():
    assert "alice" not in repr(Taught(*[10] * TUNING.lengths_enough).predictor.learned())
