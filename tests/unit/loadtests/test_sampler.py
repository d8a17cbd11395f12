"""What the sampler sees of a program that computes, waits, and has a thread that computes too."""

import signal
import threading
import time

import pytest

from loadtests.profile import read
from loadtests.sampler import Sampler, write

SECONDS = 0.1


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def rest():
    time.sleep(3 * SECONDS)


@pytest.fixture
def sampler():
    before = signal.getsignal(signal.SIGPROF)
    sampler = Sampler()
    sampler.begin()
    yield sampler
    sampler.end()
    signal.signal(signal.SIGPROF, before)


def spent(sampler, function):
    return sum(ns for stack, ns in sampler.stacks.items() if function in stack) / 1e9


def test_cpu_time_counts_where_it_is_spent_and_waiting_does_not(sampler):
    burn(SECONDS)
    rest()
    assert 0.5 * SECONDS < spent(sampler, "test_sampler:burn") < 1.5 * SECONDS
    assert spent(sampler, "test_sampler:rest") < 0.2 * SECONDS


def test_a_thread_has_its_own_time(sampler):
    def other():
        burn(SECONDS)

    thread = threading.Thread(target=other)
    thread.start()
    while thread.is_alive():  # signals are handled between this thread's instructions
        thread.join(0.01)
    assert 0.5 * SECONDS < spent(sampler, "<locals>.other") < 1.5 * SECONDS


def test_nothing_is_sampled_after_the_end(sampler):
    sampler.end()
    before = dict(sampler.stacks)
    burn(SECONDS)
    assert sampler.stacks == before


def test_what_is_written_is_read_per_request_from_the_event_loop_inwards(tmp_path, sampler):
    sampler.end()
    sampler.stacks.clear()
    sampler.stacks["a:main;asyncio.runners:Runner.run;b:one;c:two"] = 3_000_000
    sampler.stacks["threading:run;c:two"] = 500_000
    write(sampler.stacks, tmp_path / "stacks")
    assert read(tmp_path / "stacks", 10) == {("b:one", "c:two"): 300.0, ("threading:run", "c:two"): 50.0}
