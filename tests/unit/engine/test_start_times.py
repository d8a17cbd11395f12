from engine.phases import Phase
from engine.start_times import StartTimes, Stopwatch


def test_each_phase_is_timed_from_its_first_sign_to_the_next_ones() -> None:
    watch = Stopwatch(100)
    assert watch.enter(Phase.LOADING, 110)
    assert not watch.enter(Phase.LOADING, 130)
    assert watch.enter(Phase.SERVING, 150)
    assert watch.ready(151).seconds == {Phase.IMPORTING: 10, Phase.LOADING: 40, Phase.SERVING: 1}


def test_what_is_left_is_what_the_phase_and_all_after_it_took() -> None:
    times = StartTimes({Phase.IMPORTING: 10, Phase.LOADING: 40, Phase.SERVING: 1})
    assert (times.of(Phase.LOADING), times.left(Phase.LOADING)) == (40, 41)
    assert (times.of(Phase.COMPILING), times.left(Phase.COMPILING)) == (None, None)
    assert times.left(Phase.IMPORTING) == 51
