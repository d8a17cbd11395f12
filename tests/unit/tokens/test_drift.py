from gateway.tokens.count import PromptCount, Source
from gateway.tokens.drift import LIMIT, WINDOW, DriftWatch


def counted(tokens: int, source: Source = Source.LOCAL, kind: str = "chat") -> PromptCount:
    return PromptCount((tokens,), source, kind)


def test_a_right_count_is_no_drift() -> None:
    watch = DriftWatch()
    assert watch.settle(PromptCount((3, 4), Source.LOCAL, "completions"), 7) is None
    assert not watch.persists


def test_a_cause_is_new_once() -> None:
    watch = DriftWatch()
    drifts = [watch.settle(counted(5), 6), watch.settle(counted(5), 6), watch.settle(counted(5, kind="chat+tools"), 6)]
    assert [(drift.cause, drift.first) for drift in drifts if drift] == [
        ("local chat", True),
        ("local chat", False),
        ("local chat+tools", True),
    ]


def test_an_estimate_is_not_held_to_its_number() -> None:
    assert DriftWatch().settle(counted(5, Source.ESTIMATE), 50) is None


def test_drift_persists_once_several_of_the_last_counts_were_wrong() -> None:
    watch = DriftWatch()
    for _ in range(LIMIT - 1):
        watch.settle(counted(5), 6)
    assert not watch.persists
    watch.settle(counted(5), 6)
    assert watch.persists


def test_rare_drift_is_forgotten() -> None:
    watch = DriftWatch()
    for _ in range(10):
        watch.settle(counted(5), 6)
        for _ in range(WINDOW - 1):
            watch.settle(counted(5), 5)
        assert not watch.persists


def test_wrong_counts_of_the_engine_do_not_speak_against_ours() -> None:
    watch = DriftWatch()
    for _ in range(LIMIT):
        assert watch.settle(counted(5, Source.ENGINE), 6) is not None
    assert not watch.persists
