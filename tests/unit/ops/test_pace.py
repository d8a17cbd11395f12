import pytest

from gateway.ops.pace import LONG, Work, pace

MINUTE = 60


def served(count, begin, end, *, lasts, prompt=100, output=50):
    """Requests that come evenly, each of which takes so many seconds."""
    starts = (begin + number * (end - begin) / count for number in range(count))
    return [Work(start, start + lasts, prompt, output) for start in starts]


def slower(factor, *, lasts=1.0, **last):
    """Half an hour: 20 requests a second, then fewer of which each takes as much longer."""
    before = served(12_000, 0, 10 * MINUTE, lasts=lasts)
    between = served(6_000, 10 * MINUTE, 20 * MINUTE, lasts=2 * lasts)
    return before + between + served(12_000 // factor, 20 * MINUTE, 30 * MINUTE, **{"lasts": lasts * factor, **last})


def test_an_endpoint_that_completes_ever_less_of_the_same_work():
    found = pace(slower(5), [(5 * MINUTE, 0.4), (15 * MINUTE, 0.5), (25 * MINUTE, 0.6)])
    assert found.kept == pytest.approx(0.2, rel=0.02)
    assert found.first.seconds == pytest.approx(10 * MINUTE, rel=0.01)
    assert found.first.rate == pytest.approx(20, rel=0.01)
    assert found.last.in_flight == pytest.approx(found.first.in_flight, rel=0.02)
    assert (found.first.prompt, found.last.output) == (100, 50)
    assert (found.first.usage, found.last.usage) == (0.4, 0.6)


def test_one_that_is_as_fast_as_ever():
    assert pace(slower(1), []).kept == pytest.approx(1, rel=0.02)
    assert pace(slower(1), []).last.usage is None


@pytest.mark.parametrize(
    "work",
    [
        slower(5, prompt=200),
        slower(5, output=100),
        served(1000, 0, 2.9 * LONG, lasts=0.01),
        served(290, 0, 30 * MINUTE, lasts=1),
        [],
    ],
    ids=["longer prompts", "longer answers", "short", "few", "none"],
)
def test_what_says_nothing_of_its_pace(work):
    assert pace(work, []) is None


def test_fewer_that_come_are_not_an_endpoint_that_is_slower():
    assert pace(slower(5)[:18_000] + served(2_400, 20 * MINUTE, 30 * MINUTE, lasts=1), []) is None


def test_those_that_never_end_are_in_flight():
    hanging = [Work(1000 + second, None, 100, 50, done=False) for second in range(20)]
    assert pace(slower(1) + hanging, []).last.in_flight == pytest.approx(40, rel=0.05)
