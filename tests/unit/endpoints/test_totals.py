import itertools

from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.totals import Totals


def scrape(value):
    return EngineMetrics(
        preemptions=value,
        prompt_tokens=value and 10 * value,
        generation_tokens=value and 20 * value,
        prefix_queries=value and 30 * value,
        prefix_hits=value and 40 * value,
    )


def after(*values):
    totals, scrapes = Totals(), [scrape(value) for value in values]
    for before, now in itertools.pairwise(scrapes):
        totals = totals.after(before, now)
    return totals


def test_what_was_before_the_first_scrape_does_not_count():
    assert after(100.0, 103.0, 104.0) == Totals(4, 40, 80, 120, 160)


def test_a_counter_that_fell_began_anew():
    assert after(100.0, 105.0, 2.0, 3.0).preemptions == 5 + 2 + 1


def test_what_is_not_counted_is_not_known_and_not_zero():
    assert after(None, None) == Totals()
    assert after(None, 5.0, 6.0).preemptions == 1
    assert after(5.0, 5.0).preemptions == 0
    assert after(5.0, 6.0, None).preemptions == 1
