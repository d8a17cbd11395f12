from collections.abc import Iterable

from gateway.tokens.count import PromptCount, Source
from gateway.tokens.drift import FIRST_WAIT, LIMIT, LONGEST_WAIT, WINDOW, Drift, DriftWatch
from gateway.tokens.features import Feature, Kind
from gateway.wire.request import Api

CHAT = Kind(Api.CHAT)
TOOLS = Kind(Api.CHAT, frozenset({Feature.PROMPT, Feature.TOOLS}))
TOOL_CALLS = Kind(Api.CHAT, frozenset({Feature.PROMPT, Feature.TOOLS, Feature.TOOL_CALLS}))
MESSAGES = Kind(Api.MESSAGES)


def counted(tokens: int, kind: Kind = CHAT) -> PromptCount:
    return PromptCount((tokens,), Source.LOCAL, kind)


def wrong(watch: DriftWatch, kind: Kind = CHAT, times: int = LIMIT, now: float = 0.0) -> list[Drift | None]:
    return [watch.settle(counted(5, kind=kind), 6, now) for _ in range(times)]


def right(watch: DriftWatch, kind: Kind = CHAT, times: int = WINDOW) -> None:
    for _ in range(times):
        assert watch.settle(counted(5, kind=kind), 5, 0.0) is None


def doubts(watch: DriftWatch) -> set[tuple[Api, Feature]]:
    return {(api, feature) for api in Api for feature in watch.doubted(api)}


def until_trusted(watch: DriftWatch, since: float) -> float:
    """How long it takes until the probes are asked."""
    return next(wait for wait in _waits() if watch.due(since + wait))


def _waits() -> Iterable[float]:
    return (FIRST_WAIT * 2**power if power < 6 else LONGEST_WAIT for power in range(7))


def test_a_right_count_is_no_drift() -> None:
    watch = DriftWatch()
    assert watch.settle(PromptCount((3, 4), Source.LOCAL, Kind(Api.COMPLETIONS)), 7, 0.0) is None
    assert doubts(watch) == set()


def test_a_cause_is_new_once() -> None:
    watch = DriftWatch()
    drifts = wrong(watch, times=2) + wrong(watch, TOOLS, times=1)
    assert [(drift.cause, drift.first) for drift in drifts if drift] == [
        ("local chat", True),
        ("local chat", False),
        ("local chat+tools", True),
    ]


def test_what_was_wrong_several_times_of_late_is_doubted_and_that_is_told_once() -> None:
    watch = DriftWatch()
    assert not any(drift is not None and drift.doubted for drift in wrong(watch, times=LIMIT - 1))
    assert doubts(watch) == set()
    told = wrong(watch, times=3)
    assert [drift.doubted for drift in told if drift] == [((Api.CHAT, Feature.PROMPT),), (), ()]
    assert doubts(watch) == {(Api.CHAT, Feature.PROMPT)}


def test_rare_drift_is_forgotten() -> None:
    watch = DriftWatch()
    for _ in range(10):
        wrong(watch, times=1)
        right(watch, times=WINDOW - 1)
        assert doubts(watch) == set()


def test_one_odd_api_takes_no_other_with_it() -> None:
    watch = DriftWatch()
    wrong(watch, MESSAGES)
    assert doubts(watch) == {(Api.MESSAGES, Feature.PROMPT)}


def test_one_odd_feature_does_not_take_its_api_with_it() -> None:
    watch = DriftWatch()
    wrong(watch, TOOLS)
    assert doubts(watch) == {(Api.CHAT, Feature.TOOLS)}


def test_of_several_features_those_are_doubted_that_were_wrong_most_often() -> None:
    watch = DriftWatch()
    right(watch, TOOLS, times=3)
    wrong(watch, TOOL_CALLS)
    assert doubts(watch) == {(Api.CHAT, Feature.TOOL_CALLS)}


def test_the_probes_are_asked_after_a_minute_and_where_they_differ_after_twice_that_up_to_an_hour() -> None:
    watch = DriftWatch()
    wrong(watch)
    now, waits = 0.0, []
    for _ in range(9):
        waits.append(until_trusted(watch, now))
        assert not watch.due(now + waits[-1] - 1)
        now += waits[-1]
        assert watch.probed(lambda _: False, now) == ()
        assert doubts(watch)
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_what_the_probes_count_alike_is_trusted_again_and_nothing_else() -> None:
    watch = DriftWatch()
    wrong(watch)
    wrong(watch, TOOLS)
    assert watch.probed(lambda part: part[1] is Feature.PROMPT, FIRST_WAIT) == ((Api.CHAT, Feature.PROMPT),)
    assert doubts(watch) == {(Api.CHAT, Feature.TOOLS)}


def test_who_relapses_waits_twice_as_long() -> None:
    watch = DriftWatch()
    wrong(watch)
    watch.probed(lambda _: True, FIRST_WAIT)
    wrong(watch, now=100.0)
    assert until_trusted(watch, 100.0) == 2 * FIRST_WAIT


def test_who_was_right_for_long_enough_is_new_to_doubt() -> None:
    watch = DriftWatch()
    wrong(watch)
    watch.probed(lambda _: True, FIRST_WAIT)
    right(watch)
    wrong(watch, now=100.0)
    assert until_trusted(watch, 100.0) == FIRST_WAIT


def test_nothing_is_probed_before_its_time() -> None:
    watch = DriftWatch()
    wrong(watch)
    assert watch.probed(lambda _: True, FIRST_WAIT - 1) == ()
    assert doubts(watch)
