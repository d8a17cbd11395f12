from engine.phases import StartPhase
from engine.start_times import StartTimes, Stopwatch


def test_each_phase_is_timed_from_its_first_sign_to_the_next_ones() -> None:
    watch = Stopwatch(100)
    assert watch.enter(StartPhase.LOADING, 110)
    assert not watch.enter(StartPhase.LOADING, 130)
    assert watch.enter(StartPhase.SERVING, 150)
    assert watch.ready(151).seconds == {StartPhase.IMPORTING: 10, StartPhase.LOADING: 40, StartPhase.SERVING: 1}


def test_what_is_left_is_what_the_phase_and_all_after_it_took() -> None:
    times = StartTimes({StartPhase.IMPORTING: 10, StartPhase.LOADING: 40, StartPhase.SERVING: 1})
    assert (times.of(StartPhase.LOADING), times.left(StartPhase.LOADING)) == (40, 41)
    assert (times.of(StartPhase.COMPILING), times.left(StartPhase.COMPILING)) == (None, None)
    assert times.left(StartPhase.IMPORTING) == 51
