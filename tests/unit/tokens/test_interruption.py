import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gateway.tokens.interruption import (
    CallerLeftError,
    TooMuchHereError,
    _process,
    follow,
    interruptible,
    limited,
    listen,
    look,
    present,
    signals,
    whole,
)
from gateway.wire.request import InvalidRequestError

ENDING = signal.SIGUSR1


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (ENDING, signal.SIGPROF)}
    signals_at = listen(ENDING)
    yield
    for descriptor in (signal.set_wakeup_fd(-1), signals_at):
        os.close(descriptor)
    _process.signals = -1
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_ends_a_job() -> None:
    with pytest.raises(CallerLeftError):
        interruptible(lambda: signal.raise_signal(ENDING), 10)


def test_a_signal_ends_nothing_else() -> None:
    assert interruptible(lambda: 5, 10) == 5
    signal.raise_signal(ENDING)
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, 10)
    signal.raise_signal(ENDING)


def test_signals_for_an_earlier_job_are_none_for_the_next_one() -> None:
    """Who watches the process would end it for them, and with it the job of another caller."""

    def told() -> tuple[int | None, bytes]:
        return present(), signals()

    first, _ = interruptible(told, 10)
    assert first is not None
    signal.raise_signal(ENDING)
    assert interruptible(told, 10) == (first + 1, b"")
    assert present() is None


def test_a_job_is_told_to_end_by_a_signal_that_another_thread_sees() -> None:
    seen = []

    def deaf() -> None:
        with whole():
            signal.raise_signal(ENDING)
            seen.append(signals())

    with pytest.raises(CallerLeftError):
        interruptible(deaf, 10)
    assert seen == [bytes([ENDING])]


def test_what_must_not_be_left_half_done_is_done_to_its_end() -> None:
    done = []

    def job() -> None:
        with whole():
            signal.raise_signal(ENDING)
            with whole():
                pass
            signal.raise_signal(ENDING)
            done.append("whole")
        signal.raise_signal(ENDING)
        done.append("more")

    with pytest.raises(CallerLeftError):
        interruptible(job, 10)
    assert done == ["whole"]


def work_for_ever() -> None:
    while True:
        pass


def test_a_job_that_takes_too_long_is_refused_and_the_next_one_has_its_own_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="too much to count"):
            interruptible(work_for_ever, 0.05)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_the_time_of_what_must_not_be_left_half_done_is_not_the_jobs() -> None:
    told, done = [], []

    def job() -> None:
        with whole():
            before = signal.signal(signal.SIGPROF, lambda *_: told.append("the time is over"))
            while not told:
                pass
            signal.signal(signal.SIGPROF, before)
            done.append("whole")
        work_for_ever()

    with pytest.raises(InvalidRequestError):
        interruptible(job, 0.05)
    assert done == ["whole"]


def test_all_of_a_job_has_one_time_however_often_something_in_it_must_not_be_left_half_done() -> None:
    began = time.process_time()

    def job() -> None:
        while time.process_time() - began < 2.0:
            with whole():
                pass
            sum(range(1000))

    with pytest.raises(InvalidRequestError, match="too much to count"):
        interruptible(job, 0.2)
    assert time.process_time() - began < 1.0


class Finalised:
    """Whatever is raised at its end is lost."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __del__(self) -> None:
        self._end()


def work(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.mark.parametrize(
    ("end", "ending"),
    [(lambda: work(0.2), InvalidRequestError), (lambda: signal.raise_signal(ENDING), CallerLeftError)],
    ids=["overdue", "left"],
)
def test_an_ending_that_was_lost_comes_again(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[], object], ending: type[BaseException]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's imports modules, which could end, too

    def job() -> None:
        Finalised(end)
        work(2.0)

    began = time.process_time()
    with pytest.raises(ending):
        interruptible(job, 0.1)
    assert time.process_time() - began < 1.0


def test_a_caller_who_left_while_nothing_could_be_ended_is_remembered() -> None:
    done = []

    def job() -> None:
        with whole():
            signal.raise_signal(ENDING)
            done.append("whole")
        done.append("more")

    with pytest.raises(CallerLeftError):
        interruptible(job, 10)
    assert done == ["whole"]
    assert interruptible(lambda: 5, 10) == 5, "it was another job's"


def test_a_thread_ends_its_own_job_where_it_looks() -> None:
    left, ended = threading.Event(), []

    def work() -> None:
        follow(left)
        look()
        left.set()
        try:
            look()
        except CallerLeftError:
            ended.append("job")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["job"]
    look()


def test_a_thread_ends_a_job_that_is_too_much_for_it_where_it_looks() -> None:
    with limited(10):
        look(9)
        with pytest.raises(TooMuchHereError):
            look(10)
    with limited(0.05):
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        with pytest.raises(TooMuchHereError):
            look()
    look(1e9)


def test_what_must_not_be_left_half_done_takes_no_time_of_a_threads_job() -> None:
    with limited(0.05):
        with whole():
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
        look()


def test_a_job_that_takes_too_much_memory_is_refused() -> None:
    def job() -> None:
        raise MemoryError

    with pytest.raises(InvalidRequestError, match="too much memory"):
        interruptible(job, 10)
