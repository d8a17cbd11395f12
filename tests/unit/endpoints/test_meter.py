import itertools
import sys

import pytest

from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.meter import MOST_ROWS, Meter
from gateway.ops.pace import LONG

MINUTE = 60


class Engine:
    """Scraped every so many seconds: what it has completed since it began, and what is on it."""

    def __init__(self):
        self.at = 1000.0
        self.completed = self.prompt = self.output = 0
        self.meter = Meter()

    def works(self, seconds, rate, in_flight=80, *, prompt=100, output=50, usage=0.5, every=1):
        for _ in range(int(seconds / every)):
            self.at += every
            done = rate * every
            self.completed += done
            self.prompt += done * prompt
            self.output += done * output
            self.scraped(running=in_flight - in_flight // 4, waiting=in_flight // 4, kv_usage=usage)
        return self

    def scraped(self, **gauges):
        counted = {"completed": self.completed, "completed_prompt": self.prompt, "completed_output": self.output}
        self.meter.take(EngineMetrics(**{**counted, **gauges}), self.at)

    def begins_anew(self):
        self.completed = self.prompt = self.output = 0

    @property
    def pace(self):
        return self.meter.pace


@pytest.fixture
def engine():
    return Engine()


def decays(engine, minutes=30, **last):
    third = minutes * MINUTE / 3
    return engine.works(third, 200, usage=0.4).works(third, 100).works(third, **{"rate": 40, "usage": 0.6, **last})


@pytest.mark.parametrize("minutes", [4, 30, 600])
def test_an_engine_that_completes_ever_less_of_the_same_work(engine, minutes):
    pace = decays(engine, minutes).pace
    assert pace.kept == pytest.approx(0.2, rel=0.05)
    assert pace.first.rate == pytest.approx(200, rel=0.05)
    assert pace.first.seconds == pytest.approx(minutes * MINUTE / 3, rel=0.05)
    assert (pace.first.in_flight, pace.last.in_flight) == (80, 80)
    assert (pace.first.prompt, pace.last.output) == (100, 50)
    assert pace.first.usage == pytest.approx(0.4, rel=0.05)
    assert pace.last.usage == pytest.approx(0.6, rel=0.05)


def test_one_that_is_as_fast_as_ever(engine):
    assert engine.works(30 * MINUTE, 200).pace.kept == pytest.approx(1)


@pytest.mark.parametrize(
    "work",
    [
        lambda engine: decays(engine, prompt=200),
        lambda engine: decays(engine, output=100),
        lambda engine: decays(engine, in_flight=40),
        lambda engine: decays(engine, 2.9),
        lambda engine: engine.works(30 * MINUTE, 200, every=LONG + 1),
        lambda engine: engine.works(30 * MINUTE, 0.1),
        lambda engine: engine.works(30 * MINUTE, 0),
        lambda engine: engine.works(15 * MINUTE, 10, in_flight=0).works(15 * MINUTE, 4, in_flight=0),
        lambda engine: engine,
    ],
    ids=[
        "longer prompts", "longer answers", "fewer in flight", "short", "seldom looked at", "few", "none completed",
        "never seen in flight", "nothing",
    ],
)  # fmt: skip
def test_what_says_nothing_of_its_pace(engine, work):
    assert work(engine).pace is None


def test_bursts_with_nothing_between_them_are_no_slower_than_steady_work(engine):
    engine.works(10 * MINUTE, 200)
    for _ in range(20):
        engine.works(MINUTE, 200, in_flight=800).works(9 * MINUTE, 0, in_flight=0)
    assert engine.pace.kept == pytest.approx(1)


def test_time_that_nobody_saw_is_no_work(engine):
    engine.works(10 * MINUTE, 200)
    engine.at += 24 * 3600
    assert engine.works(10 * MINUTE, 200).pace.kept == pytest.approx(1)


def test_an_engine_that_began_anew_is_measured_anew(engine):
    decays(engine)
    engine.begins_anew()
    assert engine.works(2, 40).pace is None
    assert engine.works(10 * MINUTE, 40).pace.kept == pytest.approx(1)


def test_an_engine_whose_cache_has_no_gauge_has_a_pace_all_the_same(engine):
    pace = decays(engine, usage=None).pace
    assert pace.kept == pytest.approx(0.2, rel=0.05)
    assert (pace.first.usage, pace.last.usage) == (pytest.approx(0.4), None)


@pytest.mark.parametrize("missing", ["completed", "completed_prompt", "completed_output", "running", "waiting"])
def test_an_engine_that_lacks_one_of_its_sources_has_none(engine, missing):
    for _ in range(30 * MINUTE):
        engine.at += 1
        engine.completed += 200
        engine.scraped(**{"running": 80, "waiting": 0, missing: None})
    assert engine.pace is None


def test_a_scrape_that_lacks_them_is_passed_over(engine):
    for _ in range(30):
        engine.works(MINUTE - 1, 200)
        engine.at += 1
        engine.meter.take(EngineMetrics(), engine.at)
    assert engine.pace.last.rate == pytest.approx(200 * 59 / 60, rel=0.01)


def test_figures_that_cannot_be_are_no_pace(engine):
    assert engine.works(10 * MINUTE, 200, in_flight=int(sys.float_info.max)).pace is None
    assert Engine().works(10 * MINUTE, 200, usage=sys.float_info.max).pace.last.usage is None


def test_tokens_of_hardly_any_sequence_are_no_pace(engine):
    for _ in range(10 * MINUTE):
        engine.at += 1
        engine.completed += 1e-300
        engine.prompt += 1e300
        engine.scraped(running=80, waiting=0)
    assert engine.pace is None


def test_memory_is_bounded_and_all_of_the_time_is_kept(engine):
    for every in itertools.islice(itertools.cycle((1, 3, 10)), 300):
        engine.works(MINUTE, 200, every=every)
        assert len(engine.meter._rows) < MOST_ROWS
    assert sum(row.seconds for row in engine.meter._rows) == pytest.approx(300 * MINUTE - 1)
