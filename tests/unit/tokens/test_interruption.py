import signal
import threading
from collections.abc import Iterator

import pytest

from gateway.tokens.interruption import CallerLeftError, follow, interruptible, listen, look, whole

ENDING = signal.SIGUSR1


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    before = signal.getsignal(ENDING)
    listen(ENDING)
    yield
    signal.signal(ENDING, before)


def test_a_signal_ends_a_job() -> None:
    with pytest.raises(CallerLeftError):
        interruptible(lambda: signal.raise_signal(ENDING))


def test_a_signal_ends_nothing_else() -> None:
    assert interruptible(lambda: 5) == 5
    signal.raise_signal(ENDING)
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)
    signal.raise_signal(ENDING)


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
        interruptible(job)
    assert done == ["whole"]


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
