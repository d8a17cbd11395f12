import pytest

from gateway.admission.events import Capacity, Demand
from gateway.pace import LONG, pace
from gateway.record.served import Served, Watched

MINUTE = 60


def served(count, begin, end, *, lasts, prompt=100, output=50):
    """Requests that come evenly, each of which takes so many seconds."""
    step = (end - begin) / count
    return [
        Served(
            "m", Demand((prompt,), output), (), begin + number * step, begin + number * step,
            begin + number * step + lasts, output, done=True,
        )
        for number in range(count)
    ]  # fmt: skip


def watched(*usages, up_since=0.0, until=30 * MINUTE):
    times = [until * (number + 0.5) / len(usages) for number in range(len(usages))]
    return Watched("m", Capacity(4096, 1000), up_since=up_since, usages=list(usages), used_at=times)


def slower(factor, *, lasts=1.0, **last):
    """Half an hour: 20 requests a second, then fewer of which each takes as much longer."""
    before = served(12_000, 0, 10 * MINUTE, lasts=lasts)
    between = served(6_000, 10 * MINUTE, 20 * MINUTE, lasts=2 * lasts)
    return before + between + served(12_000 // factor, 20 * MINUTE, 30 * MINUTE, **{"lasts": lasts * factor, **last})


def test_an_endpoint_that_completes_ever_less_of_the_same_work():
    found = pace(watched(0.4, 0.5, 0.6), slower(5))
    assert found.kept == pytest.approx(0.2, rel=0.02)
    assert found.first.seconds == pytest.approx(10 * MINUTE, rel=0.01)
    assert found.first.rate == pytest.approx(20, rel=0.01)
    assert found.last.in_flight == pytest.approx(found.first.in_flight, rel=0.02)
    assert (found.first.prompt, found.last.output) == (100, 50)
    assert (found.first.usage, found.last.usage) == (0.4, 0.6)


def test_one_that_is_as_fast_as_ever():
    assert pace(watched(), slower(1)).kept == pytest.approx(1, rel=0.02)
    assert pace(watched(), slower(1)).last.usage is None


@pytest.mark.parametrize(
    ("endpoint", "requests"),
    [
        (watched(), slower(5, lasts=1.0)[:12_000]),  # all in the first third of what was meant, and then nothing
        (watched(), slower(5, prompt=200)),
        (watched(), slower(5, output=100)),
        (watched(up_since=None), slower(5)),
        (watched(up_since=29 * MINUTE), slower(5)),
        (watched(), served(1000, 0, 2.9 * LONG, lasts=0.01)),
        (watched(), served(290, 0, 30 * MINUTE, lasts=1)),
        (watched(), []),
    ],
    ids=["_", "longer prompts", "longer answers", "down", "up for a minute", "short", "few", "none"],
)
def test_what_says_nothing_of_its_pace(endpoint, requests):
    found = pace(endpoint, requests)
    assert found is None or found.kept > 0.9


def test_fewer_that_come_are_not_an_endpoint_that_is_slower():
    assert pace(watched(), slower(5)[:18_000] + served(2_400, 20 * MINUTE, 30 * MINUTE, lasts=1)) is None


def test_those_that_never_end_are_in_flight():
    hanging = [Served("m", Demand((100,), 50), (), 1000 + second, 1000 + second) for second in range(20)]
    assert pace(watched(), slower(1) + hanging).last.in_flight == pytest.approx(40, rel=0.05)
