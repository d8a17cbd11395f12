from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.events import Arrived, Demand
from gateway.admission.predictor import ENOUGH, KINDS, WINDOW, Kind, Lengths, Predictor, conditional_quantile, kind_of

CHAT = Kind("alice", 11, tools=False, streamed=True)


def taught(*lengths, kind=CHAT, limit=2000):
    predictor = Predictor()
    for length in lengths:
        predictor.learn(kind, length, limit)
    return predictor


def test_cold_it_is_neither_naught_nor_the_limit():
    assert 16 <= Predictor().predict(CHAT, 0.6, 0, 100_000) <= 2048


def test_it_learns_the_quantile():
    predictor = taught(*range(1, 101))
    assert predictor.predict(CHAT, 0.5, 0, 2000) == pytest.approx(50, abs=2)
    assert predictor.predict(CHAT, 0.9, 0, 2000) == pytest.approx(90, abs=2)


def test_what_a_request_has_generated_is_known_of_it():
    predictor = taught(*[10] * 80, *range(200, 300))
    assert predictor.predict(CHAT, 0.4, 0, 2000) == 10
    assert predictor.predict(CHAT, 0.4, 11, 2000) >= 230


def test_one_that_outlived_all_others_goes_on_in_proportion():
    predictor = taught(*range(1, 101))
    assert 500 < predictor.predict(CHAT, 0.6, 500, 2000) < 1000


def test_outputs_cut_at_their_limit_want_all_there_is():
    predictor = taught(*[100] * 50, limit=100)
    assert predictor.predict(CHAT, 0.5, 0, 80) == 80
    assert predictor.predict(CHAT, 0.5, 0, 120) == 120


def test_a_flow_is_like_the_others_until_it_is_known_itself():
    predictor = taught(*[500] * 50)
    bob = CHAT._replace(flow="bob")
    assert predictor.predict(bob, 0.6, 0, 2000) == 500
    for _ in range(ENOUGH):
        predictor.learn(bob, 20, 2000)
    assert predictor.predict(bob, 0.6, 0, 2000) == 20


def test_a_kind_nobody_has_seen_is_like_all():
    assert taught(*[70] * 50).predict(Kind("x", 5, tools=True, streamed=False), 0.6, 0, 500) == 70


def test_only_the_last_lengths_count():
    predictor = taught(*[10] * WINDOW, *[300] * WINDOW)
    assert predictor.predict(CHAT, 0.05, 0, 2000) == 300


def test_memory_is_bounded():
    predictor = Predictor()
    for flow in range(3 * KINDS):
        predictor.learn(Kind(str(flow), 9, tools=False, streamed=True), 10, 500)
    assert len(predictor._kinds) <= KINDS


def test_requests_are_of_a_kind_by_flow_limit_tools_and_stream():
    one = kind_of(Arrived(1, Demand((10,), 300), flow="a", tools=True, streamed=False))
    assert one == Kind("a", 9, tools=True, streamed=False)
    assert kind_of(Arrived(1, Demand((99,), 500), flow="a", tools=True, streamed=False)) == one


@given(st.lists(st.integers(1, 500), min_size=1, max_size=600), st.floats(0, 0.99), st.integers(0, 600))
def test_a_window_tells_the_quantile_of_its_last_lengths(lengths, level, beyond):
    window = Lengths()
    for length in lengths:
        window.add(length)
    assert window.quantile(level, beyond) == conditional_quantile(sorted(lengths[-WINDOW:]), level, beyond)


@given(st.integers(1, 3000), st.integers(0, 3000), st.floats(0, 0.99), st.integers(0, 300))
def test_a_prediction_is_beyond_what_there_is_and_within_the_limit(limit, generated, level, learned):
    random = Random(learned)  # noqa: S311
    predictor = taught(*(random.randint(1, 400) for _ in range(learned)))
    predicted = predictor.predict(CHAT, level, generated, limit)
    assert min(generated + 1, limit) <= predicted <= limit


def test_nothing_known_is_infinite_only_where_all_were_cut():
    assert conditional_quantile([inf] * 8, 0.5, 10) == inf
